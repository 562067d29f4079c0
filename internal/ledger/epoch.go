package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// DefaultBound is within which a worker renews its epoch: others count it out
// after twice that.
const DefaultBound = time.Minute

// minBound leaves room for a request that is lost and made again.
const minBound = time.Second

// Config names the worker.
type Config struct {
	// Worker, Host and Version say who it is; the first two are tokens.
	Worker, Host, Version string
	// Bound is within which the epoch is renewed, at least 1 s; default a minute.
	Bound time.Duration
	// OnLapse is called when the epoch has lapsed, before another begins: every
	// lease of it has to go. It must not block.
	OnLapse func()
}

func (c Config) withDefaults() (Config, error) {
	if c.Bound == 0 {
		c.Bound = DefaultBound
	}
	if c.OnLapse == nil {
		c.OnLapse = func() {}
	}
	var faults []error
	for name, word := range map[string]string{"worker": c.Worker, "host": c.Host} {
		if !wire.ValidToken(word) {
			faults = append(faults, fmt.Errorf("%s: %q is not a token", name, word))
		}
	}
	if c.Bound < minBound {
		faults = append(faults, fmt.Errorf("bound: %s is below %s", c.Bound, minBound))
	}
	return c, errors.Join(faults...)
}

// epoch is a worker's sign of life. Its token stands in every entry that is
// written under it.
type epoch struct {
	mu sync.Mutex
	// rec is the record as written last; the zero value before the first.
	rec wire.EpochRecord
	seq uint64
	// renewed is when the last acknowledged write was begun, with its monotonic
	// reading; zero means that there is no epoch now.
	renewed time.Time
}

// current is the token of the epoch that holds now.
func (k *Keeper) current() (string, error) {
	e := &k.epoch
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.renewed.IsZero() || k.overdue(time.Now()) {
		return "", ErrLapsed
	}
	return e.rec.Epoch, nil
}

// overdue is called with the epoch's lock held. The monotonic clock stands still
// while the machine sleeps, the other one may be set: either is enough.
func (k *Keeper) overdue(now time.Time) bool {
	renewed := k.epoch.renewed
	return now.Sub(renewed) >= k.cfg.Bound || now.Round(0).Sub(renewed.Round(0)) >= k.cfg.Bound
}

// Ready is nil while the epoch holds.
func (k *Keeper) Ready() error {
	_, err := k.current()
	return err
}

// beginTries is how often the first epoch is written before the worker does not start.
const beginTries = 3

// Begin writes the first epoch.
func (k *Keeper) Begin(ctx context.Context) error {
	var err error
	for range beginTries {
		if err = k.renew(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write this worker's epoch into the ledger: %w", err)
	}
	return nil
}

// Run renews the epoch until ctx ends, and then says that it has ended. It returns
// an error where that cannot be written: the entries are taken for a dead worker's
// once the epoch is too old.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.cfg.Bound / 4)
	defer tick.Stop()
	for broken := false; ; {
		select {
		case <-ctx.Done():
			return k.finish(ctx)
		case <-tick.C:
		}
		err := k.keep(ctx)
		if err != nil && ctx.Err() == nil && !broken {
			k.log.Error().Err(err).Msg("this worker's epoch in the ledger cannot be renewed")
		}
		broken = err != nil
	}
}

// keep renews the epoch, or begins another after it has lapsed.
func (k *Keeper) keep(ctx context.Context) error {
	k.lapse(false)
	err := k.renew(ctx)
	if errors.Is(err, bus.ErrConflict) {
		k.lapse(true)
	}
	return err
}

// lapse ends an epoch that is overdue, or that surely is not ours any more.
func (k *Keeper) lapse(surely bool) {
	e := &k.epoch
	e.mu.Lock()
	lapsed := !e.renewed.IsZero() && (surely || k.overdue(time.Now()))
	if lapsed {
		e.renewed = time.Time{}
	}
	token := e.rec.Epoch
	e.mu.Unlock()
	if lapsed {
		k.log.Error().Str("epoch", token).Msg("this worker's epoch has lapsed: every sandbox that outlives it is dropped")
		k.cfg.OnLapse()
	}
}

// renew writes the next record of the epoch, or the first one of another.
func (k *Keeper) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Bound/4)
	defer cancel()
	e := &k.epoch
	e.mu.Lock()
	rec, seq, fresh := e.rec, e.seq, e.renewed.IsZero()
	e.mu.Unlock()
	begun := time.Now()
	if fresh {
		rec = wire.EpochRecord{
			V: wire.Version, State: wire.EpochAlive, Worker: k.cfg.Worker, Epoch: strings.ToLower(ulid.Make().String()),
			Host: k.cfg.Host, Version: k.cfg.Version, Started: begun.UTC(), BoundMS: k.cfg.Bound.Milliseconds(),
		}
		found, err := k.books.GetEpoch(ctx, k.cfg.Worker)
		switch {
		case errors.Is(err, bus.ErrNoRecord):
			seq = 0
		case err != nil:
			return err
		default:
			seq = found.Seq
		}
	} else {
		rec.Renewals++
	}
	seq, err := k.books.PutEpoch(ctx, rec, seq)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.rec, e.seq, e.renewed = rec, seq, begun
	return nil
}

// finish says that the epoch has ended, so that nobody waits for it to lapse.
func (k *Keeper) finish(ctx context.Context) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	e := &k.epoch
	e.mu.Lock()
	rec, seq := e.rec, e.seq
	e.renewed = time.Time{}
	e.mu.Unlock()
	rec.State = wire.EpochEnded
	if _, err := k.books.PutEpoch(ctx, rec, seq); err != nil && !errors.Is(err, bus.ErrConflict) {
		return fmt.Errorf("say in the ledger that this worker has ended (it counts as dead in %s): %w", 2*k.cfg.Bound, err)
	}
	return nil
}
