package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/ledger"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/wire"
)

// shelf is the durable books as their users have them: the keeper, the daemon and
// the reaper.
type shelf interface {
	ledger.Books
	Put(ctx context.Context, q wire.Quarantine) error
	PutOrReopen(ctx context.Context, q wire.Quarantine) error
}

// realShelf is that of a real bus.
type realShelf struct {
	*bus.Ledger
	records *bus.Quarantines
}

func (r realShelf) Put(ctx context.Context, q wire.Quarantine) error { return r.records.Put(ctx, q) }

func (r realShelf) PutOrReopen(ctx context.Context, q wire.Quarantine) error {
	return r.records.PutOrReopen(ctx, q)
}

// TestBooksAreLikeTheRealOnes runs one script of calls against the books in memory
// and against a real server, and compares each answer.
func TestBooksAreLikeTheRealOnes(t *testing.T) {
	t.Parallel()
	server := bustest.Server(t, nil)
	b := bustest.Connect(t, server.ClientURL(), nil)
	bustest.Apply(t, b, bus.PlanConfig{})
	straight := func(_ context.Context, _ string, effect func() error) error { return effect() }
	d := &desk{b: newBooks(t), call: straight}

	onServer := script(t, realShelf{b.Ledger(), b.Quarantines()}, reaper.OnBus(b, time.Minute))
	inMemory := script(t, ledgerBooks{d}, d)
	require.Equal(t, onServer, inMemory)
	require.Greater(t, len(onServer), 60)
}

// scribe writes down what each call answers. Sequences are the server's own: an
// answer says which write of the script it was that made one.
type scribe struct {
	t     *testing.T
	lines []string
	seqs  map[uint64]string
}

func (s *scribe) note(what string, seq uint64, err error, more ...any) {
	answer := "ok"
	for name, known := range map[string]error{"conflict": bus.ErrConflict, "none": bus.ErrNoRecord} {
		if errors.Is(err, known) {
			answer = name
		}
	}
	if err != nil && answer == "ok" {
		answer = "refused"
	}
	name := ""
	if seq > 0 && s.seqs[seq] == "" {
		s.seqs[seq] = what
	}
	if seq > 0 {
		name = " of " + s.seqs[seq]
	}
	s.lines = append(s.lines, strings.TrimSpace(fmt.Sprintf("%s: %s%s %s", what, answer, name, strings.TrimSpace(fmt.Sprintln(more...)))))
}

// script is what workers, reapers and operators do to a few leases.
func script(t *testing.T, w shelf, r reaper.Books) []string {
	t.Helper()
	s := &scribe{t: t, seqs: map[uint64]string{}}
	s.epochs(w, r)
	s.life(w, r)
	s.quarantine(w, r)
	s.alone(w, r)
	s.deliveries(w, r)
	return s.lines
}

func scriptTime() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func scriptEntry(lease string, state wire.LeaseRecordState) wire.LeaseRecord {
	return wire.LeaseRecord{
		V: wire.Version, State: state, Lease: lease, Provider: "p", Host: "h", Profile: "default", Worker: "w", Epoch: "e1",
		Intended: scriptTime(),
	}
}

func scriptRecord(lease string, reason wire.QuarantineReason) wire.Quarantine {
	return wire.Quarantine{
		V: wire.Version, State: wire.InQuarantine, Lease: lease, Provider: "p", Host: "h", Worker: "w", Reason: reason,
		Message: "why", FirstSeen: scriptTime(),
	}
}

func ended(q wire.Quarantine) wire.Quarantine {
	at := scriptTime()
	q.State, q.DestroyedAt, q.Attempts = wire.Gone, &at, 1
	q.Evidence = []wire.Evidence{{Kind: "not_found", Detail: "gone"}}
	return q
}

func finished(rec wire.LeaseRecord) wire.LeaseRecord {
	at := scriptTime()
	rec.State, rec.DestroyedAt, rec.Evidence = wire.LeaseDestroyed, &at, []wire.Evidence{{Kind: "not_found", Detail: "gone"}}
	return rec
}

func (s *scribe) epochs(w shelf, r reaper.Books) {
	ctx := s.t.Context()
	rec := wire.EpochRecord{V: wire.Version, State: wire.EpochAlive, Worker: "w", Epoch: "e1", Host: "h", Started: scriptTime(), BoundMS: 1000}
	_, err := w.GetEpoch(ctx, "w")
	s.note("epoch before", 0, err)
	first, err := w.PutEpoch(ctx, rec, 0)
	s.note("epoch 1", first, err)
	again, err := w.PutEpoch(ctx, rec, 0)
	s.note("epoch 1 again", again, err)
	rec.Renewals = 1
	lost, err := w.PutEpoch(ctx, rec, 0)
	s.note("renewed against nothing", lost, err)
	second, err := w.PutEpoch(ctx, rec, first)
	s.note("renewed", second, err)
	again, err = w.PutEpoch(ctx, rec, first)
	s.note("renewed again", again, err)
	rec.State = wire.EpochEnded
	third, err := r.PutEpoch(ctx, rec, second)
	s.note("ended by an observer", third, err)
	rec.State, rec.Renewals = wire.EpochAlive, 2
	lost, err = w.PutEpoch(ctx, rec, second)
	s.note("renewed too late", lost, err)
	got, err := w.GetEpoch(ctx, "w")
	require.NoError(s.t, err)
	s.note("epoch now", got.Seq, err, got.Record.State, got.Record.Renewals)
	list, err := r.Epochs(ctx)
	s.note("epochs", 0, err, len(list))
}

// entry notes how a lease's entry and record stand.
func (s *scribe) stand(r reaper.Books, lease string) (entry bus.StoredLease, record bus.StoredQuarantine) {
	s.t.Helper()
	e, err := r.Lease(s.t.Context(), "p", lease)
	if err == nil {
		entry = *e
	}
	s.note("entry of "+lease, entry.Seq, err, entry.Record.State, entry.Record.Uses, entry.Record.Handle, entry.Record.Message, len(entry.Record.Evidence))
	q, err := r.Quarantined(s.t.Context(), "p", "h", lease)
	if err == nil {
		record = *q
	}
	s.note("record of "+lease, record.Seq, err, record.Record.State, record.Record.Reason, record.Record.Handle, len(record.Record.Evidence))
	return entry, record
}

// life is a lease that nobody doubts.
func (s *scribe) life(w shelf, r reaper.Books) {
	ctx := s.t.Context()
	rec := scriptEntry("a", wire.LeaseIntent)
	s.stand(r, "a")
	intent, err := w.Intend(ctx, rec)
	s.note("intent", intent, err)
	again, err := w.Intend(ctx, rec)
	s.note("intent again", again, err)
	rec.Epoch = "e2"
	lost, err := w.Intend(ctx, rec)
	s.note("another's intent", lost, err)
	rec.Epoch, rec.State, rec.Handle = "e1", wire.LeaseReady, map[string]string{"id": "7"}
	ready, err := w.Update(ctx, rec, intent)
	s.note("ready", ready, err)
	rec.State, rec.Tenant, rec.Uses = wire.LeaseInUse, "t", 1
	lost, err = w.Update(ctx, rec, intent)
	s.note("in use against the intent", lost, err)
	used, err := w.Update(ctx, rec, ready)
	s.note("in use", used, err)
	s.stand(r, "a")
	s.note("finished too early", 0, w.Finish(ctx, finished(rec), ready))
	s.note("finished", 0, w.Finish(ctx, finished(rec), used))
	s.note("finished again", 0, w.Finish(ctx, finished(rec), used))
	rec.Uses = 2
	lost, err = w.Update(ctx, rec, used)
	s.note("in use after its end", lost, err)
	entry, _ := s.stand(r, "a")
	s.note("reappeared", 0, r.Quarantine(ctx, entry, scriptRecord("a", wire.QuarantineReappeared)))
	s.stand(r, "a")
}

// quarantine is leases in doubt that have an entry.
func (s *scribe) quarantine(w shelf, r reaper.Books) {
	ctx := s.t.Context()
	rec := scriptEntry("b", wire.LeaseIntent)
	s.note("no entry to quarantine", 0, r.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: 1}, scriptRecord("b", wire.QuarantineUnproven)))
	intent, err := w.Intend(ctx, rec)
	s.note("intent of b", intent, err)
	rec.State, rec.Handle = wire.LeaseReady, map[string]string{"id": "8"}
	ready, err := w.Update(ctx, rec, intent)
	s.note("ready b", ready, err)
	q := scriptRecord("b", wire.QuarantineUnproven)
	s.note("quarantine of an older entry", 0, r.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: intent}, q))
	s.note("quarantine", 0, r.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: ready}, q))
	entry, record := s.stand(r, "b")
	s.note("quarantine again", 0, w.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: ready}, q))
	s.note("quarantine for another reason", 0, w.Quarantine(ctx, entry, scriptRecord("b", wire.QuarantineOwnerGone)))
	s.stand(r, "b")
	rec.State, rec.Tenant, rec.Uses = wire.LeaseInUse, "t", 1
	lost, err := w.Update(ctx, rec, ready)
	s.note("used in quarantine", lost, err)
	s.note("finished in quarantine", 0, w.Finish(ctx, finished(rec), ready))
	held := record.Record
	held.State = wire.OnHold
	seq, err := r.Update(ctx, held, record.Seq)
	s.note("held", seq, err)
	s.note("resolved against the older record", 0, r.Resolve(ctx, ended(record.Record), record.Seq))
	s.note("resolved", 0, r.Resolve(ctx, ended(record.Record), seq))
	s.note("resolved again", 0, r.Resolve(ctx, ended(record.Record), seq))
	s.stand(r, "b")
	s.note("quarantine after its end", 0, w.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: ready}, q))
	later := q
	later.FirstSeen = later.FirstSeen.Add(time.Hour)
	s.note("later quarantine by an older entry", 0, w.Quarantine(ctx, bus.StoredLease{Record: rec, Seq: ready}, later))
	entry, _ = s.stand(r, "b")
	s.note("it reappears", 0, r.Quarantine(ctx, entry, scriptRecord("b", wire.QuarantineReappeared)))
	s.stand(r, "b")
	list, err := r.Leases(ctx, "p")
	s.note("entries", 0, err, len(list), list[0].Record.Lease)
}

// alone is records of leases without an entry.
func (s *scribe) alone(w shelf, r reaper.Books) {
	ctx := s.t.Context()
	q := scriptRecord("c", wire.QuarantineUnproven)
	s.note("put", 0, w.Put(ctx, q))
	s.note("put again", 0, w.Put(ctx, scriptRecord("c", wire.QuarantineOwnerGone)))
	s.note("reopened while open", 0, w.PutOrReopen(ctx, scriptRecord("c", wire.QuarantineOwnerGone)))
	_, record := s.stand(r, "c")
	s.note("resolved c", 0, r.Resolve(ctx, ended(record.Record), record.Seq))
	s.note("put after the end", 0, w.Put(ctx, scriptRecord("c", wire.QuarantineOwnerGone)))
	s.note("its own record again", 0, w.PutOrReopen(ctx, q))
	s.stand(r, "c")
	s.note("unowned", 0, r.Unowned(ctx, scriptRecord("c", wire.QuarantineUnowned)))
	s.stand(r, "c")
	s.note("reappeared c", 0, r.Unowned(ctx, scriptRecord("c", wire.QuarantineReappeared)))
	_, record = s.stand(r, "c")
	s.note("resolved c once more", 0, r.Resolve(ctx, ended(record.Record), record.Seq))
	s.note("reopened", 0, w.PutOrReopen(ctx, scriptRecord("c", wire.QuarantineDestroyFailed)))
	s.stand(r, "c")
	list, err := r.QuarantinedOn(ctx, "p", "h")
	s.note("records", 0, err, len(list), list[len(list)-1].Record.Lease)
}

// deliveries are what a reaper is told.
func (s *scribe) deliveries(w shelf, r reaper.Books) {
	ctx := s.t.Context()
	queue, err := r.Queue(ctx, "p", "h")
	require.NoError(s.t, err)
	defer func() { require.NoError(s.t, queue.Close()) }()
	fetch := func(what string) *bus.Delivery {
		list, err := queue.Fetch(ctx, 1, 200*time.Millisecond)
		if len(list) == 0 {
			s.note(what, 0, err, "nothing")
			return nil
		}
		d := list[0]
		s.note(what, 0, err, d.Record.Lease, d.Record.State, d.Deliveries, d.Err)
		return d
	}
	for range 3 {
		d := fetch("delivery")
		s.note("ack", 0, d.Ack(ctx))
	}
	fetch("after all are acknowledged")
	require.NoError(s.t, w.Put(ctx, scriptRecord("d", wire.QuarantineUnproven)))
	d := fetch("a new record")
	fetch("it is out")
	s.note("in progress", 0, d.InProgress(ctx))
	s.note("nak", 0, d.NakDelay(ctx, 20*time.Millisecond))
	d = fetch("once more")
	_, record := s.stand(r, "d")
	held := record.Record
	held.State = wire.OnHold
	_, err = r.Update(ctx, held, record.Seq)
	s.note("held d", 0, err)
	newer := fetch("the held one")
	s.note("ack of the older", 0, d.Ack(ctx))
	s.note("ack of the newer", 0, newer.Ack(ctx))
	fetch("nothing is left")
}
