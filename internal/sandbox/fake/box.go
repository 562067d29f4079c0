package fake

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// box is one sandbox as its owner sees it.
type box struct {
	p        *Provider
	resident *resident
	handle   sandbox.Handle

	mu sync.Mutex
	// run is the current run; nil when idle.
	run *run
	// spoilt says why the box may not be used any more.
	spoilt string
}

var _ sandbox.Sandbox = (*box)(nil)

func (b *box) Handle() sandbox.Handle { return b.handle }

func (b *box) Isolation() sandbox.Isolation { return b.p.caps.Isolation }

func (b *box) Lost() <-chan struct{} { return b.resident.lost }

func (b *box) Destroy(ctx context.Context) (sandbox.Proof, error) { return b.p.Destroy(ctx, b.handle) }

func (b *box) Prepare(ctx context.Context, process sandbox.Process, sink sandbox.Sink) (sandbox.Run, error) {
	const op = "prepare"
	s, err := check(process)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	if sink == nil {
		return nil, sandbox.Errorf(sandbox.Refused, op, "there is no sink")
	}
	if s.prepare == "refuse" {
		return nil, sandbox.Errorf(sandbox.Refused, op, "told to refuse")
	}
	if ctx.Err() != nil {
		return nil, sandbox.Errorf(sandbox.Refused, op, "not begun: %w", context.Cause(ctx))
	}
	files, err := read(ctx, process)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	r := newRun(b, process, s, sink)
	if err := b.take(op, r); err != nil {
		return nil, err
	}
	b.p.world.place(b.resident, files)
	b.p.world.arm(b.resident, s)
	if err := pause(ctx, s.delay[op]); err != nil {
		return nil, b.spoil(sandbox.Ambiguous, op, err.Error())
	}
	switch s.prepare {
	case "unavailable":
		return nil, b.spoil(sandbox.Unavailable, op, "told to be unavailable")
	case "ambiguous":
		return nil, b.spoil(sandbox.Ambiguous, op, "told to be ambiguous")
	case "die":
		b.p.world.vanish(b.resident)
		return nil, sandbox.Errorf(sandbox.Gone, op, "the sandbox is gone")
	case "hang":
		<-ctx.Done()
		return nil, b.spoil(sandbox.Ambiguous, op, "no answer: "+context.Cause(ctx).Error())
	}
	return r, nil
}

func (b *box) Reset(ctx context.Context) error {
	const op = "reset"
	if err := b.usable(op); err != nil {
		return err
	}
	if !b.p.caps.Reset {
		return sandbox.Errorf(sandbox.Refused, op, "this provider cannot reset")
	}
	b.mu.Lock()
	r := b.run
	b.mu.Unlock()
	if r == nil {
		return nil
	}
	if !r.proven() {
		return sandbox.Errorf(sandbox.Refused, op, "the end of the last run is not proven")
	}
	if err := pause(ctx, r.script.delay[op]); err != nil {
		return b.spoil(sandbox.Ambiguous, op, err.Error())
	}
	switch r.script.reset {
	case "refuse":
		return b.spoil(sandbox.Refused, op, "told to refuse")
	case "fail":
		return b.spoil(sandbox.Unavailable, op, "told to fail")
	case "ambiguous":
		b.p.world.clean(b.resident)
		return b.spoil(sandbox.Ambiguous, op, "told to be ambiguous")
	case "hang":
		<-ctx.Done()
		return b.spoil(sandbox.Ambiguous, op, "no answer: "+context.Cause(ctx).Error())
	}
	if r.script.reset != "lie" {
		b.p.world.clean(b.resident)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run = nil
	return nil
}

// take makes r the box's run if it is idle.
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

func (b *box) usable(op string) error {
	if err := b.p.able(op); err != nil {
		return err
	}
	select {
	case <-b.resident.gone:
		return sandbox.Errorf(sandbox.Gone, op, "the sandbox is gone")
	case <-b.resident.lost:
		return sandbox.Errorf(sandbox.Gone, op, "the sandbox is lost")
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spoilt != "" {
		return sandbox.Errorf(sandbox.Unavailable, op, "the sandbox is spoilt: %s", b.spoilt)
	}
	return nil
}

func (b *box) spoil(kind sandbox.Kind, op, why string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spoilt = op + ": " + why
	return sandbox.Errorf(kind, op, "%s", why)
}

// check reads the process; its error says what is bad about it.
func check(process sandbox.Process) (script, error) {
	if len(process.Argv) == 0 || process.Argv[0] == "" {
		return script{}, errors.New("argv is empty")
	}
	for _, word := range process.Argv {
		if strings.Contains(word, "\x00") {
			return script{}, errors.New("argv has a NUL byte")
		}
	}
	for _, entry := range process.Env {
		if name, _, ok := strings.Cut(entry, "="); !ok || name == "" || strings.Contains(entry, "\x00") {
			return script{}, errors.New("env has an entry that is not NAME=value")
		}
	}
	if process.Argv[0] != "fake" {
		return script{start: sandbox.StartNotFound}, nil
	}
	s, err := parse(process.Argv[1:])
	if err != nil {
		return script{}, err
	}
	switch process.Cwd {
	case "", "/", "/tmp", workspace:
	default:
		s.start = sandbox.StartBadCwd
	}
	return s, nil
}

// workspace is the working directory of a process that asks for none.
const workspace = "/workspace"
