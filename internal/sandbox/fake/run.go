package fake

import (
	"context"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// run is one process tree. Its life: newRun (gate closed) → Open, which starts
// supervise → ended, or → end without a start.
type run struct {
	box     *box
	process sandbox.Process
	script  script
	sink    sandbox.Sink
	// out and errs are the pipes, closed by supervise. Two pieces of pipePiece
	// bytes are as much as a Linux pipe holds (pipe(7): 64 KiB).
	out, errs chan []byte
	// deaf is closed when the sink refused a piece.
	deaf     chan struct{}
	deafOnce sync.Once
	// over is closed when the leader has to end, killed when the whole tree was
	// ended by force.
	over, killed chan struct{}
	// dead is closed when the tree's end is proven or can never be; drained after
	// that, once the output was handed over.
	dead, drained chan struct{}

	mu         sync.Mutex
	gate       gate
	cause      cause
	forced     cause
	terminated bool
	ignoring   bool
	termExit   *step
	unprovable bool
	killTimer  *time.Timer
	killAt     time.Time
	children   []child
	cpu        time.Duration
	memory     int64
	end        sandbox.End
}

var _ sandbox.Run = (*run)(nil)

type gate int

const (
	gateClosed gate = iota
	gateOpen
	// gateSpent: it was never opened and never will be.
	gateSpent
)

// cause is why a leader has to end.
type cause int

const (
	causeNone cause = iota
	causeTerm
	causeKill
	causeGone
	causeClosed
)

// child is a process that its leader left behind.
type child struct {
	until    time.Time // zero means for ever
	ignoring bool
}

func newRun(b *box, process sandbox.Process, s script, sink sandbox.Sink) *run {
	return &run{
		box: b, process: process, script: s, sink: sink,
		out: make(chan []byte, 2), errs: make(chan []byte, 2), deaf: make(chan struct{}),
		over: make(chan struct{}), killed: make(chan struct{}),
		dead: make(chan struct{}), drained: make(chan struct{}),
		unprovable: s.waitNever,
		end:        sandbox.End{Started: sandbox.StartedNo, Usage: unmeasured()},
	}
}

func unmeasured() sandbox.Usage {
	return sandbox.Usage{CPUUser: -1, CPUSystem: -1, MemoryPeakBytes: -1, PidsPeak: -1}
}

func (r *run) Open(ctx context.Context) error {
	const op = "open"
	if ctx.Err() != nil {
		return sandbox.Errorf(sandbox.Refused, op, "not begun: %w", context.Cause(ctx))
	}
	if r.script.open == "refuse" {
		return sandbox.Errorf(sandbox.Refused, op, "told to refuse")
	}
	if err := r.box.usable(op); err != nil {
		return sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	if err := r.release(op); err != nil {
		return err
	}
	if r.script.open == "hang" {
		<-ctx.Done()
		return sandbox.Errorf(sandbox.Ambiguous, op, "no answer: %w", context.Cause(ctx))
	}
	if err := pause(ctx, r.script.delay[op]); err != nil {
		return sandbox.Errorf(sandbox.Ambiguous, op, "no answer yet: %w", err)
	}
	switch r.script.open {
	case "ambiguous", "unstarted":
		return sandbox.Errorf(sandbox.Ambiguous, op, "told to be ambiguous")
	case "die":
		r.box.p.world.vanish(r.box.resident)
		return sandbox.Errorf(sandbox.Gone, op, "the sandbox is gone")
	}
	return nil
}

// release opens the gate.
func (r *run) release(op string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate != gateClosed {
		return sandbox.Errorf(sandbox.Refused, op, "the gate was opened before, or the run was terminated")
	}
	if !r.box.p.spawn(r.supervise) {
		return sandbox.Errorf(sandbox.Refused, op, "the provider is closed")
	}
	r.gate = gateOpen
	switch {
	case r.script.open != "":
		r.end.Started = sandbox.StartedMaybe
	case r.script.start == "":
		r.end.Started = sandbox.StartedYes
	}
	return nil
}

func (r *run) Wait(ctx context.Context) (sandbox.End, error) {
	const op = "wait"
	if r.strike(&r.script.wait) != "" {
		return r.known(), sandbox.Errorf(sandbox.Unavailable, op, "told to fail")
	}
	select {
	case <-r.drained:
		return r.answer(op)
	default:
	}
	select {
	case <-r.drained:
		return r.answer(op)
	case <-r.box.resident.gone:
		return r.afterGone(ctx, op)
	case <-r.box.p.closing:
		return r.known(), sandbox.Errorf(sandbox.Unavailable, op, "the provider is closed")
	case <-ctx.Done():
		return r.known(), sandbox.Errorf(sandbox.Ambiguous, op, "the end is not proven: %w", context.Cause(ctx))
	}
}

// afterGone waits for what is left of a run whose sandbox is gone: its output, if
// it was started.
func (r *run) afterGone(ctx context.Context, op string) (sandbox.End, error) {
	r.spend(proof(sandbox.EvidenceNotFound, "the sandbox is gone"))
	select {
	case <-r.drained:
		return r.answer(op)
	case <-ctx.Done():
		return r.known(), sandbox.Errorf(sandbox.Ambiguous, op, "the output is not handed over: %w", context.Cause(ctx))
	}
}

func (r *run) answer(op string) (sandbox.End, error) {
	end := r.known()
	if !end.Proof.Proven {
		return end, sandbox.Errorf(sandbox.Unavailable, op, "the provider is closed")
	}
	return end, nil
}

func (r *run) Terminate(ctx context.Context, grace time.Duration) (sandbox.Proof, error) {
	const op = "terminate"
	switch r.strike(&r.script.terminate) {
	case "fail":
		return r.known().Proof, sandbox.Errorf(sandbox.Unavailable, op, "told to fail")
	case "hang":
		<-ctx.Done()
		return r.known().Proof, sandbox.Errorf(sandbox.Ambiguous, op, "no answer: %w", context.Cause(ctx))
	}
	if err := pause(ctx, r.script.delay[op]); err != nil && r.script.delay[op] > 0 {
		return r.known().Proof, sandbox.Errorf(sandbox.Ambiguous, op, "no answer yet: %w", err)
	}
	if !r.spend(proof(sandbox.EvidenceNotStarted, "the gate was closed")) {
		r.request(grace)
	}
	select {
	case <-r.dead:
	default:
		select {
		case <-r.dead:
		case <-ctx.Done():
			return r.known().Proof, sandbox.Errorf(sandbox.Ambiguous, op, "the end is not proven: %w", context.Cause(ctx))
		}
	}
	end := r.known()
	if !end.Proof.Proven {
		return end.Proof, sandbox.Errorf(sandbox.Unavailable, op, "the provider is closed")
	}
	return end.Proof, nil
}

// spend ends a run whose gate is still closed, for good; false if it is not.
func (r *run) spend(p sandbox.Proof) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate != gateClosed {
		return false
	}
	r.gate = gateSpent
	r.end.Proof = p
	r.end.ProvenAt = time.Now()
	close(r.dead)
	close(r.drained)
	return true
}

// request sends SIGTERM and makes sure that SIGKILL follows after grace, or
// earlier when an earlier call said so.
func (r *run) request(grace time.Duration) {
	grace = max(grace, 0)
	r.mu.Lock()
	if !r.terminated {
		r.terminated = true
		r.unprovable = r.unprovable || r.script.termUnproven
	}
	at := time.Now().Add(grace)
	switch {
	case r.killTimer == nil:
		r.killAt = at
		r.killTimer = time.AfterFunc(grace, func() { r.interrupt(causeKill) })
	case at.Before(r.killAt):
		r.killAt = at
		r.killTimer.Reset(grace)
	}
	r.mu.Unlock()
	r.interrupt(causeTerm)
}

// interrupt ends the leader (causeTerm, unless it ignores that) or the tree.
func (r *run) interrupt(c cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c == causeTerm && r.ignoring {
		return
	}
	if c != causeTerm && r.forced == causeNone {
		r.forced = c
		close(r.killed)
	}
	if r.cause == causeNone {
		r.cause = c
		close(r.over)
	}
}

// strike applies a rule to one call.
func (r *run) strike(to *rule) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return to.next()
}

func (r *run) proven() bool {
	select {
	case <-r.drained:
		return r.known().Proof.Proven
	default:
		return false
	}
}

func (r *run) known() sandbox.End {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end
}
