package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

// sweeping is a reaper that sweeps often.
func sweeping() reaper.Config {
	cfg := quick()
	cfg.Sweep, cfg.SweepInterval, cfg.CreateDeadline = true, 50*time.Millisecond, 200*time.Millisecond
	return cfg
}

const long, short = time.Hour, 50 * time.Millisecond

// epoch writes the first epoch of a worker.
func (e *env) epoch(worker, token string, bound time.Duration) bus.StoredEpoch {
	e.Helper()
	rec := wire.EpochRecord{
		State: wire.EpochAlive, Worker: worker, Epoch: token, Host: "h", Started: time.Now().UTC(), BoundMS: bound.Milliseconds(),
	}
	seq, err := e.bus.Ledger().PutEpoch(e.ctx(), rec, 0)
	require.NoError(e, err)
	return bus.StoredEpoch{Record: rec, Seq: seq}
}

// entry writes a lease's entry in a state, and plants its sandbox unless it is an
// intent.
func (e *env) entry(lease, worker, token string, state wire.LeaseRecordState) bus.StoredLease {
	e.Helper()
	rec := wire.LeaseRecord{
		State: wire.LeaseIntent, Lease: lease, Provider: "fake", Host: host, Profile: "default", Worker: worker, Epoch: token,
		Intended: time.Now().UTC(),
	}
	seq, err := e.bus.Ledger().Intend(e.ctx(), rec)
	require.NoError(e, err)
	if state == wire.LeaseIntent {
		return bus.StoredLease{Record: rec, Seq: seq}
	}
	require.NoError(e, e.world.Plant(handle(lease)))
	rec.State, rec.Handle = wire.LeaseReady, handle(lease).Detail
	if state == wire.LeaseInUse {
		rec.State, rec.Tenant, rec.Uses = wire.LeaseInUse, "acme", 1
	}
	seq, err = e.bus.Ledger().Update(e.ctx(), rec, seq)
	require.NoError(e, err)
	return bus.StoredLease{Record: rec, Seq: seq}
}

func (e *env) ledger(lease string) wire.LeaseRecord {
	e.Helper()
	got, err := e.bus.Ledger().Get(e.ctx(), "fake", lease)
	require.NoError(e, err)
	return got.Record
}

// sweeps waits for that many more complete sweeps.
func (e *env) sweeps(r *running, n uint64) {
	e.Helper()
	before := r.Stats().Sweeps
	e.until("sweeps", func() bool { return r.Stats().Sweeps >= before+n })
}

func TestLeasesOfDeadWorkersAreSwept(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.epoch("lives", "a", long)
	lapsed := e.epoch("lapsed", "b", short)
	ended := e.epoch("ended", "c", long)
	ended.Record.State = wire.EpochEnded
	_, err := e.bus.Ledger().PutEpoch(e.ctx(), ended.Record, ended.Seq)
	require.NoError(t, err)
	e.epoch("again", "d2", long)
	dead := []string{"of-lapsed", "of-ended", "of-missing", "of-another-epoch"}
	e.entry("of-the-living", "lives", "a", wire.LeaseReady)
	e.entry("used-by-the-living", "lives", "a", wire.LeaseInUse)
	e.entry("of-lapsed", "lapsed", "b", wire.LeaseInUse)
	e.entry("of-ended", "ended", "c", wire.LeaseReady)
	e.entry("of-missing", "missing", "x", wire.LeaseInUse)
	e.entry("of-another-epoch", "again", "d1", wire.LeaseReady)

	r := e.start(sweeping())
	for _, lease := range dead {
		got := e.destroyed(lease)
		require.Equal(t, wire.QuarantineOwnerGone, got.Reason)
		require.Contains(t, evidenceKinds(got), "second_look")
		entry := e.ledger(lease)
		require.Equal(t, wire.LeaseDestroyed, entry.State, "entry and record end together")
		require.NotEmpty(t, entry.Evidence)
		require.NotNil(t, entry.DestroyedAt)
	}
	require.Equal(t, "acme", e.stored("of-lapsed").Tenant)
	e.sweeps(r, 3)
	require.Equal(t, []string{"of-the-living", "used-by-the-living"}, e.world.Live())
	require.Equal(t, wire.LeaseInUse, e.ledger("used-by-the-living").State)
	require.Equal(t, map[wire.QuarantineReason]uint64{wire.QuarantineOwnerGone: 4}, r.Stats().Swept)
	require.WithinDuration(t, time.Now(), r.Stats().SweptAt, patience)

	epoch, err := e.bus.Ledger().GetEpoch(e.ctx(), "lapsed")
	require.NoError(t, err)
	require.Equal(t, wire.EpochEnded, epoch.Record.State)
	_, err = e.bus.Ledger().PutEpoch(e.ctx(), lapsed.Record, lapsed.Seq)
	require.ErrorIs(t, err, bus.ErrConflict, "its worker, back again, finds that it has lost it")
	require.Len(t, r.log.find("message", "worker is gone: its epoch was not renewed"), 1)
}

// An epoch that is renewed goes on, however often the reaper has looked.
func TestRenewedEpochLives(t *testing.T) {
	t.Parallel()
	e := setup(t)
	at := e.epoch("worker", "a", 2*time.Second)
	e.entry("lease", "worker", "a", wire.LeaseReady)
	cfg := sweeping()
	cfg.SweepInterval = 10 * time.Millisecond
	r := e.start(cfg)
	for begun := time.Now(); time.Since(begun) < 6*time.Second; {
		at.Record.Renewals++
		seq, err := e.bus.Ledger().PutEpoch(e.ctx(), at.Record, at.Seq)
		require.NoError(t, err)
		at.Seq = seq
		e.sweeps(r, 2)
	}
	require.Empty(t, r.Stats().Swept)
	require.Equal(t, []string{"lease"}, e.world.Live())
}

func TestStaleIntents(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.epoch("lives", "a", long)
	e.entry("ready", "lives", "a", wire.LeaseReady)
	e.entry("never-made", "lives", "a", wire.LeaseIntent)
	e.entry("made", "lives", "a", wire.LeaseIntent)
	require.NoError(t, e.world.Plant(handle("made")))
	e.entry("of-the-dead", "dead", "x", wire.LeaseIntent)
	cfg := sweeping()
	cfg.CreateDeadline = 600 * time.Millisecond
	begin := time.Now()
	r := e.start(cfg)
	for _, lease := range []string{"never-made", "made"} {
		require.Equal(t, wire.QuarantineStaleIntent, e.destroyed(lease).Reason)
		require.Equal(t, wire.LeaseDestroyed, e.ledger(lease).State)
	}
	require.GreaterOrEqual(t, time.Since(begin), 2*cfg.CreateDeadline-100*time.Millisecond, "not found closes no intent before another deadline")
	require.Contains(t, evidenceKinds(e.stored("made")), "tree_exited")
	got := e.destroyed("of-the-dead")
	require.Equal(t, wire.QuarantineOwnerGone, got.Reason)
	require.GreaterOrEqual(t, got.DestroyedAt.Sub(got.FirstSeen), cfg.CreateDeadline/2, "its create may still go through")
	require.Equal(t, []string{"ready"}, e.world.Live())
	r.stop()
}

// wrongClock are books whose server's clock is far from the reaper's.
type wrongClock struct {
	reaper.Books
	by time.Duration
}

func (w wrongClock) Leases(ctx context.Context, provider string) ([]bus.StoredLease, error) {
	list, err := w.Books.Leases(ctx, provider)
	for i := range list {
		list[i].Time = list[i].Time.Add(w.by)
	}
	return list, err
}

func (w wrongClock) Quarantined(ctx context.Context, provider, host, lease string) (*bus.StoredQuarantine, error) {
	stored, err := w.Books.Quarantined(ctx, provider, host, lease)
	if stored != nil {
		stored.Time = stored.Time.Add(w.by)
	}
	return stored, err
}

// Clocks that differ, or are set, neither shorten nor stretch the time in which a
// sandbox may still appear.
func TestWallClocksDecideNothing(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"the reaper's is ahead": -time.Hour, "the reaper's is behind": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			e.epoch("lives", "a", long)
			e.entry("making", "lives", "a", wire.LeaseIntent)
			rec := record("late")
			rec.Reason = wire.QuarantineAmbiguousMake
			require.NoError(t, e.bus.Quarantines().Put(e.ctx(), rec))
			cfg := sweeping()
			cfg.CreateDeadline = 3 * time.Second
			begun := time.Now()
			r := e.startBooks(wrongClock{reaper.OnBus(e.bus, 0), by}, map[string]sandbox.Provider{"fake": e.provider()}, cfg)
			for _, lease := range []string{"late", "making"} {
				require.Contains(t, evidenceKinds(e.destroyed(lease)), "not_found")
				require.GreaterOrEqual(t, time.Since(begun), cfg.CreateDeadline)
			}
			require.GreaterOrEqual(t, time.Since(begun), 2*cfg.CreateDeadline, "an intent has to become stale first")
			r.stop()
		})
	}
}

func TestStraysAreSweptAfterTwoLooks(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.epoch("lives", "a", long)
	e.entry("owned", "lives", "a", wire.LeaseReady)
	for _, lease := range []string{"unowned", "held"} {
		require.NoError(t, e.world.Plant(handle(lease)))
	}
	// One in quarantine that an operator holds has somebody who cares.
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), record("held")))
	stored, err := e.bus.Quarantines().Get(e.ctx(), "fake", host, "held")
	require.NoError(t, err)
	stored.Record.State = wire.OnHold
	_, err = e.bus.Quarantines().Update(e.ctx(), stored.Record, stored.Seq)
	require.NoError(t, err)
	// Two that the books call destroyed, one of them with its entry.
	entry := e.entry("reappeared", "lives", "a", wire.LeaseReady)
	now := time.Now().UTC()
	entry.Record.State, entry.Record.DestroyedAt = wire.LeaseDestroyed, &now
	entry.Record.Evidence = []wire.Evidence{{Kind: "not_found"}}
	require.NoError(t, e.bus.Ledger().Finish(e.ctx(), entry.Record, entry.Seq))
	e.put("again")
	first := e.start(quick())
	e.destroyed("again")
	first.stop()
	require.NoError(t, e.world.Plant(handle("again")))

	begin := time.Now()
	cfg := sweeping()
	cfg.SweepInterval = 300 * time.Millisecond
	r := e.start(cfg)
	got := e.destroyed("unowned")
	require.Equal(t, wire.QuarantineUnowned, got.Reason)
	require.GreaterOrEqual(t, got.DestroyedAt.Sub(begin), cfg.SweepInterval, "one look is not enough")
	require.Equal(t, wire.QuarantineReappeared, e.destroyed("reappeared").Reason)
	require.Equal(t, wire.LeaseDestroyed, e.ledger("reappeared").State)
	e.until("again is gone again", func() bool { return slices.Equal(e.world.Live(), []string{"held", "owned"}) })
	require.Equal(t, wire.QuarantineReappeared, e.destroyed("again").Reason)
	e.sweeps(r, 2)
	require.Equal(t, []string{"held", "owned"}, e.world.Live())
	require.Equal(t, map[wire.QuarantineReason]uint64{wire.QuarantineUnowned: 1, wire.QuarantineReappeared: 2}, r.Stats().Swept)
	require.Zero(t, r.Stats().Strays)
}

// faulty are books that fail on command, and tell what was asked.
type faulty struct {
	reaper.Books

	mu             sync.Mutex
	leases, epochs error
	asked          []string
	beforeMove     func()
}

func (f *faulty) note(what string, fault *error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, what)
	return *fault
}

func (f *faulty) set(leases, epochs error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases, f.epochs = leases, epochs
}

func (f *faulty) Leases(ctx context.Context, provider string) ([]bus.StoredLease, error) {
	list, err := f.Books.Leases(ctx, provider)
	if fault := f.note("leases", &f.leases); fault != nil {
		return list[:0], fault
	}
	return list, err
}

func (f *faulty) Epochs(ctx context.Context) ([]bus.StoredEpoch, error) {
	list, err := f.Books.Epochs(ctx)
	if fault := f.note("epochs", &f.epochs); fault != nil {
		return list[:0], fault
	}
	return list, err
}

func (f *faulty) Quarantine(ctx context.Context, entry bus.StoredLease, q wire.Quarantine) error {
	if f.beforeMove != nil {
		f.beforeMove()
	}
	return f.Books.Quarantine(ctx, entry, q)
}

// watched tells when the inventory is taken.
type watched struct {
	*fake.Provider
	books *faulty
}

func (w watched) Inventory(ctx context.Context) ([]sandbox.Handle, error) {
	if err := w.books.note("inventory", new(error)); err != nil {
		return nil, err
	}
	return w.Provider.Inventory(ctx)
}

func (e *env) faulty() (*faulty, map[string]sandbox.Provider) {
	f := &faulty{Books: reaper.OnBus(e.bus, 0)}
	return f, map[string]sandbox.Provider{"fake": watched{e.provider(), f}}
}

// No listing, no conclusion.
func TestPartialListingsDecideNothing(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.entry("of-the-dead", "dead", "x", wire.LeaseReady)
	e.epoch("silent", "s", short)
	e.entry("of-the-silent", "silent", "s", wire.LeaseReady)
	require.NoError(t, e.world.Plant(handle("stray")))
	books, providers := e.faulty()
	books.set(errors.New("some are missing"), nil)
	r := e.startBooks(books, providers, sweeping())
	live := []string{"of-the-dead", "of-the-silent", "stray"}
	e.until("some tries", func() bool { return r.Stats().Incomplete > 5 })
	require.Empty(t, r.Stats().Swept, "without the ledger")
	require.Zero(t, r.Stats().Sweeps)
	require.Len(t, r.log.find("message", "sweep incomplete, what was not seen is left alone"), 1, "said once")

	require.Zero(t, r.Stats().Sweeps)
	require.WithinDuration(t, time.Now(), r.Stats().SweptAt, patience, "before the first, since the start")
	before := r.Stats().Incomplete
	books.set(nil, errors.New("some are missing"))
	e.until("the stray alone is known for one", func() bool { return r.Stats().Swept[wire.QuarantineUnowned] == 1 })
	e.until("more tries", func() bool { return r.Stats().Incomplete > before+5 })
	require.Zero(t, r.Stats().Swept[wire.QuarantineOwnerGone], "without the epochs")
	e.destroyed("stray")
	require.Equal(t, live[:2], e.world.Live())

	books.set(nil, nil)
	e.destroyed("of-the-dead")
	e.destroyed("of-the-silent")
	e.until("complete", func() bool { return r.Stats().Sweeps > 0 })
	require.Len(t, r.log.find("message", "sweeps are complete again"), 1)
	books.mu.Lock()
	defer books.mu.Unlock()
	first := slices.Index(books.asked, "epochs")
	require.Equal(t, []string{"inventory", "leases", "epochs"}, books.asked[first-2:first+1], "in this order alone it is safe")
}

// A record that a newer version wrote, or garbage, stops a sweep as an outage does,
// and stays.
func TestUnreadableEntriesStopTheSweep(t *testing.T) {
	t.Parallel()
	for what, subject := range map[string]string{"entry": "exec.lease.fake.odd", "epoch": "exec.lease._worker.odd"} {
		t.Run(what, func(t *testing.T) {
			e := setup(t)
			e.entry("twin", "lives", "a", wire.LeaseIntent)
			e.epoch("lives", "a", long)
			e.entry("of-the-dead", "dead", "x", wire.LeaseReady)
			_, err := e.bus.JS().Publish(e.ctx(), subject, []byte(`{"v":2,"from":"the future"}`))
			require.NoError(t, err)
			cfg := sweeping()
			cfg.CreateDeadline = long
			r := e.start(cfg)
			e.until("some tries", func() bool { return r.Stats().Incomplete > 5 })
			require.Empty(t, r.Stats().Swept)
			msg, err := e.stream().GetLastMsgForSubject(e.ctx(), subject)
			require.NoError(t, err)
			require.JSONEq(t, `{"v":2,"from":"the future"}`, string(msg.Data), "kept as it was")
			require.Contains(t, fmt.Sprint(r.log.find("level", "warn")), subject, "and named")
			// Nothing is deleted from the ledger. Written anew in a form that is known, it
			// stops nobody.
			good := map[string]string{"entry": "exec.lease.fake.twin", "epoch": "exec.lease._worker.lives"}[what]
			twin, err := e.stream().GetLastMsgForSubject(e.ctx(), good)
			require.NoError(t, err)
			body := strings.Replace(string(twin.Data), `"lease":"twin"`, `"lease":"odd"`, 1)
			if what == "epoch" {
				body = strings.Replace(string(twin.Data), `"worker":"lives"`, `"worker":"odd"`, 1)
			}
			_, err = e.bus.JS().Publish(e.ctx(), subject, []byte(body))
			require.NoError(t, err)
			e.destroyed("of-the-dead")
		})
	}
}

// The provider's outage hides what exists; the dead workers' entries are moved all
// the same.
func TestInventoryOutage(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.entry("of-the-dead", "dead", "x", wire.LeaseReady)
	require.NoError(t, e.world.Plant(handle("stray")))
	e.world.Outage(true)
	r := e.start(sweeping())
	e.until("moved", func() bool { return r.Stats().Swept[wire.QuarantineOwnerGone] == 1 })
	require.Zero(t, r.Stats().Swept[wire.QuarantineUnowned])
	e.world.Outage(false)
	e.destroyed("of-the-dead")
	e.destroyed("stray")
	require.Empty(t, e.world.Live())
}

// The owner acts between the look and the decision: the decision is void.
func TestOwnerIsFasterThanTheSweep(t *testing.T) {
	t.Parallel()
	e := setup(t)
	entry := e.entry("lease", "worker", "old", wire.LeaseReady)
	books, providers := e.faulty()
	var once sync.Once
	books.beforeMove = func() {
		once.Do(func() {
			// Another one has taken the lease over, under an epoch that lives.
			e.epoch("worker2", "new", long)
			entry.Record.Worker, entry.Record.Epoch = "worker2", "new"
			entry.Record.State, entry.Record.Tenant, entry.Record.Uses = wire.LeaseInUse, "acme", 1
			if _, err := e.bus.Ledger().Update(e.ctx(), entry.Record, entry.Seq); err != nil {
				t.Errorf("update: %v", err)
			}
		})
	}
	r := e.startBooks(books, providers, sweeping())
	e.sweeps(r, 6)
	require.Empty(t, r.Stats().Swept)
	require.Equal(t, wire.LeaseInUse, e.ledger("lease").State)
	require.Equal(t, []string{"lease"}, e.world.Live())
}

// Intents, sandboxes and epochs come into being all the time, while several reapers
// with empty memories look: none of a living worker's is touched, all of the dead
// one's end, each once.
func TestSeveralSweepersAmongTheLiving(t *testing.T) {
	t.Parallel()
	e := setup(t)
	const each = 20
	for i := range each {
		e.entry(fmt.Sprint("dead", i), "dead", "x", wire.LeaseInUse)
		require.NoError(t, e.world.Plant(handle(fmt.Sprint("stray", i))))
	}
	var reapers []*running
	cfg := sweeping()
	cfg.SweepInterval, cfg.CreateDeadline = 20*time.Millisecond, long
	for range 3 {
		reapers = append(reapers, e.startWith(e.connect(), map[string]sandbox.Provider{"fake": e.provider()}, cfg))
	}
	var living []string
	for w := range 4 {
		worker := fmt.Sprint("worker", w)
		e.epoch(worker, "now", long)
		for i := range 10 {
			lease := fmt.Sprintf("lease%d-%d", w, i)
			e.entry(lease, worker, "now", wire.LeaseReady)
			living = append(living, lease)
		}
	}
	e.until("the dead are gone", func() bool { return len(e.world.Live()) == len(living) })
	for _, r := range reapers {
		e.sweeps(r, 3)
	}
	slices.Sort(living)
	require.Equal(t, living, e.world.Live())
	sum := map[wire.QuarantineReason]uint64{}
	var destroyed uint64
	e.until("all accounted", func() bool {
		destroyed = 0
		for _, r := range reapers {
			destroyed += r.Stats().Destroyed
		}
		return destroyed >= 2*each
	})
	for _, r := range reapers {
		r.stop()
		for reason := range r.Stats().Swept {
			sum[reason]++
		}
		require.Empty(t, r.log.find("level", "error"))
	}
	require.EqualValues(t, 2*each, destroyed, "each is accounted once")
	require.Equal(t, 2*each, e.world.Destroyed())
	require.Subset(t, []wire.QuarantineReason{wire.QuarantineOwnerGone, wire.QuarantineUnowned}, keys(sum))
}

func keys(m map[wire.QuarantineReason]uint64) []wire.QuarantineReason {
	var list []wire.QuarantineReason
	for k := range m {
		list = append(list, k)
	}
	return list
}

// Sandboxes that end with their worker are the provider's own business.
func TestOnlyWhatOutlivesItsWorkerIsSwept(t *testing.T) {
	t.Parallel()
	e := setup(t)
	p := fake.New(e.world, fake.Config{Host: host})
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.NoError(t, e.world.Plant(handle("of-another-worker-here")))
	r := e.startWith(e.bus, map[string]sandbox.Provider{"fake": p}, sweeping())
	e.put("quarantined")
	e.destroyed("quarantined")
	require.Equal(t, []string{"of-another-worker-here"}, e.world.Live())
	require.Zero(t, r.Stats().Sweeps+r.Stats().Incomplete)
}

// A broker that is away for long is one line in the log, and one when it is back.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	cfg := sweeping()
	cfg.ListInterval = 100 * time.Millisecond
	r := e.start(cfg)
	e.until("ready", func() bool { return r.Ready() == nil })
	up := e.down()
	e.until("it is noticed", func() bool { return r.Ready() != nil && r.Stats().Incomplete > 0 })
	down := r.Stats().Incomplete
	e.until("it goes on", func() bool { return r.Stats().Incomplete > down+3 })
	up()
	e.until("ready again", func() bool { return r.Ready() == nil })
	e.until("all is well", func() bool { return len(r.log.find("level", "info")) >= 3 })
	for _, message := range []string{
		"quarantine cannot be read", "quarantine can be read again", "quarantine listing incomplete", "quarantine listing complete again",
		"sweep incomplete, what was not seen is left alone", "sweeps are complete again",
	} {
		require.Len(t, r.log.find("message", message), 1, message)
	}
}
