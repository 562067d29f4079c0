package createostest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Running is a program that is a Go function, while it runs.
type Running struct {
	Cmd  string
	Args []string
	Env  []string
	Cwd  string
	// Stdin ends when the client closes it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	tree *funcTree
}

// Programs makes sandboxes without a single process: main is every program in them.
// Its context ends at a signal that would end a process, with the signal as its cause
// (see Ended); the program has exited when main returns, and its tree is gone when
// what it left with Leave has returned, too. Files are kept in memory; there is one
// directory tree, without links.
func Programs(main func(ctx context.Context, p *Running) Exit) Backend {
	return &funcBackend{main: main}
}

// signalError is why a program's context ended.
type signalError int

func (s signalError) Error() string { return "signal " + signalName(int(s)) }

// Ended is the exit of a program that its context's end has ended.
func Ended(ctx context.Context) Exit {
	if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		return Exit{Signal: int(s)}
	}
	return Exit{Signal: int(unix.SIGKILL)}
}

// Leave starts a child that may outlive the program. Its context ends with a signal
// to the whole tree.
func (p *Running) Leave(child func(ctx context.Context)) {
	p.tree.children.Go(func() { child(p.tree.all) })
}

// File is a file's content.
func (p *Running) File(name string) ([]byte, bool) { return p.tree.machine.file(name) }

// Write writes a file.
func (p *Running) Write(name string, content []byte) { p.tree.machine.put(name, content) }

// Remove removes a file.
func (p *Running) Remove(name string) { p.tree.machine.remove(name) }

// Await waits for a file; false when ctx ends first.
func (p *Running) Await(ctx context.Context, name string) bool {
	for {
		p.tree.machine.mu.Lock()
		_, there := p.tree.machine.files[path.Clean(name)]
		changed := p.tree.machine.changed
		p.tree.machine.mu.Unlock()
		if there {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

type funcBackend struct {
	main func(ctx context.Context, p *Running) Exit
}

func (b *funcBackend) Boot(_ context.Context, id string) (Machine, error) {
	return &funcMachine{id: id, main: b.main, files: map[string][]byte{}, changed: make(chan struct{}), trees: map[*funcTree]bool{}}, nil
}

func (b *funcBackend) Leftovers() ([]string, error) { return nil, nil }
func (b *funcBackend) Close() error                 { return nil }

type funcMachine struct {
	id      string
	main    func(ctx context.Context, p *Running) Exit
	running sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	files   map[string][]byte
	changed chan struct{}
	trees   map[*funcTree]bool
	pids    int
}

func (m *funcMachine) file(name string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, there := m.files[path.Clean(name)]
	return content, there
}

func (m *funcMachine) put(name string, content []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[path.Clean(name)] = bytes.Clone(content)
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *funcMachine) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, path.Clean(name))
}

func (m *funcMachine) Open(_ context.Context, name string) (io.ReadCloser, error) {
	content, there := m.file(name)
	if !there {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return io.NopCloser(bytes.NewReader(content)), nil
}

// Store keeps the part that came of what is cut off.
func (m *funcMachine) Store(_ context.Context, name string, content io.Reader, parents bool) error {
	if !parents && !m.hasDir(path.Dir(path.Clean(name))) {
		return fmt.Errorf("%s: %w", path.Dir(name), fs.ErrNotExist)
	}
	data, err := io.ReadAll(content)
	m.put(name, data)
	return err
}

func (m *funcMachine) hasDir(dir string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range maps.Keys(m.files) {
		if strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return dir == "/" || dir == "/tmp" || dir == "/root"
}

// Freeze does nothing: a function cannot be stopped.
func (m *funcMachine) Freeze(context.Context) error { return nil }
func (m *funcMachine) Thaw(context.Context) error   { return nil }

func (m *funcMachine) Live() []LiveProcess {
	m.mu.Lock()
	defer m.mu.Unlock()
	var live []LiveProcess
	for t := range m.trees {
		live = append(live, LiveProcess{Sandbox: m.id, Argv: t.argv})
	}
	return live
}

func (m *funcMachine) End(ctx context.Context) error {
	m.mu.Lock()
	m.ended = true
	trees := maps.Clone(m.trees)
	m.mu.Unlock()
	for t := range trees {
		t.signal(int(unix.SIGKILL), true)
	}
	for t := range trees {
		select {
		case <-t.silent:
		case <-ctx.Done():
			return fmt.Errorf("sandbox %s: %q has not ended: %w", m.id, t.argv, context.Cause(ctx))
		}
	}
	m.running.Wait()
	return nil
}

// Start implements Machine.
func (m *funcMachine) Start(ctx context.Context, p Program) (Tree, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, errEnded
	}
	m.pids++
	stdin, in := io.Pipe()
	t := &funcTree{
		machine: m, pid: m.pids + 1, argv: append([]string{p.Cmd}, p.Args...), stdin: in,
		exited: make(chan struct{}), gone: make(chan struct{}), silent: make(chan struct{}),
	}
	// They live as long as the tree.
	life := context.WithoutCancel(ctx)
	t.all, t.endAll = context.WithCancelCause(life)
	t.leader, t.endLeader = context.WithCancelCause(t.all)
	out := func(stream int) io.Writer {
		return writerFunc(func(data []byte) (int, error) { p.Output(stream, data); return len(data), nil })
	}
	running := &Running{
		Cmd: p.Cmd, Args: p.Args, Env: p.Env, Cwd: p.Cwd, Stdin: stdin, Stdout: out(1), Stderr: out(2), tree: t,
	}
	m.trees[t] = true
	m.running.Go(func() {
		t.exit = m.main(t.leader, running)
		_ = stdin.CloseWithError(syscall.EPIPE) // never fails (package io)
		close(t.exited)
		t.children.Wait()
		m.mu.Lock()
		delete(m.trees, t)
		m.mu.Unlock()
		t.endAll(nil)
		close(t.gone)
		close(t.silent)
	})
	return t, nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type funcTree struct {
	machine *funcMachine
	pid     int
	argv    []string
	stdin   *io.PipeWriter
	// The contexts are the processes' lives, which no caller owns.
	leader, all          context.Context //nolint:containedctx // see above
	endLeader, endAll    context.CancelCauseFunc
	children             sync.WaitGroup
	exit                 Exit
	exited, gone, silent chan struct{}
}

func (t *funcTree) PID() int                { return t.pid }
func (t *funcTree) Stdin() io.WriteCloser   { return t.stdin }
func (t *funcTree) Exited() <-chan struct{} { return t.exited }
func (t *funcTree) Exit() Exit              { return t.exit }
func (t *funcTree) Gone() <-chan struct{}   { return t.gone }
func (t *funcTree) Silent() <-chan struct{} { return t.silent }

func (t *funcTree) Signal(number int, all bool) error {
	t.signal(number, all)
	return nil
}

func (t *funcTree) signal(number int, all bool) {
	switch unix.Signal(number) {
	case unix.SIGWINCH, unix.SIGCHLD, unix.SIGCONT, unix.SIGURG:
		return
	}
	if all {
		t.endAll(signalError(number))
		return
	}
	t.endLeader(signalError(number))
}
