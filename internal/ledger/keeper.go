package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// Books are the durable books, as *bus.Ledger keeps them.
type Books interface {
	Intend(ctx context.Context, rec wire.LeaseRecord) (uint64, error)
	Update(ctx context.Context, rec wire.LeaseRecord, expect uint64) (uint64, error)
	Finish(ctx context.Context, rec wire.LeaseRecord, expect uint64) error
	Get(ctx context.Context, provider, lease string) (*bus.StoredLease, error)
	Quarantine(ctx context.Context, entry bus.StoredLease, q wire.Quarantine) error
	PutEpoch(ctx context.Context, rec wire.EpochRecord, expect uint64) (uint64, error)
	GetEpoch(ctx context.Context, worker string) (*bus.StoredEpoch, error)
}

// ErrLapsed means that this worker has no epoch now: it may not make or use a
// sandbox that outlives it.
var ErrLapsed = errors.New("this worker's epoch in the ledger has lapsed")

// Keeper writes one worker's entries and its epoch.
type Keeper struct {
	books Books
	log   zerolog.Logger
	cfg   Config

	mu      sync.Mutex
	entries map[string]*entry // by lease: those that this worker has to end

	epoch epoch // has its own lock
}

// entry is one lease's entry as this worker wrote it last.
type entry struct {
	// turn has room for the one who writes. It is no mutex, because it is held over
	// the write: who waits for it gives up with its context.
	turn chan struct{}
	bus.StoredLease
	// end is the terminal record, kept so that a repeated write has the same bytes.
	end *wire.LeaseRecord
}

func (e *entry) take(ctx context.Context) error {
	select {
	case e.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another write of the entry: %w", context.Cause(ctx))
	}
}

func (e *entry) give() { <-e.turn }

// New makes a keeper. All mistakes in cfg are reported at once.
func New(books Books, log zerolog.Logger, cfg Config) (*Keeper, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return &Keeper{books: books, log: log, cfg: cfg, entries: map[string]*entry{}}, nil
}

// Intend implements leasepool.Ledger.
func (k *Keeper) Intend(ctx context.Context, h sandbox.Handle, profile string) error {
	token, err := k.current()
	if err != nil {
		return err
	}
	rec := wire.LeaseRecord{
		V: wire.Version, State: wire.LeaseIntent, Lease: h.Lease, Provider: h.Provider, Host: h.Host, Profile: profile,
		Worker: k.cfg.Worker, Epoch: token, Handle: h.Detail, Intended: time.Now().UTC(),
	}
	seq, err := k.books.Intend(ctx, rec)
	// After an error it may stand there all the same, with no sequence that we know.
	k.mu.Lock()
	defer k.mu.Unlock()
	k.entries[h.Lease] = &entry{turn: make(chan struct{}, 1), StoredLease: bus.StoredLease{Record: rec, Seq: seq}}
	if err == nil && !k.holds(token) {
		err = ErrLapsed // this process stood still while it wrote
	}
	return err
}

// Confirm implements leasepool.Ledger.
func (k *Keeper) Confirm(ctx context.Context, h sandbox.Handle) error {
	return k.change(ctx, h.Lease, func(rec *wire.LeaseRecord) {
		rec.State, rec.Handle = wire.LeaseReady, h.Detail
	})
}

// Use implements leasepool.Ledger.
func (k *Keeper) Use(ctx context.Context, lease string, u leasepool.Use) error {
	return k.change(ctx, lease, func(rec *wire.LeaseRecord) {
		rec.State, rec.Tenant, rec.Job, rec.Uses = wire.LeaseInUse, u.Tenant, u.Job, u.Use
	})
}

// change writes an entry against its last sequence. It is overtaken where the
// epoch that the lease was made in is not this worker's any more.
func (k *Keeper) change(ctx context.Context, lease string, set func(*wire.LeaseRecord)) error {
	e := k.entry(lease)
	if e == nil {
		return fmt.Errorf("lease %s has no entry of this worker: %w", lease, leasepool.ErrOvertaken)
	}
	token, err := k.current()
	if err != nil {
		return err
	}
	if err := e.take(ctx); err != nil {
		return err
	}
	defer e.give()
	if e.Record.Epoch != token || e.end != nil {
		return fmt.Errorf("lease %s is of an earlier epoch: %w", lease, leasepool.ErrOvertaken)
	}
	if err := k.rewrite(ctx, e, set); err != nil {
		return err
	}
	if !k.holds(token) {
		// This process stood still while it wrote: others take the lease next.
		return fmt.Errorf("lease %s: %w: %w", lease, leasepool.ErrOvertaken, ErrLapsed)
	}
	return nil
}

// holds says that an epoch is still the one that holds.
func (k *Keeper) holds(token string) bool {
	now, err := k.current()
	return err == nil && now == token
}

// rewrite updates an entry, again where an earlier write whose outcome was not known
// stands there.
func (k *Keeper) rewrite(ctx context.Context, e *entry, set func(*wire.LeaseRecord)) error {
	err := k.update(ctx, e, set)
	if !errors.Is(err, bus.ErrConflict) {
		return err
	}
	state, own, err := k.reread(ctx, e)
	switch {
	case err != nil:
		return err
	case !own:
		return fmt.Errorf("lease %s is %s: %w", e.Record.Lease, state, leasepool.ErrOvertaken)
	}
	if err = k.update(ctx, e, set); errors.Is(err, bus.ErrConflict) {
		return fmt.Errorf("lease %s: %w: %w", e.Record.Lease, leasepool.ErrOvertaken, err)
	}
	return err
}

func (k *Keeper) update(ctx context.Context, e *entry, set func(*wire.LeaseRecord)) error {
	rec := e.Record
	set(&rec)
	seq, err := k.books.Update(ctx, rec, e.Seq)
	if err == nil {
		e.Record, e.Seq = rec, seq
	}
	return err
}

// reread looks how an entry stands, LeaseDestroyed where there is none (any more),
// and takes it where it is still this worker's own: nobody else writes one that is
// neither in quarantine nor ended.
func (k *Keeper) reread(ctx context.Context, e *entry) (state wire.LeaseRecordState, own bool, err error) {
	found, err := k.books.Get(ctx, e.Record.Provider, e.Record.Lease)
	switch {
	case errors.Is(err, bus.ErrNoRecord):
		return wire.LeaseDestroyed, false, nil
	case err != nil:
		return "", false, err
	}
	state = found.Record.State
	own = found.Record.Worker == e.Record.Worker && found.Record.Epoch == e.Record.Epoch &&
		state != wire.LeaseQuarantined && state != wire.LeaseDestroyed
	if own {
		e.StoredLease, e.end = *found, nil
	}
	return state, own, nil
}

// Destroyed implements leasepool.Ledger. Where somebody else has decided about the
// lease meanwhile, its end is theirs to write.
func (k *Keeper) Destroyed(ctx context.Context, lease string, proof sandbox.Proof) error {
	e := k.entry(lease)
	if e == nil {
		return nil // never written, or ended before
	}
	if err := e.take(ctx); err != nil {
		return err
	}
	defer e.give()
	_, err := k.decide(ctx, e, func() error { return k.end(ctx, e, proof) })
	if err == nil {
		k.forget(lease)
	}
	return err
}

func (k *Keeper) end(ctx context.Context, e *entry, proof sandbox.Proof) error {
	if e.end == nil {
		now := time.Now().UTC()
		end := e.Record
		end.State, end.DestroyedAt, end.Evidence = wire.LeaseDestroyed, &now, evidence(proof.Evidence)
		e.end = &end
	}
	return k.books.Finish(ctx, *e.end, e.Seq)
}

// decide makes the last write to an entry: to the entry as it stands, where what we
// know is older. Where another has decided about the lease, it writes nothing and
// returns what the entry says.
func (k *Keeper) decide(ctx context.Context, e *entry, write func() error) (wire.LeaseRecordState, error) {
	if e.Seq > 0 {
		if err := write(); !errors.Is(err, bus.ErrConflict) {
			return "", err
		}
	}
	state, own, err := k.reread(ctx, e)
	if err != nil || !own {
		return state, err
	}
	return "", write()
}

// Quarantine writes the quarantine record of a lease together with its entry. It
// returns false without an error where there is no entry, or one that has ended:
// then the record stands alone.
func (k *Keeper) Quarantine(ctx context.Context, lease string, q wire.Quarantine) (written bool, err error) {
	e := k.entry(lease)
	if e == nil {
		return false, nil
	}
	if err := e.take(ctx); err != nil {
		return false, err
	}
	defer e.give()
	state, err := k.decide(ctx, e, func() error { return k.books.Quarantine(ctx, e.StoredLease, q) })
	if err != nil {
		return false, err
	}
	k.forget(lease)
	return state != wire.LeaseDestroyed, nil
}

func (k *Keeper) entry(lease string) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[lease]
}

func (k *Keeper) forget(lease string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.entries, lease)
}

// Open counts the entries that this worker still has to end.
func (k *Keeper) Open() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.entries)
}

// evidence is what a record holds of it.
func evidence(all []sandbox.Evidence) []wire.Evidence {
	var list []wire.Evidence
	for _, e := range all[:min(len(all), wire.MaxEvidence)] {
		list = append(list, wire.Evidence{Kind: string(e.Kind), Detail: wire.Message("%s", e.Detail)})
	}
	return list
}
