package leasepool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// destroyPause is the longest mean pause between two tries to destroy: the time
// for all tries has to stay short, since a quarantine record must follow.
const destroyPause = time.Second

// publishPause is the longest mean pause between two tries to publish: several
// of them have to fit into a shutdown.
const publishPause = 5 * time.Second

// Run does the pool's work until ctx ends: it makes, resets, destroys and
// quarantines, keeps the warm spares, and retires what is old or lost. Then it
// hands out nothing more, waits for leases in use, destroys all, and returns in
// about ShutdownTimeout: nil if every lease is proven gone or durably in
// quarantine, else an error that names what is left. It may be called once.
func (p *Pool) Run(ctx context.Context) error {
	if err := p.start(); err != nil {
		return err
	}
	// The end of ctx ends the making of sandboxes, not the cleaning.
	cleanup, stopCleanup := context.WithCancel(context.WithoutCancel(ctx))
	defer stopCleanup()
	perform := func(t task) { p.perform(ctx, cleanup, t) }
	p.work(ctx, perform)

	p.update(func(b *books, now time.Time) { b.close(now) })
	p.workFor(cleanup, p.cfg.ShutdownTimeout*2/3, perform)
	p.update(func(b *books, now time.Time) { b.doubtAll(now) })
	p.workFor(cleanup, p.cfg.ShutdownTimeout/3, perform)
	stopCleanup()
	// Calls return soon after their context has ended; one that does not is named.
	p.workFor(context.WithoutCancel(ctx), lateAfter, perform)
	if err := p.left(); err != nil {
		return err
	}
	p.tasks.Wait()
	return nil
}

func (p *Pool) start() error {
	defer p.lock()()
	if p.started {
		return errors.New("the lease pool was started before")
	}
	p.started = true
	return nil
}

func (p *Pool) workFor(ctx context.Context, limit time.Duration, perform func(task)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p.work(ctx, perform)
}

// work starts tasks and keeps the deadlines until ctx ends or everything was
// handed over.
func (p *Pool) work(ctx context.Context, perform func(task)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		todo, stuck, next, done := p.turn()
		for _, t := range todo {
			p.tasks.Go(func() {
				perform(t)
				p.update(func(b *books, _ time.Time) {
					b.running--
					b.wake = b.wake || b.closed
				})
			})
		}
		for _, info := range stuck {
			p.log.Error().Str("lease", info.ID).Str("provider", info.Provider).Str("state", info.State.String()).
				Msg("a call to the provider does not return")
		}
		if done {
			return
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-p.woken:
		case <-timer.C:
		}
	}
}

// turn collects what is to be done now, and says when the next deadline is.
func (p *Pool) turn() (todo []task, stuck []Info, next time.Time, done bool) {
	p.update(func(b *books, now time.Time) {
		for _, e := range b.look(now) {
			stuck = append(stuck, Info{ID: e.id, Provider: e.profile.provider, State: e.state})
		}
		b.balance(now)
		todo, b.todo = b.todo, nil
		b.running += len(todo)
		b.wake = false
		next, done = b.due, b.handedOver()
	})
	return todo, stuck, next, done
}

// perform does one task. Only the making of sandboxes ends with ctx.
func (p *Pool) perform(ctx, cleanup context.Context, t task) {
	switch t.action {
	case sandbox.ActionConfirm:
		p.confirm(ctx, t.entry)
	case sandbox.ActionReset:
		p.reset(cleanup, t.entry)
	case sandbox.ActionDestroy:
		p.destroy(cleanup, t.entry)
	case sandbox.ActionQuarantine:
		p.publish(cleanup, t.entry)
	case sandbox.ActionClose:
		p.closeEntry(cleanup, t.entry)
	case sandbox.ActionSettle, sandbox.ActionGiveBack, sandbox.ActionTakeBack:
		panic("leasepool: " + t.action.String() + " is done in the books")
	default:
		p.create(ctx, t.entry)
	}
}

func (p *Pool) logger(e *entry) *zerolog.Logger {
	log := p.log.With().Str("lease", e.id).Str("provider", e.profile.provider).Logger()
	return &log
}

func (p *Pool) create(ctx context.Context, e *entry) {
	ctx, cancel := context.WithTimeout(ctx, e.profile.bounds.create)
	defer cancel()
	box, err := p.askFor(ctx, e)
	if err != nil {
		p.update(func(b *books, now time.Time) { b.notCreated(e, createEvent(err), err, now) })
		p.logger(e).Warn().Err(err).Msg("no sandbox was made")
		return
	}
	handle, lost := box.Handle(), box.Lost()
	p.update(func(b *books, now time.Time) { b.created(e, box, handle, lost, now) })
	p.logger(e).Debug().Msg("sandbox made")
}

// askFor asks the provider for a sandbox, once the ledger knows of it.
func (p *Pool) askFor(ctx context.Context, e *entry) (sandbox.Sandbox, error) {
	if e.profile.ledger {
		if err := p.intend(ctx, e); err != nil {
			return nil, err
		}
	}
	spec := e.profile.Spec
	spec.Lease, spec.Profile = e.id, e.profile.Name
	box, err := e.profile.Provider.Create(ctx, spec)
	if err == nil && box == nil {
		err = sandbox.Errorf(sandbox.Protocol, "create", "the provider returned neither a sandbox nor an error")
	}
	return box, err
}

// createEvent says what is known after a create call that brought an error.
func createEvent(err error) sandbox.LeaseEvent {
	switch sandbox.KindOf(err) {
	case sandbox.Refused, sandbox.Busy, sandbox.Unavailable:
		return sandbox.EventCreateRefused
	case sandbox.Ambiguous, sandbox.Gone, sandbox.Protocol:
	}
	return sandbox.EventCreateAmbiguous
}

func (p *Pool) reset(ctx context.Context, e *entry) {
	ctx, cancel := context.WithTimeout(ctx, e.profile.bounds.reset)
	defer cancel()
	err := e.box.Reset(ctx)
	event := sandbox.EventReset
	switch {
	case closedNow(e.lost):
		event = sandbox.EventLost
	case err != nil:
		event = sandbox.EventResetFailed
	}
	p.update(func(b *books, now time.Time) {
		if err != nil && e.state == sandbox.LeaseResetting {
			e.doubt.Message = err.Error()
		}
		b.step(e, event, now)
	})
	if event != sandbox.EventReset {
		p.logger(e).Warn().Err(err).Msg("a sandbox was not reset")
	}
}

func (p *Pool) destroy(ctx context.Context, e *entry) {
	tries := p.cfg.DestroyTries
	p.mu.Lock()
	box, handle := e.box, e.handle
	p.mu.Unlock()
	call := func(ctx context.Context) (sandbox.Proof, error) { return e.profile.Provider.Destroy(ctx, handle) }
	if box != nil {
		call = box.Destroy
	} else {
		tries = 1
	}
	proof, err := p.tryDestroy(ctx, call, tries, e.profile.bounds.destroy)
	if err == nil && box == nil && e.profile.ledger && proof.Absence() {
		// The reaper waits until nothing can come any more.
		err = errors.New("not found, but the call that may have made it may still go through")
	}
	event := sandbox.EventDestroyed
	if err != nil {
		event = sandbox.EventDestroyUnproven
	}
	p.update(func(b *books, now time.Time) {
		if err != nil && e.state == sandbox.LeaseDestroying && e.doubt.Message == "" {
			e.doubt.Message = err.Error()
		}
		if err == nil {
			e.proof = proof
		}
		b.step(e, event, now)
	})
	if err != nil {
		p.logger(e).Warn().Err(err).Msg("a sandbox could not be proven destroyed")
		return
	}
	p.logger(e).Debug().Msg("sandbox destroyed")
}

// tryDestroy returns proof or an error.
func (p *Pool) tryDestroy(ctx context.Context, call func(context.Context) (sandbox.Proof, error), tries int, bound time.Duration) (sandbox.Proof, error) {
	pauses := newPauses(destroyPause)
	for try := 1; ; try++ {
		proof, err := func() (sandbox.Proof, error) {
			ctx, cancel := context.WithTimeout(ctx, bound)
			defer cancel()
			proof, err := call(ctx)
			if err == nil && !proof.Proven {
				err = errors.New("destroyed without proof")
			}
			return proof, err
		}()
		if err == nil || try >= tries || !pause(ctx, pauses.NextBackOff()) {
			return proof, err
		}
	}
}

// newPauses are the pauses between tries, up to about most.
func newPauses(most time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: 100 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: most,
	}
}

// publish makes the quarantine record of e durable, however often it takes,
// unless the sandbox is proven gone before.
func (p *Pool) publish(ctx context.Context, e *entry) {
	pauses := newPauses(publishPause)
	for {
		r, poisoned := p.record(e)
		if !poisoned {
			return
		}
		log := p.logger(e).With().Str("tenant", r.Tenant).Str("job", r.Job).Str("reason", string(r.Reason)).Logger()
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, p.cfg.PublishTimeout)
			defer cancel()
			return p.quarantiner.Quarantine(ctx, r)
		}()
		if err == nil {
			log.Warn().Msg("lease quarantined")
			break
		}
		log.Error().Err(err).Msg("the quarantine record is not durable yet")
		if !pause(ctx, pauses.NextBackOff()) {
			return
		}
	}
	p.update(func(b *books, now time.Time) {
		if e.state == sandbox.LeasePoisoned {
			b.step(e, sandbox.EventAcknowledged, now)
		}
	})
}

func (p *Pool) record(e *entry) (r Record, poisoned bool) {
	defer p.lock()()
	return e.doubt, e.state == sandbox.LeasePoisoned
}

// pause waits for d and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// left is nil if every lease is durably gone or in quarantine and every call
// returned. Else it says of each lease what will find it.
func (p *Pool) left() error {
	var left []error
	infos := p.Leases()
	defer p.lock()()
	for _, info := range infos {
		if info.State == sandbox.LeaseQuarantined {
			continue
		}
		finds := "it ends with the worker, and the next start on host " + p.books.byName[info.Profile].host + " will find what is left of it"
		if p.books.byName[info.Profile].ledger {
			finds = "the sweep will find its entry in the ledger"
		}
		left = append(left, fmt.Errorf("lease %s of provider %s is %s without a quarantine record: %s", info.ID, info.Provider, info.State, finds))
	}
	for _, id := range slices.Sorted(maps.Keys(p.books.unclosed)) {
		left = append(left, fmt.Errorf("lease %s of provider %s is gone and the ledger does not say so: the sweep will find its entry",
			id, p.books.unclosed[id].profile.provider))
	}
	if n := p.books.running; n > 0 {
		left = append(left, fmt.Errorf("%d calls did not return", n))
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("the lease pool is left with: %w", errors.Join(left...))
}
