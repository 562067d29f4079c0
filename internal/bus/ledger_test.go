package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/wire"
)

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

func intent(lease string) wire.LeaseRecord {
	return wire.LeaseRecord{
		V: 1, State: wire.LeaseIntent, Lease: lease, Provider: "remote", Host: "account1", Profile: "python",
		Worker: "w1", Epoch: "e1", Intended: now(),
	}
}

func ready(rec wire.LeaseRecord) wire.LeaseRecord {
	rec.State, rec.Handle = wire.LeaseReady, map[string]string{"id": "sbx-" + rec.Lease}
	return rec
}

func used(rec wire.LeaseRecord) wire.LeaseRecord {
	rec.State, rec.Tenant, rec.Uses = wire.LeaseInUse, "acme", rec.Uses+1
	return rec
}

func finished(rec wire.LeaseRecord) wire.LeaseRecord {
	rec.State, rec.DestroyedAt = wire.LeaseDestroyed, new(now())
	rec.Evidence = []wire.Evidence{{Kind: "not_found", Detail: "the provider does not know it"}}
	return rec
}

// doubted is a quarantine record for the lease of rec.
func doubted(rec wire.LeaseRecord) wire.Quarantine {
	return wire.Quarantine{
		V: 1, State: wire.InQuarantine, Lease: rec.Lease, Provider: rec.Provider, Host: rec.Host, Worker: rec.Worker, Tenant: rec.Tenant,
		Reason: wire.QuarantineOwnerGone, Message: "the epoch has lapsed", FirstSeen: now(),
	}
}

// book is a ledger in a test, whose steps must succeed.
type book struct {
	*bus.Ledger
	t *testing.T
	b *bus.Bus
}

func bookOf(t *testing.T, b *bus.Bus) book { return book{Ledger: b.Ledger(), t: t, b: b} }

func (l book) entry(lease string) bus.StoredLease {
	l.t.Helper()
	stored, err := l.Get(deadline(l.t), "remote", lease)
	require.NoError(l.t, err)
	return *stored
}

func (l book) record(lease string) bus.StoredQuarantine {
	l.t.Helper()
	stored, err := l.b.Quarantines().Get(deadline(l.t), "remote", "account1", lease)
	require.NoError(l.t, err)
	return *stored
}

func (l book) noRecord(lease string) {
	l.t.Helper()
	_, err := l.b.Quarantines().Get(deadline(l.t), "remote", "account1", lease)
	require.ErrorIs(l.t, err, bus.ErrNoRecord)
}

// begin makes an entry in a state on the way to in_use.
func (l book) begin(lease string, state wire.LeaseRecordState) bus.StoredLease {
	l.t.Helper()
	rec := intent(lease)
	seq, err := l.Intend(deadline(l.t), rec)
	require.NoError(l.t, err)
	if state != wire.LeaseIntent {
		rec = ready(rec)
		seq, err = l.Update(deadline(l.t), rec, seq)
		require.NoError(l.t, err)
	}
	if state == wire.LeaseInUse {
		_, err = l.Update(deadline(l.t), used(rec), seq)
		require.NoError(l.t, err)
	}
	return l.entry(lease)
}

// writes is how many messages the stream ever took.
func (l book) writes() uint64 {
	l.t.Helper()
	stream, err := l.b.JS().Stream(deadline(l.t), l.b.Streams().Ledger)
	require.NoError(l.t, err)
	return stream.CachedInfo().State.LastSeq
}

// ttl is the time to live of the message that stands on subject.
func (l book) ttl(subject string) string {
	l.t.Helper()
	stream, err := l.b.JS().Stream(deadline(l.t), l.b.Streams().Ledger)
	require.NoError(l.t, err)
	msg, err := stream.GetLastMsgForSubject(deadline(l.t), subject)
	require.NoError(l.t, err)
	return msg.Header.Get("Nats-TTL")
}

func TestLedgerLifeOfALease(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	_, err := l.Get(ctx, "remote", "l1")
	require.ErrorIs(t, err, bus.ErrNoRecord)

	before := time.Now()
	rec := intent("l1")
	first, err := l.Intend(ctx, rec)
	require.NoError(t, err)
	stored := l.entry("l1")
	require.Equal(t, rec, stored.Record)
	require.Equal(t, first, stored.Seq)
	require.WithinDuration(t, before, stored.Time, patience)
	again, err := l.Intend(ctx, rec)
	require.NoError(t, err, "our own intent is no conflict")
	require.Equal(t, first, again)
	theirs := rec
	theirs.Epoch = "e2"
	_, err = l.Intend(ctx, theirs)
	require.ErrorIs(t, err, bus.ErrConflict)

	rec = ready(rec)
	second, err := l.Update(ctx, rec, first)
	require.NoError(t, err)
	rec = used(rec)
	third, err := l.Update(ctx, rec, second)
	require.NoError(t, err)
	_, err = l.Update(ctx, used(rec), second)
	require.ErrorIs(t, err, bus.ErrConflict, "the entry has moved on")
	require.Empty(t, l.ttl("exec.lease.remote.l1"))
	require.ErrorIs(t, l.Finish(ctx, finished(rec), second), bus.ErrConflict)
	end := finished(rec)
	require.NoError(t, l.Finish(ctx, end, third))
	require.NoError(t, l.Finish(ctx, end, third), "ending it twice is no error")
	require.Equal(t, end, l.entry("l1").Record)
	require.Equal(t, bus.FinishedEntryTTL.String(), l.ttl("exec.lease.remote.l1"), "what has ended ends by itself")
	require.EqualValues(t, 4, l.writes())
	_, err = l.Update(ctx, rec, third)
	require.ErrorIs(t, err, bus.ErrConflict)
	_, err = l.Intend(ctx, intent("l1"))
	require.ErrorIs(t, err, bus.ErrConflict, "an id is never used again")
}

func TestLedgerRefusesWhatIsNotItsStep(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	rec := intent("l1")
	_, err := l.Intend(ctx, ready(rec))
	require.ErrorContains(t, err, `a new entry's state is "intent"`)
	for _, state := range []wire.LeaseRecordState{wire.LeaseIntent, wire.LeaseQuarantined, wire.LeaseDestroyed, ""} {
		rec.State = state
		_, err = l.Update(ctx, rec, 1)
		require.Error(t, err, state)
	}
	_, err = l.Update(ctx, ready(rec), 0)
	require.ErrorContains(t, err, "needs the sequence")
	require.Error(t, l.Finish(ctx, ready(rec), 1))
	require.Error(t, l.Finish(ctx, finished(rec), 0))
	unproven := finished(rec)
	unproven.Evidence = nil
	require.ErrorContains(t, l.Finish(ctx, unproven, 1), "evidence: must not be empty")
	foreign := intent("l1")
	foreign.Provider = "_worker"
	_, err = l.Intend(ctx, foreign)
	require.Error(t, err)
	for _, bad := range []string{"", "*", ">", "a.b", "_worker"} {
		_, err = l.Get(ctx, bad, "l1")
		require.Error(t, err)
		require.NotErrorIs(t, err, bus.ErrNoRecord)
		_, err = l.List(ctx, bad)
		require.Error(t, err)
	}
	entry := bus.StoredLease{Record: intent("l1"), Seq: 1}
	require.Error(t, l.Quarantine(ctx, bus.StoredLease{Record: intent("l1")}, doubted(intent("l1"))), "no sequence")
	require.ErrorContains(t, l.Quarantine(ctx, entry, doubted(intent("l2"))), "another lease")
	require.Error(t, l.Quarantine(ctx, entry, destroyed(doubted(intent("l1")))))
	require.Error(t, l.Resolve(ctx, doubted(intent("l1")), 1))
	require.Error(t, l.Resolve(ctx, destroyed(doubted(intent("l1"))), 0))
	require.Zero(t, l.writes())
}

// TestLedgerQuarantine goes through what stands when a lease is put into
// quarantine: the entry's state and the record's.
func TestLedgerQuarantine(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	for _, state := range []wire.LeaseRecordState{wire.LeaseIntent, wire.LeaseReady, wire.LeaseInUse} {
		lease := "fresh-" + string(state)
		entry := l.begin(lease, state)
		q := doubted(entry.Record)
		before := l.writes()
		require.NoError(t, l.Quarantine(ctx, entry, q), state)
		got := l.entry(lease)
		want := entry.Record
		want.State, want.Message = wire.LeaseQuarantined, q.Message
		require.Equal(t, want, got.Record)
		record := l.record(lease)
		q.Handle = entry.Record.Handle
		require.Equal(t, q, record.Record, "with the entry's handle, where it has none of its own")
		require.Equal(t, got.Seq+1, record.Seq, "one batch")

		other := q
		other.Reason, other.FirstSeen = wire.QuarantineUnproven, q.FirstSeen.Add(time.Second)
		for _, from := range []bus.StoredLease{entry, got} {
			require.NoError(t, l.Quarantine(ctx, from, other), "both stand already")
		}
		require.Equal(t, before+2, l.writes(), "and nothing more was written")
		require.Equal(t, record, l.record(lease))
		require.Empty(t, l.ttl("exec.lease.remote."+lease))
	}

	// Half of it stands, whoever left it so.
	entry := l.begin("record-first", wire.LeaseReady)
	require.NoError(t, b.Quarantines().Put(ctx, doubted(entry.Record)))
	held := l.record("record-first").Record
	held.State = wire.OnHold
	_, err := b.Quarantines().Update(ctx, held, l.record("record-first").Seq)
	require.NoError(t, err)
	require.NoError(t, l.Quarantine(ctx, entry, doubted(entry.Record)))
	require.Equal(t, wire.LeaseQuarantined, l.entry("record-first").Record.State)
	require.Equal(t, wire.OnHold, l.record("record-first").Record.State, "a hold stays")

	// Overtaken: by a use, by an end, by an end that is gone.
	entry = l.begin("moved", wire.LeaseReady)
	_, err = l.Update(ctx, used(entry.Record), entry.Seq)
	require.NoError(t, err)
	require.ErrorIs(t, l.Quarantine(ctx, entry, doubted(entry.Record)), bus.ErrConflict)
	require.Equal(t, wire.LeaseInUse, l.entry("moved").Record.State)
	l.noRecord("moved")
	entry = l.begin("ended", wire.LeaseReady)
	require.NoError(t, l.Finish(ctx, finished(entry.Record), entry.Seq))
	require.ErrorIs(t, l.Quarantine(ctx, entry, doubted(entry.Record)), bus.ErrConflict)
	l.noRecord("ended")
	entry = l.begin("ended-beside-a-record", wire.LeaseReady)
	q := doubted(entry.Record)
	require.NoError(t, b.Quarantines().Put(ctx, q))
	require.NoError(t, l.Finish(ctx, finished(entry.Record), entry.Seq))
	require.ErrorIs(t, l.Quarantine(ctx, entry, q), bus.ErrConflict, "the record has not ended, so it is not what ended the entry")
	never := bus.StoredLease{Record: intent("never"), Seq: 7}
	require.ErrorIs(t, l.Quarantine(ctx, never, doubted(never.Record)), bus.ErrConflict)
	l.noRecord("never")
}

// TestLedgerReopensWhatReappeared: a destroyed lease is seen in the inventory.
func TestLedgerReopensWhatReappeared(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	entry := l.begin("l1", wire.LeaseInUse)
	first := doubted(entry.Record)
	require.NoError(t, l.Quarantine(ctx, entry, first))
	require.NoError(t, l.Resolve(ctx, destroyed(l.record("l1").Record), l.record("l1").Seq))
	writes := l.writes()
	require.NoError(t, l.Quarantine(ctx, entry, first), "it stood, and was resolved since")
	require.Equal(t, writes, l.writes(), "a late repetition does not bring the lease back")

	gone := l.entry("l1")
	again := doubted(gone.Record)
	again.Reason, again.FirstSeen = wire.QuarantineReappeared, first.FirstSeen.Add(time.Hour)
	require.NoError(t, b.Quarantines().Put(ctx, again))
	require.Equal(t, wire.Gone, l.record("l1").Record.State, "Put is create-only")
	require.NoError(t, l.Quarantine(ctx, gone, again))
	require.Equal(t, wire.LeaseQuarantined, l.entry("l1").Record.State)
	require.Nil(t, l.entry("l1").Record.DestroyedAt)
	require.Equal(t, wire.QuarantineReappeared, l.record("l1").Record.Reason)
	require.Equal(t, entry.Record.Handle, l.record("l1").Record.Handle)
	require.Empty(t, l.ttl("exec.lease.remote.l1"))
	require.Empty(t, l.ttl("exec.quarantine.remote.account1.l1"))
	require.NoError(t, l.Resolve(ctx, destroyed(l.record("l1").Record), l.record("l1").Seq))
	require.Equal(t, wire.LeaseDestroyed, l.entry("l1").Record.State)
}

// TestQuarantinesPutOrReopen is the same for a sandbox that no entry owns.
func TestQuarantinesPutOrReopen(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	q := doubted(intent("l1"))
	q.Reason = wire.QuarantineUnowned
	require.NoError(t, b.Quarantines().PutOrReopen(ctx, q))
	other := q
	other.FirstSeen = q.FirstSeen.Add(time.Hour)
	require.NoError(t, b.Quarantines().PutOrReopen(ctx, other))
	require.Equal(t, q, l.record("l1").Record)
	require.NoError(t, l.Resolve(ctx, destroyed(q), l.record("l1").Seq))
	require.NoError(t, b.Quarantines().PutOrReopen(ctx, q), "this one was resolved")
	require.Equal(t, wire.Gone, l.record("l1").Record.State)
	require.NoError(t, b.Quarantines().PutOrReopen(ctx, other))
	require.Equal(t, other, l.record("l1").Record)
	require.Error(t, b.Quarantines().PutOrReopen(ctx, destroyed(q)))
	require.EqualValues(t, 3, l.writes())
}

func TestLedgerResolve(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	end := func(lease string) (wire.Quarantine, uint64) {
		stored := l.record(lease)
		return destroyed(stored.Record), stored.Seq
	}

	entry := l.begin("both", wire.LeaseInUse)
	require.NoError(t, l.Quarantine(ctx, entry, doubted(entry.Record)))
	q, seq := end("both")
	require.NoError(t, l.Resolve(ctx, q, seq))
	got := l.entry("both")
	require.Equal(t, wire.LeaseDestroyed, got.Record.State)
	require.Equal(t, q.Evidence, got.Record.Evidence)
	require.Equal(t, q.DestroyedAt, got.Record.DestroyedAt)
	require.Equal(t, q, l.record("both").Record)
	require.Equal(t, bus.FinishedEntryTTL.String(), l.ttl("exec.lease.remote.both"))
	require.Equal(t, "168h0m0s", l.ttl("exec.quarantine.remote.account1.both"))
	writes := l.writes()
	require.NoError(t, l.Resolve(ctx, q, seq), "twice is no error")
	require.Equal(t, writes, l.writes())
	q.Attempts++
	require.ErrorIs(t, l.Resolve(ctx, q, seq), bus.ErrConflict, "other words are")

	// No entry: a local lease.
	require.NoError(t, b.Quarantines().Put(ctx, quarantined("l1")))
	local, err := b.Quarantines().Get(ctx, "local", "host1", "l1")
	require.NoError(t, err)
	require.NoError(t, l.Resolve(ctx, destroyed(local.Record), local.Seq))
	_, err = l.Get(ctx, "local", "l1")
	require.ErrorIs(t, err, bus.ErrNoRecord)

	// A record alone beside an entry that its owner still thinks his.
	entry = l.begin("owned", wire.LeaseReady)
	require.NoError(t, b.Quarantines().Put(ctx, doubted(entry.Record)))
	q, seq = end("owned")
	require.NoError(t, l.Resolve(ctx, q, seq))
	require.Equal(t, wire.LeaseDestroyed, l.entry("owned").Record.State)
	_, err = l.Update(ctx, used(entry.Record), entry.Seq)
	require.ErrorIs(t, err, bus.ErrConflict, "it can never be used again")

	// The entry has ended already; the record alone has.
	entry = l.begin("entry-done", wire.LeaseReady)
	require.NoError(t, b.Quarantines().Put(ctx, doubted(entry.Record)))
	require.NoError(t, l.Finish(ctx, finished(entry.Record), entry.Seq))
	before := l.entry("entry-done")
	q, seq = end("entry-done")
	require.NoError(t, l.Resolve(ctx, q, seq))
	require.Equal(t, before, l.entry("entry-done"))
	require.Equal(t, wire.Gone, l.record("entry-done").Record.State)
	entry = l.begin("record-done", wire.LeaseReady)
	require.NoError(t, l.Quarantine(ctx, entry, doubted(entry.Record)))
	q, seq = end("record-done")
	require.NoError(t, b.Quarantines().Resolve(ctx, q, seq))
	require.NoError(t, l.Resolve(ctx, q, seq), "only the entry is left to end")
	require.Equal(t, wire.LeaseDestroyed, l.entry("record-done").Record.State)

	// A hold, or a release of one, came first.
	entry = l.begin("held", wire.LeaseReady)
	require.NoError(t, l.Quarantine(ctx, entry, doubted(entry.Record)))
	q, seq = end("held")
	hold := l.record("held").Record
	hold.State = wire.OnHold
	_, err = b.Quarantines().Update(ctx, hold, seq)
	require.NoError(t, err)
	require.ErrorIs(t, l.Resolve(ctx, q, seq), bus.ErrConflict)
	require.Equal(t, wire.LeaseQuarantined, l.entry("held").Record.State)

	// Nothing ends without evidence.
	q.Evidence = nil
	require.ErrorContains(t, l.Resolve(ctx, q, l.record("held").Seq), "evidence")
	require.Equal(t, wire.OnHold, l.record("held").Record.State)
	require.ErrorIs(t, l.Resolve(ctx, destroyed(doubted(intent("never"))), 3), bus.ErrConflict)
}

// TestLedgerExpiry: both records of a batch end with their time to live; a
// reopened one does not.
func TestLedgerExpiry(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), func(o *bus.Options) { o.ResultRetention = time.Second })
	apply(t, b, small())
	ctx, l := deadline(t), bookOf(t, b)
	for _, lease := range []string{"back", "gone"} {
		entry := l.begin(lease, wire.LeaseReady)
		require.NoError(t, l.Quarantine(ctx, entry, doubted(entry.Record)))
		require.NoError(t, l.Resolve(ctx, destroyed(l.record(lease).Record), l.record(lease).Seq))
		if lease == "back" {
			again := doubted(entry.Record)
			again.Reason = wire.QuarantineReappeared
			require.NoError(t, l.Quarantine(ctx, l.entry(lease), again))
		}
	}
	gone := l.record("gone")
	require.Eventually(t, func() bool {
		_, entry := l.Get(ctx, "remote", "gone")
		_, record := b.Quarantines().Get(ctx, "remote", "account1", "gone")
		return errors.Is(entry, bus.ErrNoRecord) && errors.Is(record, bus.ErrNoRecord)
	}, patience, 20*time.Millisecond)
	require.Equal(t, wire.LeaseQuarantined, l.entry("back").Record.State)
	require.Equal(t, wire.InQuarantine, l.record("back").Record.State)
	require.ErrorIs(t, l.Resolve(ctx, gone.Record, gone.Seq), bus.ErrConflict, "there is nothing left to end")
}

// TestLedgerIntentOfADeadWorker: between intent and confirm its owner died. Another
// decides, and whoever comes too late learns it.
func TestLedgerIntentOfADeadWorker(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	owner, reaper := bookOf(t, b), bookOf(t, connect(t, s.ClientURL(), nil))
	ctx := deadline(t)
	intended, err := owner.Intend(ctx, intent("l1"))
	require.NoError(t, err)
	list, err := reaper.List(ctx, "remote")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, wire.LeaseIntent, list[0].Record.State)
	require.Equal(t, []string{"w1", "e1"}, []string{list[0].Record.Worker, list[0].Record.Epoch})
	stale := doubted(list[0].Record)
	stale.Reason = wire.QuarantineStaleIntent
	require.NoError(t, reaper.Quarantine(ctx, list[0], stale))
	_, err = owner.Update(ctx, ready(intent("l1")), intended)
	require.ErrorIs(t, err, bus.ErrConflict)
	require.ErrorIs(t, owner.Finish(ctx, finished(intent("l1")), intended), bus.ErrConflict)
	require.NoError(t, owner.Quarantine(ctx, bus.StoredLease{Record: intent("l1"), Seq: intended}, doubted(intent("l1"))), "that it is")
	require.Equal(t, wire.QuarantineStaleIntent, owner.record("l1").Record.Reason)
}

// TestLedgerQuarantineAgainstAUse: of a quarantine and a use of the same lease
// exactly one has its way, and there is a record only where the entry says so.
func TestLedgerQuarantineAgainstAUse(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	ctx, l := deadline(t), bookOf(t, b)
	const leases = 40
	uses, quarantines := make([]error, leases), make([]error, leases)
	var wg sync.WaitGroup
	for i := range leases {
		entry := l.begin(fmt.Sprint("l", i), wire.LeaseReady)
		wg.Go(func() { _, uses[i] = other.Ledger().Update(ctx, used(entry.Record), entry.Seq) })
		wg.Go(func() { quarantines[i] = b.Ledger().Quarantine(ctx, entry, doubted(entry.Record)) })
	}
	wg.Wait()
	for i := range leases {
		lease := fmt.Sprint("l", i)
		if uses[i] == nil {
			require.ErrorIs(t, quarantines[i], bus.ErrConflict)
			require.Equal(t, wire.LeaseInUse, l.entry(lease).Record.State)
			l.noRecord(lease)
			continue
		}
		require.ErrorIs(t, uses[i], bus.ErrConflict)
		require.NoError(t, quarantines[i])
		require.Equal(t, wire.LeaseQuarantined, l.entry(lease).Record.State)
		l.record(lease)
	}
}

// TestLedgerManyQuarantineOneLease: all succeed, and two messages are written.
func TestLedgerManyQuarantineOneLease(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	l := bookOf(t, b)
	entry := l.begin("l1", wire.LeaseInUse)
	before := l.writes()
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		q := doubted(entry.Record)
		q.Message = fmt.Sprint("number ", i)
		wg.Go(func() { errs[i] = []*bus.Bus{b, other}[i%2].Ledger().Quarantine(deadline(t), entry, q) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, before+2, l.writes())

	// Nor does it matter who of many resolves it.
	stored := l.record("l1")
	won := 0
	for i := range errs {
		q := destroyed(stored.Record)
		q.Attempts = i
		wg.Go(func() { errs[i] = []*bus.Bus{b, other}[i%2].Ledger().Resolve(deadline(t), q, stored.Seq) })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.ErrorIs(t, err, bus.ErrConflict)
	}
	require.Equal(t, 1, won)
	require.Equal(t, before+4, l.writes())
}

// throughProxy is a server with its streams, a bus straight to it and one through
// a proxy, whose requests end soon.
func throughProxy(t *testing.T) (direct book, far book, p *proxy) {
	t.Helper()
	s, b := setup(t)
	p = startProxy(t, s)
	slow := connect(t, p.url(), func(o *bus.Options) { o.RequestTimeout = 200 * time.Millisecond })
	return bookOf(t, b), bookOf(t, slow), p
}

// TestLedgerLostAnswers: the commit arrives, its answer does not, and the line
// breaks. Both records are read again and found to be ours.
func TestLedgerLostAnswers(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	entry := direct.begin("l1", wire.LeaseReady)
	q := doubted(entry.Record)
	steps := []func() error{
		func() error { return far.Quarantine(deadline(t), entry, q) },
		func() error {
			stored := direct.record("l1")
			return far.Resolve(deadline(t), destroyed(stored.Record), stored.Seq)
		},
	}
	for i, step := range steps {
		before := direct.writes()
		lost := make(chan struct{})
		p.before("Nats-Batch-Commit", func() bool { p.setDeaf(true); close(lost); return true })
		done := make(chan error, 1)
		var wg sync.WaitGroup
		wg.Go(func() { done <- step() })
		<-lost
		require.Eventually(t, func() bool { return direct.writes() == before+2 }, patience, 5*time.Millisecond)
		require.Empty(t, done, "it does not know yet")
		p.setDeaf(false)
		p.cut() // bytes were dropped: the old connection is out of step
		require.NoError(t, <-done, i)
		wg.Wait()
		require.Equal(t, before+2, direct.writes(), "written once")
		require.Eventually(t, far.b.Connected, patience, 5*time.Millisecond)
	}
}

// TestLedgerLostAnswerToAStagedMessage: a batch whose first message was not
// answered is no doubt, and is begun again.
func TestLedgerLostAnswerToAStagedMessage(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	entry := direct.begin("l1", wire.LeaseReady)
	before := direct.writes()
	lost := make(chan struct{})
	p.before("Nats-Batch-Sequence", func() bool { p.setDeaf(true); close(lost); return true })
	done := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { done <- far.Quarantine(deadline(t), entry, doubted(entry.Record)) })
	<-lost
	p.setDeaf(false)
	p.cut()
	require.NoError(t, <-done)
	require.Equal(t, before+2, direct.writes())
}

// TestLedgerBrokenBetweenStageAndCommit: the line breaks before the commit. The
// server has nothing of the batch; the next try writes it.
func TestLedgerBrokenBetweenStageAndCommit(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	entry := direct.begin("l1", wire.LeaseReady)
	before := direct.writes()
	p.before("Nats-Batch-Commit", func() bool {
		if direct.writes() != before {
			t.Error("the first message of a batch was stored before the commit")
		}
		return false
	})
	require.NoError(t, far.Quarantine(deadline(t), entry, doubted(entry.Record)))
	require.Equal(t, before+2, direct.writes())
	require.Equal(t, wire.LeaseQuarantined, direct.entry("l1").Record.State)
}

// TestLedgerOvertakenInABatch: between the look and the commit another writer
// comes. The batch writes nothing, and what stands then decides.
func TestLedgerOvertakenInABatch(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	ctx := deadline(t)

	// The first message's subject has moved: a use.
	entry := direct.begin("used", wire.LeaseReady)
	p.before("Nats-Batch-Commit", func() bool {
		_, err := direct.Update(ctx, used(entry.Record), entry.Seq)
		return err == nil
	})
	require.ErrorIs(t, far.Quarantine(ctx, entry, doubted(entry.Record)), bus.ErrConflict)
	direct.noRecord("used")

	// The second one's: somebody put a record. The entry alone is missing.
	entry = direct.begin("put", wire.LeaseReady)
	theirs := doubted(entry.Record)
	theirs.Reason = wire.QuarantineUnproven
	p.before("Nats-Batch-Commit", func() bool { return direct.b.Quarantines().Put(ctx, theirs) == nil })
	before := direct.writes()
	require.NoError(t, far.Quarantine(ctx, entry, doubted(entry.Record)))
	require.Equal(t, before+2, direct.writes())
	require.Equal(t, theirs, direct.record("put").Record)
	require.Equal(t, wire.LeaseQuarantined, direct.entry("put").Record.State)

	// A hold comes between the look and a resolve: it stands.
	stored := direct.record("put")
	p.before("Nats-Batch-Commit", func() bool {
		held := stored.Record
		held.State = wire.OnHold
		_, err := direct.b.Quarantines().Update(ctx, held, stored.Seq)
		return err == nil
	})
	require.ErrorIs(t, far.Resolve(ctx, destroyed(stored.Record), stored.Seq), bus.ErrConflict)
	require.Equal(t, wire.OnHold, direct.record("put").Record.State)
	require.Equal(t, wire.LeaseQuarantined, direct.entry("put").Record.State)
}

// TestLedgerQuarantineAgainstItsEnd: between the two reads of a repeated call the
// reaper ends the lease. The record is not opened again.
func TestLedgerQuarantineAgainstItsEnd(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	for _, mine := range []bool{true, false} {
		lease := fmt.Sprint("mine-", mine)
		entry := direct.begin(lease, wire.LeaseReady)
		q := doubted(entry.Record)
		require.NoError(t, direct.Quarantine(deadline(t), entry, q))
		stored := direct.record(lease)
		p.before("exec.lease.remote."+lease, func() bool {
			return direct.Resolve(deadline(t), destroyed(stored.Record), stored.Seq) == nil
		})
		if mine {
			require.NoError(t, far.Quarantine(deadline(t), entry, q), "it stood, and has ended")
		} else {
			q.FirstSeen = q.FirstSeen.Add(time.Second)
			require.ErrorIs(t, far.Quarantine(deadline(t), entry, q), bus.ErrConflict)
		}
		require.Equal(t, wire.Gone, direct.record(lease).Record.State)
		require.Equal(t, wire.LeaseDestroyed, direct.entry(lease).Record.State)
	}
}

func TestLedgerUnknownWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	entry := direct.begin("l1", wire.LeaseReady)
	q := doubted(entry.Record)
	p.before("Nats-Batch-Commit", func() bool { p.setDeaf(true); return true })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, far.Quarantine(ctx, entry, q), bus.ErrUnknown)
	require.Equal(t, wire.LeaseQuarantined, direct.entry("l1").Record.State, "it was written all the same: unknown is not no")
	require.NoError(t, direct.Quarantine(deadline(t), entry, q), "and the same call again finds it")
	require.Equal(t, q.FirstSeen, direct.record("l1").Record.FirstSeen)

	// Without an answer to the first look nothing can have been written: no doubt.
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := far.Quarantine(ctx, entry, q)
	require.Error(t, err)
	require.NotErrorIs(t, err, bus.ErrUnknown)
	p.setDeaf(false)
	p.cut()
}

// TestLedgerStagedIsNoDoubt: the answers end with the first message of a batch. A
// batch without its commit is nothing.
func TestLedgerStagedIsNoDoubt(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	entry := direct.begin("l1", wire.LeaseReady)
	p.before("Nats-Batch-Sequence", func() bool { p.setDeaf(true); return true })
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	err := far.Quarantine(ctx, entry, doubted(entry.Record))
	require.Error(t, err)
	require.NotErrorIs(t, err, bus.ErrUnknown)
	require.Equal(t, entry, direct.entry("l1"))
	p.setDeaf(false)
	p.cut()
}

// TestLedgerDoubtStays: after a commit without answer, a stream that is gone answers
// nothing about it.
func TestLedgerDoubtStays(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	entry := direct.begin("l1", wire.LeaseReady)
	before := direct.writes()
	p.before("Nats-Batch-Commit", func() bool { p.setDeaf(true); return true })
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	done := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { done <- far.Quarantine(ctx, entry, doubted(entry.Record)) })
	require.Eventually(t, func() bool { return direct.writes() == before+2 }, patience, 5*time.Millisecond)
	require.NoError(t, direct.b.JS().DeleteStream(deadline(t), direct.b.Streams().Ledger))
	asked := make(chan struct{})
	p.before("STREAM.MSG.GET", func() bool {
		p.before("STREAM.MSG.GET", func() bool { close(asked); return true }) // so the first one was answered
		return true
	})
	p.setDeaf(false)
	p.cut()
	select {
	case <-asked:
	case err := <-done:
		done <- err
	}
	cancel()
	require.ErrorIs(t, <-done, bus.ErrUnknown)
}

func TestLedgerOverAServersRestart(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	l := bookOf(t, b)
	entry := l.begin("l1", wire.LeaseInUse)
	require.NoError(t, l.Quarantine(deadline(t), entry, doubted(entry.Record)))
	again := restartable(t, s)
	stopServer(s)
	require.Eventually(t, func() bool { return !b.Control().IsConnected() }, patience, time.Millisecond)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := l.Quarantine(short, entry, doubted(entry.Record))
	require.Error(t, err)
	require.NotErrorIs(t, err, bus.ErrUnknown, "nothing left")
	again()
	require.Eventually(t, b.Connected, patience, 5*time.Millisecond)
	require.Equal(t, wire.LeaseQuarantined, l.entry("l1").Record.State)
	require.NoError(t, l.Resolve(deadline(t), destroyed(l.record("l1").Record), l.record("l1").Seq))
	require.Equal(t, wire.LeaseDestroyed, l.entry("l1").Record.State)
}

// TestLedgerWithoutBatches: a stream that does not take them is told by name, and
// nothing is written by halves.
func TestLedgerWithoutBatches(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	stream, err := b.JS().Stream(ctx, b.Streams().Ledger)
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.AllowAtomicPublish = false
	_, err = b.JS().UpdateStream(ctx, cfg)
	require.NoError(t, err)
	entry := l.begin("l1", wire.LeaseReady)
	before := l.writes()
	err = l.Quarantine(ctx, entry, doubted(entry.Record))
	require.ErrorIs(t, err, bus.ErrNoBatch)
	require.ErrorContains(t, err, "allow_atomic must be on (run `sallyport streams apply`)")
	require.Equal(t, before, l.writes())

	plan, err := bus.Plan(small())
	require.NoError(t, err)
	require.ErrorContains(t, b.Check(ctx, plan), "allow_atomic")
	_, err = b.Apply(ctx, plan)
	require.NoError(t, err)
	require.NoError(t, l.Quarantine(ctx, entry, doubted(entry.Record)))
}

func TestLedgerFullStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.LedgerBytes, cfg.MessageBytes = 64<<10, 64<<10
	apply(t, b, cfg)
	ctx, l := deadline(t), bookOf(t, b)
	entry := l.begin("l1", wire.LeaseReady)
	fat := intent("fat")
	fat.Message = strings.Repeat("x", wire.MaxMessageBytes)
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 100)
		fat.Lease = fmt.Sprint("fat", i)
		_, err = l.Intend(ctx, fat)
	}
	require.ErrorIs(t, err, bus.ErrStreamFull)
	q := doubted(entry.Record)
	q.Message = fat.Message
	require.ErrorIs(t, l.Quarantine(ctx, entry, q), bus.ErrStreamFull)
	require.Equal(t, entry, l.entry("l1"), "none of the batch")
	l.noRecord("l1")
}

func TestLedgerWithoutStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	_, err := b.Ledger().Intend(deadline(t), intent("l1"))
	require.ErrorIs(t, err, bus.ErrNoStream)
	entry := bus.StoredLease{Record: intent("l1"), Seq: 1}
	ctx := deadline(t)
	err = b.Ledger().Quarantine(ctx, entry, doubted(entry.Record))
	require.ErrorContains(t, err, "stream not found")
	require.NoError(t, ctx.Err(), "this does not pass, so nobody waits for it")
	_, err = b.Ledger().List(deadline(t), "remote")
	require.Error(t, err)
}

// put stores data as it is.
func put(t *testing.T, b *bus.Bus, subject string, data []byte) uint64 {
	t.Helper()
	ack, err := b.JS().Publish(deadline(t), subject, data)
	require.NoError(t, err)
	return ack.Sequence
}

func newerOf(t *testing.T, data []byte, err error) []byte {
	t.Helper()
	require.NoError(t, err)
	return []byte(strings.Replace(string(data), `"v":1`, `"v":2,"colour":"blue"`, 1))
}

// TestLedgerLeavesNewerRecordsAlone: what a newer version wrote is an error of its
// own, and stays.
func TestLedgerLeavesNewerRecordsAlone(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	rec := ready(intent("newer"))
	data, err := wire.EncodeLease(&rec)
	seq := put(t, b, b.Subjects().Lease("remote", "newer"), newerOf(t, data, err))
	require.NoError(t, b.Quarantines().Put(ctx, doubted(rec)))
	stored := l.record("newer")
	before := l.writes()

	_, err = l.Get(ctx, "remote", "newer")
	require.True(t, wire.OtherVersion(err))
	err = l.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: seq}, doubted(rec))
	require.True(t, wire.OtherVersion(err), err)
	err = l.Resolve(ctx, destroyed(stored.Record), stored.Seq)
	require.True(t, wire.OtherVersion(err), err)
	_, err = l.Intend(ctx, intent("newer"))
	require.ErrorIs(t, err, bus.ErrConflict)
	require.Equal(t, before, l.writes())

	entry := l.begin("l1", wire.LeaseReady)
	q := doubted(entry.Record)
	data, err = wire.EncodeQuarantine(&q)
	put(t, b, b.Subjects().Quarantine("remote", "account1", "l1"), newerOf(t, data, err))
	err = l.Quarantine(ctx, entry, q)
	require.True(t, wire.OtherVersion(err), err)
	require.True(t, wire.OtherVersion(b.Quarantines().PutOrReopen(ctx, q)))
	require.Equal(t, entry, l.entry("l1"))

	list, err := l.List(ctx, "remote")
	require.True(t, wire.OtherVersion(err), "one that cannot be read is an error")
	require.Len(t, list, 1, "beside the others")
}

func TestLedgerLists(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	for i := range 40 {
		rec := intent(fmt.Sprint("l", i))
		if i%2 == 1 {
			rec.Provider = "other"
		}
		_, err := l.Intend(ctx, rec)
		require.NoError(t, err)
	}
	moved := l.entry("l0")
	_, err := l.Update(ctx, ready(moved.Record), moved.Seq)
	require.NoError(t, err)
	_, err = l.PutEpoch(ctx, epoch("w1", "e1"), 0)
	require.NoError(t, err)

	list, err := l.List(ctx, "remote")
	require.NoError(t, err)
	require.Len(t, list, 20)
	require.Equal(t, "l2", list[0].Record.Lease, "oldest write first")
	require.Equal(t, "l0", list[19].Record.Lease)
	none, err := l.List(ctx, "nobody")
	require.NoError(t, err)
	require.Empty(t, none)
	all, err := l.ListAll(ctx)
	require.NoError(t, err)
	require.Len(t, all, 40, "epochs are no leases")

	// Foreign matter, more of it than is told one by one.
	for i := range 30 {
		put(t, b, fmt.Sprint("exec.lease.remote.bad", i), []byte("{"))
	}
	rec := intent("here")
	data, err := wire.EncodeLease(&rec)
	require.NoError(t, err)
	put(t, b, "exec.lease.remote.there", data)
	list, err = l.List(ctx, "remote")
	require.ErrorContains(t, err, "and 15 more that cannot be read")
	require.Less(t, len(err.Error()), 8<<10)
	require.Len(t, list, 20, "an entry under another's name is none")
	_, err = l.Get(ctx, "remote", "there")
	require.ErrorContains(t, err, "holds the entry of remote.here")
}

// fill stores n entries at once.
func fill(t testing.TB, b *bus.Bus, n int) {
	t.Helper()
	js, err := jetstream.New(b.Output(), jetstream.WithPublishAsyncMaxPending(1024))
	require.NoError(t, err)
	for i := range n {
		rec := ready(intent(fmt.Sprintf("%032x", i)))
		data, err := wire.EncodeLease(&rec)
		require.NoError(t, err)
		_, err = js.PublishAsync(b.Subjects().Lease(rec.Provider, rec.Lease), data)
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(bustest.Patience):
		require.Fail(t, "the ledger was not filled in time")
	}
}

func TestLedgerListIsBounded(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	fill(t, b, 200)
	ctx, l := bustest.Context(t), b.Ledger()
	list, err := l.ListWithin(ctx, "remote", 200, bus.MaxListBytes)
	require.NoError(t, err)
	require.Len(t, list, 200)
	for i, entry := range list[1:] {
		require.Less(t, list[i].Seq, entry.Seq)
	}
	list, err = l.ListWithin(ctx, "remote", 150, bus.MaxListBytes)
	require.ErrorIs(t, err, bus.ErrTruncated)
	require.Len(t, list, 150)
	data, err := wire.EncodeLease(&list[0].Record)
	require.NoError(t, err)
	list, err = l.ListWithin(ctx, "remote", 200, int64(50*len(data)))
	require.ErrorIs(t, err, bus.ErrTruncated)
	require.GreaterOrEqual(t, len(list), 45)
	require.LessOrEqual(t, len(list), 50+20, "the bound, and what was on its way")
}

func epoch(worker, token string) wire.EpochRecord {
	return wire.EpochRecord{V: 1, State: wire.EpochAlive, Worker: worker, Epoch: token, Host: "host1", Version: "1.0", Started: now(), BoundMS: 1000}
}

func TestLedgerEpochs(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	ctx, l := deadline(t), bookOf(t, b)
	_, err := l.GetEpoch(ctx, "w1")
	require.ErrorIs(t, err, bus.ErrNoRecord)
	mine := epoch("w1", "e1")
	seq, err := l.PutEpoch(ctx, mine, 0)
	require.NoError(t, err)
	_, err = other.Ledger().PutEpoch(ctx, epoch("w1", "e2"), 0)
	require.ErrorIs(t, err, bus.ErrConflict, "a second holder of the same id")
	first := seq
	for range 3 {
		mine.Renewals++
		next, err := l.PutEpoch(ctx, mine, seq)
		require.NoError(t, err)
		require.Greater(t, next, seq)
		seq = next
	}
	stored, err := other.Ledger().GetEpoch(ctx, "w1")
	require.NoError(t, err)
	require.Equal(t, bus.StoredEpoch{Record: mine, Seq: seq, Time: stored.Time}, *stored)
	require.WithinDuration(t, time.Now(), stored.Time, patience)
	_, err = other.Ledger().PutEpoch(ctx, epoch("w1", "e2"), first)
	require.ErrorIs(t, err, bus.ErrConflict)
	require.Empty(t, l.ttl("exec.lease._worker.w1"), "an alive one is kept for ever")

	// Another takes the id by the sequence that it saw, and the old holder learns it.
	taken, err := other.Ledger().PutEpoch(ctx, epoch("w1", "e2"), seq)
	require.NoError(t, err)
	mine.Renewals++
	_, err = l.PutEpoch(ctx, mine, seq)
	require.ErrorIs(t, err, bus.ErrConflict)
	ended := epoch("w1", "e2")
	ended.State = wire.EpochEnded
	last, err := other.Ledger().PutEpoch(ctx, ended, taken)
	require.NoError(t, err)
	require.Equal(t, bus.FinishedEntryTTL.String(), l.ttl("exec.lease._worker.w1"))
	_, err = l.PutEpoch(ctx, epoch("w1", "e3"), last)
	require.NoError(t, err, "the next start goes on from the end of the last")
	require.Empty(t, l.ttl("exec.lease._worker.w1"))

	_, err = l.PutEpoch(ctx, epoch("w0", "e9"), 0)
	require.NoError(t, err)
	put(t, b, "exec.lease._worker.w3", []byte(`{"v":2}`))
	list, err := l.Epochs(ctx)
	require.True(t, wire.OtherVersion(err))
	require.Len(t, list, 2)
	require.Equal(t, []string{"e3", "e9"}, []string{list[0].Record.Epoch, list[1].Record.Epoch})

	bad := epoch("w5", "e1")
	bad.BoundMS = 0
	_, err = l.PutEpoch(ctx, bad, 0)
	require.ErrorContains(t, err, "bound_ms")
	for _, name := range []string{"", "*", "a.b"} {
		_, err = l.GetEpoch(ctx, name)
		require.Error(t, err)
		require.NotErrorIs(t, err, bus.ErrNoRecord)
	}
	data, err := json.Marshal(epoch("w7", "e1"))
	require.NoError(t, err)
	put(t, b, "exec.lease._worker.w6", data)
	_, err = l.GetEpoch(ctx, "w6")
	require.ErrorContains(t, err, "holds the epoch of w7")
}

// TestLedgerEpochOverALostAnswer: the renewal is found to be ours, and the next one
// goes on from it.
func TestLedgerEpochOverALostAnswer(t *testing.T) {
	t.Parallel()
	direct, far, p := throughProxy(t)
	mine := epoch("w1", "e1")
	seq, err := far.PutEpoch(deadline(t), mine, 0)
	require.NoError(t, err)
	mine.Renewals = 1
	p.before(`"renewals":1`, func() bool { p.setDeaf(true); return true })
	done := make(chan error, 1)
	var renewed uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		renewed, err = far.PutEpoch(deadline(t), mine, seq)
		done <- err
	})
	require.Eventually(t, func() bool { return direct.writes() == 2 }, patience, 5*time.Millisecond)
	p.setDeaf(false)
	p.cut()
	require.NoError(t, <-done)
	wg.Wait()
	require.EqualValues(t, 2, renewed)
	mine.Renewals = 2
	_, err = far.PutEpoch(deadline(t), mine, renewed)
	require.NoError(t, err)
}

// TestBatchesLeaveNothingBehind: staged messages without a commit are never seen,
// and do not stand in anybody's way.
func TestBatchesLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	l := bookOf(t, b)
	entry := l.begin("l1", wire.LeaseReady)
	nc := plain(t, s)
	for i := range 40 { // a server has room for 50 at a time
		msg := nats.NewMsg(b.Subjects().Lease("remote", "l1"))
		msg.Header.Set("Nats-Batch-Id", fmt.Sprint("left-", i))
		msg.Header.Set("Nats-Batch-Sequence", "1")
		msg.Data = []byte("{}")
		answer, err := nc.RequestMsg(msg, patience)
		require.NoError(t, err)
		require.Empty(t, answer.Data)
	}
	require.Equal(t, entry, l.entry("l1"))
	require.NoError(t, l.Quarantine(deadline(t), entry, doubted(entry.Record)))
}

// TestLedgerWaitsForRoomForABatch: as many batches are under way as the server
// takes. The next waits until there is room, and is not lost.
func TestLedgerWaitsForRoomForABatch(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) {
		o.JetStreamLimits.MaxBatchInflightPerStream = 1
		o.JetStreamLimits.MaxBatchTimeout = 700 * time.Millisecond
	})
	b := connect(t, s.ClientURL(), nil)
	apply(t, b, small())
	l := bookOf(t, b)
	entry := l.begin("l1", wire.LeaseReady)
	msg := nats.NewMsg(b.Subjects().Lease("remote", "l1"))
	msg.Header.Set("Nats-Batch-Id", "left")
	msg.Header.Set("Nats-Batch-Sequence", "1")
	_, err := plain(t, s).RequestMsg(msg, patience)
	require.NoError(t, err)
	require.NoError(t, l.Quarantine(deadline(t), entry, doubted(entry.Record)))
	require.Equal(t, wire.LeaseQuarantined, l.entry("l1").Record.State)
}

// What is left out of a list is not read, whatever stands there.
func TestLedgerListBut(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, l := deadline(t), bookOf(t, b)
	for _, lease := range []string{"a", "b", "c"} {
		_, err := l.Intend(ctx, intent(lease))
		require.NoError(t, err)
	}
	list, err := l.ListBut(ctx, "remote", func(lease string) bool { return lease == "b" })
	require.NoError(t, err)
	var leases []string
	for _, entry := range list {
		leases = append(leases, entry.Record.Lease)
	}
	require.Equal(t, []string{"a", "c"}, leases)
}
