package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Harness is what the suite needs to know of a provider.
type Harness struct {
	// New makes a provider for one test. The suite closes it.
	New func(t *testing.T) sandbox.Provider
	// Command is the argv of a program that does ops, in their order, and then
	// exits with 0.
	Command func(ops ...Op) []string
	// Env is put before each process's own environment (PATH).
	Env []string
	// Spec is the template of every sandbox; the suite sets Lease.
	Spec sandbox.Spec
	// Limits of every process.
	Limits sandbox.Limits
	// Cwd is a directory inside that is not the workspace.
	Cwd string
	// StartErrors are processes that cannot be executed, by their reason. At
	// least StartNotFound.
	StartErrors map[sandbox.StartReason]sandbox.Process
	// Break ends or spoils a sandbox from outside, so that it is lost. Nil leaves
	// the test of Lost out.
	Break func(t *testing.T, sb sandbox.Sandbox)
	// Ambiguous makes the next Create end in doubt, with a sandbox behind it or
	// without. Nil leaves the test of that out.
	Ambiguous func(t *testing.T, p sandbox.Provider, made bool)
	// Groups are the names of the suite's groups that are run; none means all of them.
	// A second way to set up a provider that is tested whole needs those in which it
	// makes a difference.
	Groups []string
	// Stranger makes a sandbox that does not carry our mark, under a handle as ours
	// have, and says whether it is still there. It is gone with the test. Nil leaves
	// the test of that out.
	Stranger func(t *testing.T) (h sandbox.Handle, alive func() bool)
}

const (
	// patience is how long a test waits for what has to happen soon; a shared
	// machine under the race detector needs much of it.
	patience = 30 * time.Second
	// soon bounds calls whose context has ended.
	soon = 10 * time.Second
	// never is how long a test watches that something does not happen.
	never = 150 * time.Millisecond
	// long is the sleep of programs that have to be ended.
	long = time.Hour
)

// Run runs the suite, each test in a provider of its own.
func Run(t *testing.T, h Harness) {
	t.Helper()
	require.NotNil(t, h.New)
	require.NotNil(t, h.Command)
	require.NotEmpty(t, h.Cwd)
	require.Contains(t, h.StartErrors, sandbox.StartNotFound)
	// The environment of the test stands for the worker's.
	require.NoError(t, os.Setenv("SANDBOXTEST_WORKER_SECRET", "leaked")) //nolint:usetesting // Setenv forbids to run suites side by side
	for _, group := range []struct {
		name  string
		tests []namedTest
	}{
		{"Life", lifeTests()},
		{"Start", startTests()},
		{"Process", processTests()},
		{"Output", outputTests()},
		{"End", endTests()},
		{"Context", contextTests()},
		{"Files", fileTests()},
		{"Reset", resetTests()},
		{"Lost", lostTests()},
		{"Race", raceTests()},
		{"Doubt", doubtTests()},
	} {
		if len(h.Groups) > 0 && !slices.Contains(h.Groups, group.name) {
			continue
		}
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) { test.run(setup(t, h)) })
			}
		})
	}
}

type namedTest struct {
	name string
	run  func(s *suite)
}

// suite is one test with its provider.
type suite struct {
	*testing.T
	Harness
	p sandbox.Provider
}

func setup(t *testing.T, h Harness) *suite {
	t.Helper()
	s := &suite{T: t, Harness: h}
	s.p = h.New(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		left, err := s.p.Inventory(ctx)
		require.NoError(s, err)
		require.Empty(s, left, "sandboxes are left")
		require.NoError(s, s.p.Close())
		require.NoError(s, s.p.Close(), "Close again")
	})
	return s
}

// ctx is a context that outlasts everything that has to happen.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	s.Cleanup(cancel)
	return ctx
}

// sub runs f as a test of its own with the same provider.
func (s *suite) sub(name string, f func(s *suite)) {
	s.Run(name, func(t *testing.T) { f(&suite{T: t, Harness: s.Harness, p: s.p}) })
}

func (s *suite) spec() sandbox.Spec {
	spec := s.Spec
	spec.Lease = rand.Text()
	return spec
}

// create makes a sandbox that is destroyed, with proof, when the test ends.
func (s *suite) create() sandbox.Sandbox {
	s.Helper()
	sb, err := s.p.Create(s.ctx(), s.spec())
	require.NoError(s, err)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
		defer cancel()
		proof, err := sb.Destroy(ctx)
		require.NoError(s, err)
		requireProven(s, proof)
	})
	return sb
}

// env is the environment of every process, and more.
func (s *suite) env(more ...string) []string { return slices.Concat(s.Env, more) }

func (s *suite) process(ops ...Op) sandbox.Process {
	return sandbox.Process{Argv: s.Command(ops...), Env: s.Env, Limits: s.Limits}
}

// start prepares and opens a program.
func (s *suite) start(sb sandbox.Sandbox, sink sandbox.Sink, ops ...Op) sandbox.Run {
	s.Helper()
	return s.startProcess(sb, sink, s.process(ops...))
}

func (s *suite) startProcess(sb sandbox.Sandbox, sink sandbox.Sink, p sandbox.Process) sandbox.Run {
	s.Helper()
	run, err := sb.Prepare(s.ctx(), p, sink)
	require.NoError(s, err)
	require.NoError(s, run.Open(s.ctx()))
	return run
}

// wait waits for a proven end.
func (s *suite) wait(run sandbox.Run) sandbox.End {
	s.Helper()
	end, err := run.Wait(s.ctx())
	require.NoError(s, err)
	requireProven(s, end.Proof)
	require.False(s, end.ProvenAt.IsZero(), "ProvenAt")
	return end
}

// run runs a program to its end and returns its output.
func (s *suite) run(sb sandbox.Sandbox, p sandbox.Process) (sandbox.End, string, string) {
	s.Helper()
	sink := &Sink{}
	end := s.wait(s.startProcess(sb, sink, p))
	return end, sink.String(sandbox.Stdout), sink.String(sandbox.Stderr)
}

// listed says whether the inventory has the sandbox.
func (s *suite) listed(lease string) bool {
	s.Helper()
	handles, err := s.p.Inventory(s.ctx())
	require.NoError(s, err)
	for _, h := range handles {
		require.Equal(s, s.p.Name(), h.Provider)
		require.Equal(s, s.p.Capabilities().Host, h.Host)
		if h.Lease == lease {
			return true
		}
	}
	return false
}

func requireProven(s *suite, proof sandbox.Proof) {
	s.Helper()
	require.True(s, proof.Proven, "the end is not proven: %+v", proof.Evidence)
	require.NotEmpty(s, proof.Evidence, "proof without evidence")
	for _, e := range proof.Evidence {
		require.NotEmpty(s, e.Kind)
	}
}

// prompt runs f and fails if it takes longer than soon.
func prompt(s *suite, what string, f func()) {
	s.Helper()
	begin := time.Now()
	f()
	require.Less(s, time.Since(begin), soon, what)
}

// Sink keeps what it gets. It checks that pieces are neither empty nor too large
// and that a stream is written by one goroutine at a time.
type Sink struct {
	// Hold, when not nil, holds every Write back until it is closed.
	Hold chan struct{}
	// Fail makes every Write of this stream fail.
	Fail sandbox.Stream

	mu      sync.Mutex
	data    [3]bytes.Buffer
	writing [3]bool
	calls   [3]int
	faults  []string
}

// errRefused is what a failing Sink answers.
var errRefused = errors.New("the sink takes no more")

// Write implements sandbox.Sink.
func (s *Sink) Write(stream sandbox.Stream, p []byte) error {
	if stream != sandbox.Stdout && stream != sandbox.Stderr {
		s.fault("a stream that is neither stdout nor stderr")
		return nil
	}
	if !s.enter(stream, len(p)) {
		return errRefused
	}
	if s.Hold != nil {
		<-s.Hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing[stream] = false
	if s.Fail == stream {
		return errRefused
	}
	s.data[stream].Write(p)
	return nil
}

func (s *Sink) enter(stream sandbox.Stream, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[stream]++
	switch {
	case s.writing[stream]:
		s.faults = append(s.faults, "two writes of a stream at once")
		return false
	case n == 0:
		s.faults = append(s.faults, "an empty piece")
	case n > 256<<10:
		s.faults = append(s.faults, "a piece over 256 KiB")
	}
	s.writing[stream] = true
	return true
}

func (s *Sink) fault(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, text)
}

// String is what the stream got so far.
func (s *Sink) String(stream sandbox.Stream) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data[stream].String()
}

// Calls counts the writes of the stream, refused ones included.
func (s *Sink) Calls(stream sandbox.Stream) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[stream]
}

// Faults are the rules that the provider broke.
func (s *Sink) Faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

// endless is a standard input that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

var _ io.Reader = endless{}
