package createos

import (
	"context"
	"net/http"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// killGrace is the grace period of what we end ourselves.
const killGrace = time.Second

// ender is the work on the end of one tree: a DELETE, made again until it is proof, its
// time is over, or a shorter grace period cuts it short.
type ender struct {
	killAt time.Time
	// cut ends the call that is out.
	cut context.CancelFunc
	// done is closed when the work ends, with or without proof.
	done chan struct{}
}

// Terminate implements sandbox.Run. The tree's end is the service's word: tree_exited
// true, or 404.
func (r *run) Terminate(ctx context.Context, grace time.Duration) (sandbox.Proof, error) {
	const op = "terminate"
	if r.spend() {
		grace = 0 // nothing is there that could use it
	}
	for {
		if closed(r.dead) {
			return r.known().Proof, nil
		}
		if err := ctx.Err(); err != nil {
			return r.known().Proof, sandbox.Errorf(sandbox.Ambiguous, op, "%w: %w", errUnconfirmedEnd, context.Cause(ctx))
		}
		working := r.request(max(grace, 0), true)
		select {
		case <-r.dead:
		case <-ctx.Done():
		case <-r.box.p.alive.Done():
			return r.known().Proof, sandbox.Errorf(sandbox.Unavailable, op, "%w", errClosed)
		case <-working:
			if !closed(r.dead) {
				return r.known().Proof, sandbox.Errorf(sandbox.Ambiguous, op, "%w", errUnconfirmedEnd)
			}
		}
	}
}

// request sets an ender to work, or lets the one that works use the shorter grace period.
// asked says that the owner wants it. The channel is closed when the work ends.
func (r *run) request(grace time.Duration, asked bool) <-chan struct{} {
	e, fresh := r.enderFor(time.Now().Add(grace), asked)
	if fresh {
		r.box.p.spawn(func(ctx context.Context) {
			defer close(e.done)
			r.work(ctx, e)
		})
	}
	return e.done
}

func (r *run) enderFor(at time.Time, asked bool) (e *ender, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = r.asked || asked
	if e := r.ender; e != nil && !closed(e.done) {
		if at.Before(e.killAt) {
			e.killAt = at
			if e.cut != nil {
				e.cut()
			}
		}
		return e, false
	}
	r.ender = &ender{killAt: at, done: make(chan struct{})}
	return r.ender, true
}

// work makes DELETEs until one is proof. Its time ends CleanupTimeout after the grace
// period: then the lease is in doubt, and a later Terminate may try again.
func (r *run) work(ctx context.Context, e *ender) {
	p := r.box.p
	for {
		call, grace, last := r.nextKill(ctx, e)
		if last {
			return
		}
		d, err := p.api.kill(call, r.box.id, r.pid, grace)
		e.cut()
		switch {
		case statusOf(err) == http.StatusNotFound:
			r.prove([]sandbox.Evidence{{Kind: sandbox.EvidenceNotFound, Detail: "CreateOS answers 404 for the process"}}, nil)
			return
		case err == nil && d.TreeExited:
			r.prove(treeExited(), &d)
			return
		case closed(r.dead) || ctx.Err() != nil || err != nil && call.Err() == nil && !passing(err):
			return
		case call.Err() != nil:
			continue // a shorter grace period; or the time is over
		}
		if sleep(ctx, p.cfg.ReconnectDelay) != nil {
			return
		}
	}
}

// nextKill is the context and the grace period of the next DELETE; last says that there is
// no time for one.
func (r *run) nextKill(ctx context.Context, e *ender) (call context.Context, grace time.Duration, last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := e.killAt.Add(r.box.p.cfg.CleanupTimeout)
	if !time.Now().Before(end) {
		return nil, 0, true
	}
	call, e.cut = context.WithDeadline(ctx, end)
	return call, max(time.Until(e.killAt), 0), false
}

func treeExited() []sandbox.Evidence {
	return []sandbox.Evidence{{Kind: sandbox.EvidenceTreeExited, Detail: "CreateOS says that the whole tree has exited"}}
}
