package leasepool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// ErrOvertaken is a Ledger's answer that somebody else decided about a lease: it
// may not be used, only destroyed.
var ErrOvertaken = errors.New("somebody else decided about the lease")

// Ledger is the durable book of sandboxes that outlive their worker. Only leases
// of providers that say Capabilities.OutlivesWorker are written.
//
// A call returns soon after its context ends; calls for one lease come one after
// another, except that Destroyed may come beside any other one that does not
// return. An error that is not ErrOvertaken means that the entry may have been
// written or not.
type Ledger interface {
	// Intend is durable before Create is called: nothing is created after an error.
	Intend(ctx context.Context, h sandbox.Handle, profile string) error
	// Confirm notes the handle of the sandbox that was made. After ErrOvertaken it is
	// destroyed and never used. Repeated after an error.
	Confirm(ctx context.Context, h sandbox.Handle) error
	// Use marks the lease in use before each job. After ErrOvertaken it is never
	// used. Repeated for the same use after an error, perhaps for another tenant
	// where none had it before.
	Use(ctx context.Context, lease string, u Use) error
	// Destroyed ends the entry with evidence. It is idempotent: an entry that is not
	// there, has ended, or is the reaper's since it stands in quarantine, is nil.
	Destroyed(ctx context.Context, lease string, proof sandbox.Proof) error
}

// Use is one job's use of a lease.
type Use struct {
	Tenant, Job string
	// Use counts the jobs of this sandbox, from 1.
	Use int
}

// Disown drops every lease that stands in the ledger, since the worker may not
// call them its own any more: its epoch has lapsed. Once it returns, none of them
// is handed out: idle ones are destroyed, those in use serve nobody afterwards,
// those that are being made are destroyed when they come. Leases made after it are
// of the new epoch.
func (p *Pool) Disown() {
	p.update(func(b *books, now time.Time) { b.disown(now) })
}

// mark notes in the ledger that l is used, and says whether the caller has it.
// Without a failure somebody else decided about it, and another may be had.
func (p *Pool) mark(ctx context.Context, l *Lease, want Want) (taken bool, failure error) {
	err := p.inLedger(ctx, func(ctx context.Context) error {
		return p.cfg.Ledger.Use(ctx, l.id, Use{Tenant: want.Tenant, Job: want.Job, Use: l.use})
	})
	e := l.entry
	p.update(func(b *books, now time.Time) {
		switch {
		case errors.Is(err, ErrOvertaken):
			e.doubt.Message = err.Error()
			b.step(e, sandbox.EventOvertaken, now)
		case err != nil, b.closed:
			b.step(e, sandbox.EventUnmarked, now)
		default:
			taken = b.marked(e, want, now)
		}
	})
	switch {
	case taken || err == nil: // where the pool is closed, the next try says so
		return taken, nil
	case errors.Is(err, ErrOvertaken):
		p.logger(e).Warn().Err(err).Msg("a lease is not used any more")
		return false, nil
	case ctx.Err() != nil:
		return false, fmt.Errorf("note the use of a lease: %w", context.Cause(ctx))
	}
	return false, sandbox.Errorf(sandbox.Unavailable, "use", "note it in the ledger: %w", err)
}

// intend notes in the ledger that a sandbox will be made. On an error none may be
// made.
func (p *Pool) intend(ctx context.Context, e *entry) error {
	p.mu.Lock()
	unclosed := len(p.books.unclosed)
	e.intended = unclosed < p.cfg.maxUnclosed()
	p.mu.Unlock()
	if unclosed >= p.cfg.maxUnclosed() {
		return sandbox.Errorf(sandbox.Unavailable, "create",
			"%d sandboxes are gone whose entries the ledger does not take the end of", unclosed)
	}
	err := p.inLedger(ctx, func(ctx context.Context) error {
		return p.cfg.Ledger.Intend(ctx, e.handle, e.profile.Name)
	})
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "create", "note the intent in the ledger: %w", err)
	}
	defer p.lock()()
	if e.state != sandbox.LeaseCreating {
		return sandbox.Errorf(sandbox.Unavailable, "create", "not begun: nobody may use it any more")
	}
	return nil
}

// maxUnclosed bounds what waits for the ledger: far more than ends in the time of
// one call, and little enough to be kept.
func (c Config) maxUnclosed() int { return max(64, 4*c.Capacity) }

// confirm notes the handle of a new sandbox in the ledger, in the time that was
// there for making it.
func (p *Pool) confirm(ctx context.Context, e *entry) {
	ctx, cancel := context.WithDeadline(ctx, e.born.Add(e.profile.bounds.create))
	defer cancel()
	pauses := newPauses(publishPause)
	for {
		p.mu.Lock()
		wanted, handle := e.state == sandbox.LeaseConfirming, e.handle
		p.mu.Unlock()
		if !wanted {
			return
		}
		err := p.inLedger(ctx, func(ctx context.Context) error { return p.cfg.Ledger.Confirm(ctx, handle) })
		event := sandbox.EventOvertaken
		switch {
		case err == nil:
			p.update(func(b *books, now time.Time) { b.confirmed(e, now) })
			return
		case errors.Is(err, ErrOvertaken):
		case pause(ctx, pauses.NextBackOff()):
			continue
		default:
			event = sandbox.EventUnconfirmed
		}
		err = sandbox.Errorf(sandbox.Unavailable, "create", "confirm the sandbox in the ledger: %w", err)
		p.update(func(b *books, now time.Time) { b.notCreated(e, event, err, now) })
		p.logger(e).Warn().Err(err).Msg("a new sandbox is not used")
		return
	}
}

// closeEntry ends the entry of a lease that is gone, however often it takes. That
// is for good: the create call has answered, else its entry would not be closed
// here but by the reaper.
func (p *Pool) closeEntry(ctx context.Context, e *entry) {
	p.mu.Lock()
	proof := e.proof
	p.mu.Unlock()
	pauses := newPauses(publishPause)
	for {
		err := p.inLedger(ctx, func(ctx context.Context) error { return p.cfg.Ledger.Destroyed(ctx, e.id, proof) })
		if err == nil || errors.Is(err, ErrOvertaken) {
			break
		}
		p.logger(e).Error().Err(err).Msg("the ledger does not say yet that a sandbox is gone")
		if !pause(ctx, pauses.NextBackOff()) {
			return
		}
	}
	p.update(func(b *books, _ time.Time) { delete(b.unclosed, e.id) })
}

func (p *Pool) inLedger(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.LedgerTimeout)
	defer cancel()
	return call(ctx)
}
