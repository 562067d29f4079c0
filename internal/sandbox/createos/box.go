package createos

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// box is one sandbox as its owner sees it.
type box struct {
	p      *Provider
	id     string
	handle sandbox.Handle
	// own is our directory inside, marker what stands in it: a sandbox that comes back
	// from a pause must still have it.
	own, marker string
	// lost is closed when it is known to be gone or broken, gone when it was destroyed.
	lost, gone chan struct{}

	mu sync.Mutex
	// run is the current run; nil when idle.
	run *run
	// spoilt is why it may not be used any more.
	spoilt error
	// closing counts the destroys that are under way.
	closing int
	// paused says that we paused it; rested is when it was last used.
	paused bool
	rested time.Time
}

var _ sandbox.Sandbox = (*box)(nil)

func newBox(p *Provider, lease, id string) *box {
	return &box{
		p: p, id: id, handle: p.handle(lease, id), own: p.cfg.Temporary[0] + "/.sallyport", marker: rand.Text(),
		lost: make(chan struct{}), gone: make(chan struct{}), rested: time.Now(),
	}
}

// Handle implements sandbox.Sandbox.
func (b *box) Handle() sandbox.Handle { return b.handle }

// Isolation implements sandbox.Sandbox.
func (b *box) Isolation() sandbox.Isolation { return b.p.caps.Isolation }

// Lost implements sandbox.Sandbox. An idle sandbox is not watched: that it is gone shows
// when it is used.
func (b *box) Lost() <-chan struct{} { return b.lost }

// Destroy implements sandbox.Sandbox.
func (b *box) Destroy(ctx context.Context) (sandbox.Proof, error) { return b.p.Destroy(ctx, b.handle) }

// Prepare implements sandbox.Sandbox.
func (b *box) Prepare(ctx context.Context, process sandbox.Process, sink sandbox.Sink) (sandbox.Run, error) {
	const op = "prepare"
	program, err := newProgram(process, b.p.cfg.Workspace)
	switch {
	case err != nil:
		return nil, sandbox.Errorf(sandbox.Refused, op, "%w", err)
	case sink == nil:
		return nil, sandbox.Errorf(sandbox.Refused, op, "there is no sink")
	case ctx.Err() != nil:
		return nil, sandbox.Errorf(sandbox.Refused, op, "not begun: %w", context.Cause(ctx))
	}
	r := newRun(b, program, sink)
	if err := b.take(op, r); err != nil {
		return nil, err
	}
	if err := b.awake(ctx); err != nil {
		b.spoil(err)
		return nil, fail(op, err)
	}
	if err := r.prepare(ctx); err != nil {
		return nil, b.notPrepared(op, r, err)
	}
	return r, nil
}

// notPrepared decides what an error of a run's preparation leaves of the sandbox.
func (b *box) notPrepared(op string, r *run, err error) error {
	if kindOf(err) == sandbox.Refused {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.run == r {
			b.run = nil
		}
	} else {
		b.spoil(err)
	}
	return fail(op, err)
}

// take makes r the sandbox's run if it is idle.
func (b *box) take(op string, r *run) error {
	if err := b.usable(op); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.run != nil {
		return sandbox.Errorf(sandbox.Busy, op, "the last run was not reset")
	}
	b.run = r
	return nil
}

// usable is nil when the sandbox can be used.
func (b *box) usable(op string) error {
	if err := b.p.able(op); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case closed(b.gone):
		return sandbox.Errorf(sandbox.Gone, op, "%w", errDestroyed)
	case closed(b.lost):
		return sandbox.Errorf(sandbox.Gone, op, "%w", errSandboxLost)
	case b.closing > 0:
		return sandbox.Errorf(sandbox.Gone, op, "the sandbox is being destroyed")
	case b.spoilt != nil:
		return sandbox.Errorf(sandbox.Unavailable, op, "the sandbox must be destroyed: %w", b.spoilt)
	}
	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (b *box) spoil(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spoilt == nil {
		b.spoilt = why
	}
}

// close refuses everything while the sandbox is being destroyed; reopen says that it was
// not: after that it is in doubt, and can only be destroyed.
func (b *box) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing++
}

func (b *box) isClosing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closing > 0
}

func (b *box) reopen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing--
	if b.spoilt == nil {
		b.spoilt = errors.New("its destruction is unconfirmed")
	}
}

// destroyed notes the proven end of the sandbox, with all that was in it.
func (b *box) destroyed(proof sandbox.Proof) {
	b.mu.Lock()
	r := b.run
	if !closed(b.gone) {
		close(b.gone)
	}
	b.mu.Unlock()
	if r != nil {
		r.sandboxGone(proof)
	}
}

// lose notes that the sandbox is gone or broken; proof is empty where it may still be there.
func (b *box) lose(why error, proof sandbox.Proof) {
	b.spoil(why)
	b.mu.Lock()
	r := b.run
	if !closed(b.lost) && !closed(b.gone) && b.closing == 0 {
		close(b.lost)
	}
	b.mu.Unlock()
	if r != nil && proof.Proven {
		r.sandboxGone(proof)
	}
}

// there looks whether the sandbox is still there; nil when it is, or may be.
func (b *box) there(ctx context.Context) (view, error) {
	v, err := b.p.api.get(ctx, b.id)
	switch {
	case statusOf(err) == http.StatusNotFound:
		b.lose(errSandboxLost, sandbox.Proof{Proven: true, Evidence: notFound()})
		return v, gone(errSandboxLost)
	case err == nil && v.Status.over():
		b.lose(errSandboxLost, sandbox.Proof{Proven: true, Evidence: terminal(v.Status)})
		return v, gone(errSandboxLost)
	}
	return v, err
}

func gone(err error) error { return sandbox.Errorf(sandbox.Gone, "look", "%w", err) }

// awake resumes a sandbox that was paused, or may have been: by the service, which does so
// with one that is idle.
func (b *box) awake(ctx context.Context) error {
	b.mu.Lock()
	// Half the time leaves room for another clock and another idea of idle.
	sure := !b.paused && (!b.p.cfg.Reuse || time.Since(b.rested) < b.p.cfg.AutoPause/2)
	b.mu.Unlock()
	if sure {
		return nil
	}
	return b.resume(ctx)
}

// resume brings the sandbox to running and makes sure that it is the same one.
func (b *box) resume(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.p.cfg.Timeout, errTimeout)
	defer cancel()
	v, err := b.there(ctx)
	if err != nil {
		return err
	}
	if v.Status != statusRunning {
		if err := b.p.transition(ctx, b.id, statusRunning); err != nil {
			if statusOf(err) == http.StatusNotFound {
				_, err = b.there(ctx)
			}
			return err
		}
	}
	marker, err := b.fetch(ctx, b.own+"/marker", 256)
	switch {
	case statusOf(err) == http.StatusNotFound, err == nil && string(marker) != b.marker:
		b.lose(errMarker, sandbox.Proof{})
		return gone(errMarker)
	case err != nil:
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused, b.rested = false, time.Now()
	return nil
}

// fetch reads a file of at most limit bytes.
func (b *box) fetch(ctx context.Context, name string, limit int64) ([]byte, error) {
	content, err := b.p.api.download(ctx, b.id, name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(content, limit+1))
	if errors.Join(err, content.Close()) != nil {
		return nil, &callError{what: "file transfer", effect: looks, sent: true, err: transportError(ctx)}
	}
	if int64(len(data)) > limit {
		return nil, &callError{what: "file transfer", effect: looks, sent: true, malformed: true, err: errors.New("the file is too large")}
	}
	return data, nil
}

// Reset implements sandbox.Sandbox. It empties the workspace and the temporary directories
// through a process whose end is proven, and makes sure that no other one is there. What a
// job changed elsewhere stays.
func (b *box) Reset(ctx context.Context) error {
	const op = "reset"
	if err := b.usable(op); err != nil {
		return err
	}
	if !b.p.cfg.Reuse {
		return sandbox.Errorf(sandbox.Refused, op, "this provider is not set to reuse sandboxes")
	}
	b.mu.Lock()
	r := b.run
	b.mu.Unlock()
	if r == nil {
		return nil
	}
	if !r.finished() {
		return sandbox.Errorf(sandbox.Refused, op, "the end of the last run is not proven")
	}
	if err := b.reset(ctx); err != nil {
		b.spoil(err)
		return fail(op, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run, b.rested = nil, time.Now()
	return nil
}

func (b *box) reset(ctx context.Context) error {
	args := append([]string{b.p.cfg.Workspace, b.own, b.marker}, b.p.cfg.Temporary...)
	if err := b.command(ctx, scripted(resetScript, args...)); err != nil {
		return err
	}
	if err := b.clear(ctx); err != nil {
		return err
	}
	if !b.p.cfg.PauseIdle {
		return nil
	}
	if err := b.p.transition(ctx, b.id, statusPaused); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = true
	return nil
}

// commandLook is how long one look waits for a command's end.
const commandLook = 5 * time.Second

// command runs a command of ours as a managed process, to its proven end.
func (b *box) command(ctx context.Context, argv []string) error {
	d, err := b.p.api.start(ctx, b.id, "/", argv)
	if err != nil {
		return err
	}
	for {
		end, err := b.again(ctx, func() (details, error) { return b.p.api.waitTree(ctx, b.id, d.ID, commandLook) })
		switch {
		case statusOf(err) == http.StatusRequestTimeout:
			continue
		case err != nil:
			return err
		case !end.TreeExited:
			return errUnconfirmedEnd
		}
		if exit := end.exit(); exit == nil || *exit != (sandbox.Exit{}) {
			return errors.New("the sandbox could not be emptied")
		}
		return nil
	}
}

// again makes a call that may be made twice, as often as the client makes one: a broken
// connection is no reason to give a sandbox up. That something goes on is an answer.
func (b *box) again(ctx context.Context, call func() (details, error)) (details, error) {
	for try := 0; ; try++ {
		d, err := call()
		if err == nil || try == retries || !passing(err) || statusOf(err) == http.StatusRequestTimeout {
			return d, err
		}
		if sleep(ctx, b.p.cfg.ReconnectDelay<<try) != nil {
			return d, err
		}
	}
}

// clear deletes the records of processes that have ended, and fails if another one is there.
func (b *box) clear(ctx context.Context) error {
	all, err := b.p.api.listProcesses(ctx, b.id)
	if err != nil {
		return err
	}
	for _, d := range all {
		if !d.TreeExited {
			return fmt.Errorf("%w: process %s is still there", errUnconfirmedEnd, d.ID)
		}
	}
	for _, d := range all {
		end, err := b.again(ctx, func() (details, error) { return b.p.api.kill(ctx, b.id, d.ID, 0) })
		if statusOf(err) == http.StatusNotFound {
			continue
		}
		if err != nil {
			return err
		}
		if !end.TreeExited {
			return errUnconfirmedEnd
		}
	}
	return nil
}

// shutDown ends a run that is going on because the provider closes.
func (b *box) shutDown(ctx context.Context) {
	b.mu.Lock()
	r := b.run
	b.mu.Unlock()
	if r == nil || !r.exists() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.p.cfg.CleanupTimeout)
	defer cancel()
	if proof, err := r.Terminate(ctx, killGrace); err != nil || !proof.Proven {
		b.p.log.Error().Err(err).Str("lease", b.handle.Lease).Str("sandbox", b.id).Msg("a run is left in its sandbox")
	}
}
