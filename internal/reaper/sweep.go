package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// maxMoves bounds what one sweep puts into quarantine: books that were lost must
// not end a whole account at once. What is over waits for the next sweep.
const maxMoves = 256

// sweeper looks for sandboxes that nobody owns any more, and puts them into
// quarantine. It only moves records, each against the sequence that it read, so
// several may sweep the same books. What it has not seen completely it decides
// nothing about.
type sweeper struct {
	*source

	// epochs has, for each worker that is said to live, the record that was seen
	// last and since when it has stood there, intents the same for each entry that
	// waits for its sandbox; absent since when an owner has been
	// without a record, strays since when a sandbox has been without an owner. All
	// by this process's monotonic clock: another one's says nothing.
	epochs  map[string]sighting
	intents map[string]sighting
	absent  map[owner]time.Time
	strays  map[string]stray
}

// stray is a sandbox without an owner; gone says that the books called it destroyed
// at since. An inventory may be older than that, so only one that is taken later
// proves them wrong.
type stray struct {
	since time.Time
	gone  bool
	// settled says that it was found to be owned, or in quarantine, at the last look.
	settled bool
}

// sighting is which record was seen, and since when it has stood.
type sighting struct {
	seq   uint64
	since time.Time
}

// at is the sighting of what is at seq now: an older one where it has stood since.
func (s sighting) at(seq uint64) sighting {
	if s.seq == seq {
		return s
	}
	return sighting{seq, time.Now()}
}

// owner is one start of one worker.
type owner struct{ worker, epoch string }

// fate is what is known of an owner.
type fate int

const (
	fateUnknown fate = iota
	fateAlive
	fateGone
)

func newSweeper(s *source) *sweeper {
	return &sweeper{source: s, absent: map[owner]time.Time{}, strays: map[string]stray{}}
}

// run sweeps, now and from time to time, until ctx ends.
func (w *sweeper) run(ctx context.Context) {
	fault := ""
	w.r.book.sweeping(w.source)
	for {
		err := w.sweep(ctx)
		if ctx.Err() != nil {
			return
		}
		w.r.book.swept(w.source, err == nil, w.suspects())
		fault = w.changed(fault, err, "sweep incomplete, what was not seen is left alone", "sweeps are complete again")
		if pause(ctx, w.r.cfg.SweepInterval) != nil {
			return
		}
	}
}

// sweep takes one look at the inventory and the books. The order matters: an intent
// is written before its sandbox is asked for, and an epoch before the first intent.
// So every sandbox in the inventory had its entry, and every entry its epoch, before
// the next of the three is read.
func (w *sweeper) sweep(ctx context.Context) error {
	provider := w.r.providers[w.provider]
	ctx, cancel := context.WithTimeout(ctx, w.r.cfg.SweepTimeout)
	defer cancel()
	handles, inventoryErr := provider.Inventory(ctx)
	if inventoryErr != nil {
		inventoryErr = fmt.Errorf("inventory: %w", inventoryErr)
	}
	entries, err := w.r.books.Leases(ctx, w.provider)
	if err != nil {
		// An owner that could not be observed must not look like one that was silent.
		w.epochs = nil
		return errors.Join(inventoryErr, fmt.Errorf("ledger: %w", err))
	}
	moves := maxMoves
	err = w.owners(ctx, entries, &moves)
	if inventoryErr != nil {
		return errors.Join(err, inventoryErr)
	}
	return errors.Join(err, w.inventory(ctx, handles, entries, &moves))
}

// owners moves the entries of dead workers, and intents that a living one did not
// confirm.
func (w *sweeper) owners(ctx context.Context, entries []bus.StoredLease, moves *int) error {
	epochs, err := w.r.books.Epochs(ctx)
	if err != nil {
		w.epochs = nil
		return fmt.Errorf("epochs: %w", err)
	}
	living := w.observe(ctx, epochs)
	missing, intents := map[owner]time.Time{}, map[string]sighting{}
	var faults []error
	for i := range entries {
		rec := &entries[i].Record
		if rec.Host != w.host && w.host != bus.AnyHost {
			continue
		}
		switch rec.State {
		case wire.LeaseQuarantined, wire.LeaseDestroyed:
			continue
		case wire.LeaseIntent, wire.LeaseReady, wire.LeaseInUse:
		}
		switch w.fate(owner{rec.Worker, rec.Epoch}, living, missing) {
		case fateGone:
			faults = append(faults, w.move(ctx, moves, entries[i], wire.QuarantineOwnerGone,
				wire.Message("its worker %s is gone, the lease was %s", rec.Worker, rec.State)))
		case fateAlive:
			if rec.State != wire.LeaseIntent {
				continue
			}
			intents[rec.Lease] = w.intents[rec.Lease].at(entries[i].Seq)
			if age := time.Since(intents[rec.Lease].since); age > w.r.cfg.CreateDeadline {
				faults = append(faults, w.move(ctx, moves, entries[i], wire.QuarantineStaleIntent,
					wire.Message("worker %s has not confirmed it within %s", rec.Worker, age.Round(time.Second))))
			}
		case fateUnknown:
		}
	}
	w.absent, w.intents = missing, intents
	return errors.Join(faults...)
}

// observe compares the epochs with what was seen before, and returns who lives. An
// epoch that was not renewed for its lapse is ended, against the sequence at which it
// stood still: its worker, if it comes back, finds that it has lost it.
func (w *sweeper) observe(ctx context.Context, epochs []bus.StoredEpoch) map[string]bus.StoredEpoch {
	living := make(map[string]bus.StoredEpoch, len(epochs))
	seen := make(map[string]sighting, len(epochs))
	for _, e := range epochs {
		if e.Record.State == wire.EpochAlive {
			was := w.epochs[e.Record.Worker].at(e.Seq)
			seen[e.Record.Worker] = was
			if time.Since(was.since) > e.Record.Lapse() && w.end(ctx, e) {
				e.Record.State = wire.EpochEnded
			}
		}
		living[e.Record.Worker] = e
	}
	w.epochs = seen
	return living
}

// end ends a lapsed epoch; false where it is not ours to end, or cannot be ended now.
func (w *sweeper) end(ctx context.Context, e bus.StoredEpoch) bool {
	ended := e.Record
	ended.State = wire.EpochEnded
	_, err := w.r.books.PutEpoch(ctx, ended, e.Seq)
	if err != nil {
		if !errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
			w.log.Warn().Err(err).Str("owner", e.Record.Worker).Msg("lapsed epoch not ended yet")
		}
		return false
	}
	w.log.Warn().Str("owner", e.Record.Worker).Str("owner_host", e.Record.Host).Dur("silent", e.Record.Lapse()).
		Msg("worker is gone: its epoch was not renewed")
	return true
}

// fate says what is known of an entry's owner. One without a record is gone after two
// looks; missing notes those without.
func (w *sweeper) fate(o owner, living map[string]bus.StoredEpoch, missing map[owner]time.Time) fate {
	e, known := living[o.worker]
	switch {
	case known && e.Record.Epoch == o.epoch && e.Record.State == wire.EpochAlive:
		return fateAlive
	case known:
		return fateGone // ended, or the worker's id has started again
	}
	now := time.Now()
	since, before := w.absent[o]
	if !before {
		since = now
	}
	missing[o] = since
	if now.Sub(since) < w.r.cfg.SweepInterval {
		return fateUnknown
	}
	return fateGone
}

// inventory moves what exists and nobody owns, after two looks.
func (w *sweeper) inventory(ctx context.Context, handles []sandbox.Handle, entries []bus.StoredLease, moves *int) error {
	now := time.Now()
	states := make(map[string]wire.LeaseRecordState, len(entries))
	for i := range entries {
		states[entries[i].Record.Lease] = entries[i].Record.State
	}
	strays := map[string]stray{}
	var faults []error
	for _, h := range handles {
		if h.Provider != w.provider || owned(states[h.Lease]) {
			continue
		}
		was, before := w.strays[h.Lease]
		if gone := states[h.Lease] == wire.LeaseDestroyed; !before || gone && !was.gone {
			strays[h.Lease] = stray{since: now, gone: gone}
			continue
		}
		if now.Sub(was.since) < w.r.cfg.SweepInterval {
			strays[h.Lease] = was
			continue
		}
		settled, gone, err := w.examine(ctx, h, was, moves)
		was.settled = settled
		if gone && !was.gone {
			was = stray{since: time.Now(), gone: true}
		}
		strays[h.Lease] = was
		faults = append(faults, err)
	}
	w.strays = strays
	return errors.Join(faults...)
}

// suspects counts the strays that wait for another look.
func (w *sweeper) suspects() (n int) {
	for _, s := range w.strays {
		if !s.settled {
			n++
		}
	}
	return n
}

// owned says that a worker answers for the sandbox.
func owned(s wire.LeaseRecordState) bool {
	switch s {
	case wire.LeaseIntent, wire.LeaseReady, wire.LeaseInUse:
		return true
	case wire.LeaseQuarantined, wire.LeaseDestroyed:
	}
	return false
}

// examine looks closer at a sandbox that two looks found without an owner: absence
// from a listing proves nothing, what the leader says of the lease does. settled
// says that it is owned, or in quarantine, gone that the books call it destroyed.
func (w *sweeper) examine(ctx context.Context, h sandbox.Handle, was stray, moves *int) (settled, gone bool, err error) {
	entry, err := w.r.books.Lease(ctx, h.Provider, h.Lease)
	if err != nil && !errors.Is(err, bus.ErrNoRecord) {
		return false, false, fmt.Errorf("lease %s: %w", h.Lease, err)
	}
	if err == nil && owned(entry.Record.State) {
		return true, false, nil
	}
	record, err := w.r.books.Quarantined(ctx, h.Provider, h.Host, h.Lease)
	switch {
	case err != nil && !errors.Is(err, bus.ErrNoRecord):
		return false, false, fmt.Errorf("quarantine of %s: %w", h.Lease, err)
	case err == nil && record.Record.State != wire.Gone:
		return true, false, nil
	}
	q := wire.Quarantine{
		V: wire.Version, State: wire.InQuarantine, Lease: h.Lease, Provider: h.Provider, Host: h.Host, Handle: h.Detail,
		Reason: wire.QuarantineUnowned, FirstSeen: was.since.UTC(), Message: "it carries our mark, and no ledger entry owns it",
	}
	if entry != nil || record != nil {
		if !was.gone {
			return false, true, nil
		}
		q.Reason, q.Message = wire.QuarantineReappeared, "the books say that it is destroyed, and it is there"
	}
	write := func() error { return w.r.books.Unowned(ctx, q) }
	if entry != nil {
		q.Worker, q.Tenant, q.Job = entry.Record.Worker, entry.Record.Tenant, entry.Record.Job
		write = func() error { return w.r.books.Quarantine(ctx, *entry, q) }
	}
	err = w.put(moves, q, write)
	return err == nil, false, err
}

// move puts an entry's lease into quarantine.
func (w *sweeper) move(ctx context.Context, moves *int, entry bus.StoredLease, reason wire.QuarantineReason, why string) error {
	rec := entry.Record
	q := wire.Quarantine{
		V: wire.Version, State: wire.InQuarantine, Lease: rec.Lease, Provider: rec.Provider, Host: rec.Host, Handle: rec.Handle,
		Worker: rec.Worker, Tenant: rec.Tenant, Job: rec.Job, Reason: reason, Message: why, FirstSeen: time.Now().UTC(),
	}
	return w.put(moves, q, func() error { return w.r.books.Quarantine(ctx, entry, q) })
}

// put writes within the bound, and accounts for it.
func (w *sweeper) put(moves *int, q wire.Quarantine, write func() error) error {
	if *moves <= 0 {
		return fmt.Errorf("lease %s: more than %d leases in one sweep, the others wait for the next", q.Lease, maxMoves)
	}
	err := write()
	switch {
	case errors.Is(err, bus.ErrConflict):
		return nil // it has moved: the next sweep sees where to
	case err != nil:
		return fmt.Errorf("quarantine of %s: %w", q.Lease, err)
	}
	*moves--
	w.r.book.moved(q.Reason)
	w.log.Warn().Str("lease", q.Lease).Str("tenant", q.Tenant).Str("job", q.Job).Str("owner", q.Worker).
		Str("reason", string(q.Reason)).Msg("lease without an owner put into quarantine")
	return nil
}
