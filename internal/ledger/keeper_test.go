package ledger_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/ledger"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const provider, host, worker = "cloud", "account", "w1"

var errNoAnswer = errors.New("no answer")

// The entry of a sandbox tells its life: meant to be made, made, used, gone.
func TestAnEntryTellsTheLifeOfItsSandbox(t *testing.T) {
	k := keep(t, newBooks(t))
	k.intend("a")
	require.Equal(t, wire.LeaseIntent, k.stored("a").State)
	k.confirm("a")
	e := k.stored("a")
	require.Equal(t, wire.LeaseReady, e.State)
	require.Equal(t, map[string]string{"id": "sb-a"}, e.Handle)
	require.NoError(t, k.Use(t.Context(), "a", leasepool.Use{Tenant: "demo", Job: "j1", Use: 1}))
	e = k.stored("a")
	require.Equal(t, "j1", e.Job)
	require.Equal(t, wire.LeaseInUse, e.State)
	require.Equal(t, "demo", e.Tenant)
	require.Equal(t, worker, e.Worker)
	require.Equal(t, 1, k.Open())
	k.destroyed("a")
	e = k.stored("a")
	require.Equal(t, wire.LeaseDestroyed, e.State)
	require.NotNil(t, e.DestroyedAt)
	require.Equal(t, []wire.Evidence{{Kind: "not_found", Detail: "404"}}, e.Evidence)
	require.Zero(t, k.Open())
	k.destroyed("a")
}

// A reaper that has taken a lease for a dead worker's wins: the worker neither uses
// it nor writes its end.
func TestALeaseThatWasTakenAwayIsNotUsed(t *testing.T) {
	k := keep(t, newBooks(t))
	for _, lease := range []string{"confirming", "idle"} {
		k.intend(lease)
	}
	k.confirm("idle")
	k.takeAway("confirming")
	k.takeAway("idle")
	require.ErrorIs(t, k.Confirm(t.Context(), handle("confirming")), leasepool.ErrOvertaken)
	require.ErrorIs(t, k.Use(t.Context(), "idle", leasepool.Use{Tenant: "demo", Use: 1}), leasepool.ErrOvertaken)
	k.destroyed("idle")
	require.Equal(t, wire.LeaseQuarantined, k.stored("idle").State, "its end is the reaper's to write")
	require.ErrorIs(t, k.Use(t.Context(), "unknown", leasepool.Use{Tenant: "demo", Use: 1}), leasepool.ErrOvertaken)
}

// A write whose answer was lost is found again, by whatever comes next.
func TestLostAnswersAreFoundAgain(t *testing.T) {
	books := newBooks(t)
	k := keep(t, books)
	lost := func(call func() error) {
		t.Helper()
		books.loseAnswer()
		require.ErrorIs(t, call(), errNoAnswer)
	}
	lost(func() error { return k.Intend(t.Context(), handle("never-made"), "default") })
	k.destroyed("never-made")
	require.Equal(t, wire.LeaseDestroyed, k.stored("never-made").State, "an intent is not left behind")

	k.intend("a")
	lost(func() error { return k.Confirm(t.Context(), handle("a")) })
	k.confirm("a")
	lost(func() error { return k.Use(t.Context(), "a", leasepool.Use{Tenant: "one", Use: 1}) })
	require.NoError(t, k.Use(t.Context(), "a", leasepool.Use{Tenant: "two", Use: 1}), "the first was never handed out")
	require.Equal(t, "two", k.stored("a").Tenant)
	lost(func() error { return k.Destroyed(t.Context(), "a", gone()) })
	k.destroyed("a")
	require.Equal(t, wire.LeaseDestroyed, k.stored("a").State)
}

// A lease in doubt has its record and its entry changed together; one whose entry
// has ended, or that has none, is told apart.
func TestQuarantineChangesTheEntryToo(t *testing.T) {
	books := newBooks(t)
	k := keep(t, books)
	k.intend("a")
	k.confirm("a")
	books.loseAnswer()
	_, err := k.Quarantine(t.Context(), "a", record("a"))
	require.ErrorIs(t, err, errNoAnswer)
	written, err := k.Quarantine(t.Context(), "a", record("a"))
	require.NoError(t, err)
	require.True(t, written)
	require.Equal(t, wire.LeaseQuarantined, k.stored("a").State)
	q, err := books.bus.Quarantines().Get(t.Context(), provider, host, "a")
	require.NoError(t, err)
	require.Equal(t, wire.InQuarantine, q.Record.State)

	written, err = k.Quarantine(t.Context(), "unknown", record("unknown"))
	require.NoError(t, err)
	require.False(t, written)

	k.intend("came-back")
	k.takeAway("came-back")
	k.reap("came-back")
	written, err = k.Quarantine(t.Context(), "came-back", record("came-back"))
	require.NoError(t, err)
	require.False(t, written, "its entry has ended, the doubt has not")
}

// Without an epoch nothing is made or used; when it lapses everything of it is
// dropped, and what is made afterwards is of another.
func TestALapsedEpochDropsItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		books := &memory{}
		var lapses atomic.Int64
		k, err := ledger.New(books, zerolog.Nop(), ledger.Config{
			Worker: worker, Host: host, Version: "1", Bound: time.Minute, OnLapse: func() { lapses.Add(1) },
		})
		require.NoError(t, err)
		require.ErrorIs(t, k.Intend(t.Context(), handle("a"), "default"), ledger.ErrLapsed)
		require.NoError(t, k.Begin(t.Context()))
		first := books.get().Epoch
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { require.NoError(t, k.Run(ctx)) })
		require.NoError(t, k.Intend(t.Context(), handle("a"), "default"))

		time.Sleep(time.Hour)
		require.Equal(t, first, books.get().Epoch, "it is renewed")
		require.Greater(t, books.get().Renewals, 200)
		require.Zero(t, lapses.Load())

		books.fail(errNoAnswer)
		time.Sleep(time.Minute)
		require.ErrorIs(t, k.Ready(), ledger.ErrLapsed)
		require.ErrorIs(t, k.Intend(t.Context(), handle("b"), "default"), ledger.ErrLapsed)
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, lapses.Load())

		books.fail(nil)
		time.Sleep(time.Minute)
		require.NoError(t, k.Ready())
		require.NotEqual(t, first, books.get().Epoch)
		require.ErrorIs(t, k.Confirm(t.Context(), handle("a")), leasepool.ErrOvertaken, "made in the first epoch")
		require.NoError(t, k.Intend(t.Context(), handle("c"), "default"))
		require.NoError(t, k.Confirm(t.Context(), handle("c")))

		books.endEpoch() // an observer, or another with this id
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, lapses.Load())
		require.NoError(t, k.Ready())

		stop()
		run.Wait()
		require.Equal(t, wire.EpochEnded, books.get().State)
		require.ErrorIs(t, k.Ready(), ledger.ErrLapsed)
	})
}

func TestConfigMistakesAreNamed(t *testing.T) {
	_, err := ledger.New(&memory{}, zerolog.Nop(), ledger.Config{Worker: "a b", Host: "", Bound: time.Millisecond})
	require.ErrorContains(t, err, "worker")
	require.ErrorContains(t, err, "host")
	require.ErrorContains(t, err, "bound")
}

// keeper is one with its books on a real server.
type keeper struct {
	*ledger.Keeper
	t     *testing.T
	books *books
}

func keep(t *testing.T, b *books) *keeper {
	t.Helper()
	k, err := ledger.New(b, zerolog.Nop(), ledger.Config{Worker: worker, Host: host, Version: "1"})
	require.NoError(t, err)
	require.NoError(t, k.Begin(t.Context()))
	return &keeper{k, t, b}
}

func (k *keeper) intend(lease string) {
	k.t.Helper()
	require.NoError(k.t, k.Intend(k.t.Context(), sandbox.Handle{Provider: provider, Host: host, Lease: lease}, "default"))
}

func (k *keeper) confirm(lease string) {
	k.t.Helper()
	require.NoError(k.t, k.Confirm(k.t.Context(), handle(lease)))
}

func (k *keeper) destroyed(lease string) {
	k.t.Helper()
	require.NoError(k.t, k.Destroyed(k.t.Context(), lease, gone()))
}

func (k *keeper) stored(lease string) wire.LeaseRecord {
	k.t.Helper()
	e, err := k.books.Get(k.t.Context(), provider, lease)
	require.NoError(k.t, err)
	return e.Record
}

// takeAway is what a reaper does to a dead worker's lease.
func (k *keeper) takeAway(lease string) {
	k.t.Helper()
	e, err := k.books.Get(k.t.Context(), provider, lease)
	require.NoError(k.t, err)
	require.NoError(k.t, k.books.Ledger.Quarantine(k.t.Context(), *e, record(lease)))
}

func (k *keeper) reap(lease string) {
	k.t.Helper()
	q, err := k.books.bus.Quarantines().Get(k.t.Context(), provider, host, lease)
	require.NoError(k.t, err)
	now := time.Now().UTC()
	q.Record.State, q.Record.DestroyedAt, q.Record.Attempts = wire.Gone, &now, 1
	q.Record.Evidence = []wire.Evidence{{Kind: "not_found"}}
	require.NoError(k.t, k.books.Resolve(k.t.Context(), q.Record, q.Seq))
}

func handle(lease string) sandbox.Handle {
	return sandbox.Handle{Provider: provider, Host: host, Lease: lease, Detail: map[string]string{"id": "sb-" + lease}}
}

func gone() sandbox.Proof {
	return sandbox.Proof{Proven: true, Evidence: []sandbox.Evidence{{Kind: sandbox.EvidenceNotFound, Detail: "404"}}}
}

func record(lease string) wire.Quarantine {
	return wire.Quarantine{
		V: wire.Version, State: wire.InQuarantine, Lease: lease, Provider: provider, Host: host, Worker: worker,
		Reason: wire.QuarantineOwnerGone, FirstSeen: time.Now().UTC().Truncate(time.Millisecond),
	}
}

// books are real ones, whose answers can be lost.
type books struct {
	*bus.Ledger
	bus *bus.Bus

	mu   sync.Mutex
	lose bool
}

func newBooks(t *testing.T) *books {
	t.Helper()
	srv := bustest.Server(t, nil)
	b, err := bus.Connect(t.Context(), bus.Options{Servers: srv.ClientURL(), Log: zerolog.Nop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
	plan, err := bus.Plan(bus.PlanConfig{Queues: []bus.QueuePlan{{Name: "default"}}})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), plan)
	require.NoError(t, err)
	return &books{Ledger: b.Ledger(), bus: b}
}

// loseAnswer lets the next write go through and its answer get lost.
func (b *books) loseAnswer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lose = true
}

func (b *books) answer(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lose {
		b.lose = false
		return errors.Join(errNoAnswer, err)
	}
	return err
}

func (b *books) Intend(ctx context.Context, rec wire.LeaseRecord) (uint64, error) {
	seq, err := b.Ledger.Intend(ctx, rec)
	if err = b.answer(err); err != nil {
		return 0, err
	}
	return seq, nil
}

func (b *books) Update(ctx context.Context, rec wire.LeaseRecord, expect uint64) (uint64, error) {
	seq, err := b.Ledger.Update(ctx, rec, expect)
	if err = b.answer(err); err != nil {
		return 0, err
	}
	return seq, nil
}

func (b *books) Finish(ctx context.Context, rec wire.LeaseRecord, expect uint64) error {
	return b.answer(b.Ledger.Finish(ctx, rec, expect))
}

func (b *books) Quarantine(ctx context.Context, entry bus.StoredLease, q wire.Quarantine) error {
	return b.answer(b.Ledger.Quarantine(ctx, entry, q))
}

// memory is just enough of the books for an epoch in virtual time.
type memory struct {
	ledger.Books // what is not used

	mu    sync.Mutex
	err   error
	seq   uint64
	epoch bus.StoredEpoch
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) get() wire.EpochRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch.Record
}

func (m *memory) endEpoch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch.Seq++
	m.epoch.Record.State = wire.EpochEnded
}

func (m *memory) next() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	return m.seq, m.err
}

func (m *memory) Intend(context.Context, wire.LeaseRecord) (uint64, error) { return m.next() }

func (m *memory) Update(context.Context, wire.LeaseRecord, uint64) (uint64, error) { return m.next() }

func (m *memory) PutEpoch(_ context.Context, rec wire.EpochRecord, expect uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return 0, m.err
	case m.epoch.Seq != expect:
		return 0, bus.ErrConflict
	}
	m.epoch = bus.StoredEpoch{Record: rec, Seq: expect + 1}
	return m.epoch.Seq, nil
}

func (m *memory) GetEpoch(context.Context, string) (*bus.StoredEpoch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	if m.epoch.Seq == 0 {
		return nil, bus.ErrNoRecord
	}
	found := m.epoch
	return &found, nil
}
