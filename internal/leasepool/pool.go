package leasepool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// The errors of Acquire, beside the provider's own and the cause of an ended
// context.
var (
	// ErrNoCapacity means that no sandbox became free in time; as a
	// *NoCapacityError it says what holds the capacity.
	ErrNoCapacity = errors.New("no lease became free")
	// ErrClosed means that the pool is shutting down.
	ErrClosed = errors.New("the lease pool is closed")
	// ErrUnknownProfile means that no profile has that name.
	ErrUnknownProfile = errors.New("unknown profile")
)

// NoCapacityError is an ErrNoCapacity that says what holds the capacity.
type NoCapacityError struct {
	// Waited is how long the caller waited.
	Waited time.Duration
	// Stats is what the pool looked like at the end of the wait.
	Stats Stats
}

func (e *NoCapacityError) Error() string {
	return fmt.Sprintf("%v within %s: %s", ErrNoCapacity, e.Waited.Round(time.Millisecond), e.Stats)
}

// Is makes it an ErrNoCapacity.
func (e *NoCapacityError) Is(target error) bool { return target == ErrNoCapacity }

// Pool hands out leases.
type Pool struct {
	quarantiner Quarantiner
	log         zerolog.Logger
	cfg         Config
	// woken has room for one word that the books have changed.
	woken chan struct{}
	// tasks are the goroutines of Run.
	tasks sync.WaitGroup

	mu      sync.Mutex
	books   *books // guarded by mu
	started bool   // guarded by mu
}

// New makes a pool that hands out leases once Run runs. It returns all mistakes
// of cfg at once.
func New(quarantiner Quarantiner, log zerolog.Logger, cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("lease pool: %w", err)
	}
	return &Pool{quarantiner: quarantiner, log: log, cfg: cfg, woken: make(chan struct{}, 1), books: newBooks(cfg)}, nil
}

// lock returns the unlocker, which wakes Run where there is work for it.
func (p *Pool) lock() (unlock func()) {
	p.mu.Lock()
	return func() {
		wake := p.books.wake
		p.books.wake = false
		p.mu.Unlock()
		if wake {
			select {
			case p.woken <- struct{}{}:
			default:
			}
		}
	}
}

// update changes the books and lets who waits profit from it.
func (p *Pool) update(change func(b *books, now time.Time)) {
	defer p.lock()()
	now := time.Now()
	change(p.books, now)
	p.books.balance(now)
}

// Acquire hands out a lease for want: an idle one of the same tenant and profile,
// a warm spare, or a new one, for which an idle lease of others is destroyed
// where the capacity is used up. It waits in turn, at most AcquireTimeout (longer
// where the provider says so: Capabilities.Patience), and
// returns an error that is ErrNoCapacity, ErrClosed, ErrUnknownProfile, the
// provider's (a *sandbox.Error), or the cause of ctx's end. A lease that comes at
// the moment in which ctx ends is returned. The caller owes one Release for each
// lease.
//
// A lease of a sandbox that outlives the worker is handed out only once its use is
// noted in the ledger; where that fails, the lease stays idle and the error is a
// *sandbox.Error of kind Unavailable.
func (p *Pool) Acquire(ctx context.Context, want Want) (*Lease, error) {
	began := time.Now()
	l, err := p.await(ctx, want, began, false)
	for err == nil && l.entry.profile.ledger {
		taken, failure := p.mark(ctx, l, want)
		if taken {
			break
		}
		if failure != nil {
			return nil, failure
		}
		l, err = p.await(ctx, want, began, true)
	}
	return l, err
}

// await waits for a lease until AcquireTimeout after began.
func (p *Pool) await(ctx context.Context, want Want, began time.Time, again bool) (*Lease, error) {
	w, lease, err := p.request(want, began, again)
	if w == nil {
		return lease, err
	}
	timeout := time.NewTimer(time.Until(began.Add(w.profile.bounds.acquire)))
	defer timeout.Stop()
	select {
	case answer := <-w.served:
		return answer.lease, answer.err
	case <-timeout.C:
	case <-ctx.Done():
	}
	defer p.lock()()
	select {
	case answer := <-w.served:
		return answer.lease, answer.err
	default:
	}
	b := p.books
	b.waiters = slices.DeleteFunc(b.waiters, func(other *waiter) bool { return other == w })
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for a lease: %w", context.Cause(ctx))
	}
	b.totals.Timeouts++
	return nil, &NoCapacityError{Waited: time.Since(began), Stats: b.stats()}
}

// request answers at once where it can, else it lines up: in front of all others
// where the lease that it got first was none.
func (p *Pool) request(want Want, began time.Time, again bool) (*waiter, *Lease, error) {
	defer p.lock()()
	b, now := p.books, time.Now()
	prof, known := b.byName[want.Profile]
	switch {
	case b.closed:
		return nil, nil, ErrClosed
	case !known:
		return nil, nil, fmt.Errorf("%w %q", ErrUnknownProfile, want.Profile)
	case again && now.Sub(began) >= prof.bounds.acquire:
		b.totals.Timeouts++
		return nil, nil, &NoCapacityError{Waited: now.Sub(began), Stats: b.stats()}
	case want.Tenant == "":
		return nil, nil, errors.New("acquire a lease: a tenant is needed")
	}
	if len(b.waiters) == 0 || again {
		if e := b.take(want, prof, now); e != nil {
			return nil, b.hand(e, want, now), nil
		}
	}
	if !again && len(b.waiters) >= p.cfg.MaxWaiters {
		b.totals.Timeouts++
		return nil, nil, &NoCapacityError{Stats: b.stats()}
	}
	w := &waiter{want: want, profile: prof, served: make(chan grant, 1)}
	if again {
		b.waiters = slices.Insert(b.waiters, 0, w)
	} else {
		b.waiters = append(b.waiters, w)
		b.totals.Waits++
	}
	b.balance(now)
	return w, nil, nil
}

// Release takes a lease back and decides at once what becomes of it; what has to
// be done then is done in the background. It never blocks. A second Release of
// the same lease panics: it could be another job's by then.
func (p *Pool) Release(l *Lease, v Verdict) Released {
	defer p.lock()()
	if l.released {
		panic("leasepool: lease " + l.id + " was released twice")
	}
	l.released = true
	return p.books.release(l.entry, v, time.Now())
}

// Gone reports that a lease in quarantine was proven gone; its capacity is free
// again. It returns false, and changes nothing, where the proof proves nothing,
// the lease is not known (any more) or not in quarantine.
func (p *Pool) Gone(leaseID string, proof sandbox.Proof) bool {
	gone := false
	p.update(func(b *books, now time.Time) {
		e, known := b.leases[leaseID]
		if !known || !proof.Proven {
			return
		}
		if _, err := sandbox.Next(e.state, sandbox.EventReaped); err != nil {
			return
		}
		b.step(e, sandbox.EventReaped, now)
		gone = e.state == sandbox.LeaseGone
		if gone {
			b.totals.Reaped++
		}
	})
	return gone
}

// Ready is nil where a lease can be had, now or after others are released, and
// says why not otherwise: the pool does not run, all its capacity stands in
// quarantine or in calls that do not return, or no profile's sandboxes can be
// made. In the last case it is nil again from time to time, so that a job tries.
func (p *Pool) Ready() error {
	defer p.lock()()
	b, now := p.books, time.Now()
	switch {
	case b.closed:
		return ErrClosed
	case !p.started:
		return errors.New("the lease pool does not run yet")
	}
	held := b.states[sandbox.LeaseAbandoned] + b.states[sandbox.LeasePoisoned] + b.states[sandbox.LeaseQuarantined]
	if held >= p.cfg.Capacity {
		return fmt.Errorf("no lease can be had: %s", b.stats())
	}
	if b.states[sandbox.LeaseIdle]+b.states[sandbox.LeaseInUse]+b.states[sandbox.LeaseResetting] > 0 {
		return nil
	}
	var failing []error
	for _, prof := range b.profiles {
		if prof.failed == nil || !now.Before(prof.retryAt) {
			return nil
		}
		failing = append(failing, fmt.Errorf("profile %q: %w", prof.Name, prof.failed))
	}
	return fmt.Errorf("no sandbox can be made: %w", errors.Join(failing...))
}
