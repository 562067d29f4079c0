package sandboxtest

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func contextTests() []namedTest {
	return []namedTest{
		{"CreateCancelled", createCancelled},
		{"CreateShort", createShort},
		{"PrepareCancelled", prepareCancelled},
		{"OpenCancelled", openCancelled},
		{"WaitCancelled", waitCancelled},
		{"TerminateCancelled", terminateCancelled},
		{"ResetCancelled", resetCancelled},
		{"DestroyCancelled", destroyCancelled},
		{"CollectCancelled", collectCancelled},
		{"InventoryCancelled", inventoryCancelled},
		{"OutlivesItsContexts", outlivesItsContexts},
	}
}

// ended is a context that is over.
func (s *suite) ended() context.Context {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	return ctx
}

// createWith creates under ctx and makes sure that nothing is left: whatever the
// answer was, the handle that the caller knows is enough to destroy.
func (s *suite) createWith(ctx context.Context) {
	s.Helper()
	spec := s.spec()
	prompt(s, "create", func() { _, _ = s.p.Create(ctx, spec) }) //nolint:errcheck // both answers are right
	h := sandbox.Handle{Provider: s.p.Name(), Host: s.p.Capabilities().Host, Lease: spec.Lease}
	proof, err := s.p.Destroy(s.ctx(), h)
	require.NoError(s, err)
	requireProven(s, proof)
	require.False(s, s.listed(spec.Lease))
}

func createCancelled(s *suite) { s.createWith(s.ended()) }

func createShort(s *suite) {
	for _, d := range []time.Duration{50 * time.Microsecond, 500 * time.Microsecond, 2 * time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(s.Context(), d)
		s.createWith(ctx)
		cancel()
	}
}

func prepareCancelled(s *suite) {
	sb := s.create()
	sink := &Sink{}
	prompt(s, "prepare", func() {
		run, err := sb.Prepare(s.ended(), s.process(Print("never")), sink)
		if err != nil {
			return
		}
		_, err = run.Terminate(s.ctx(), 0)
		require.NoError(s, err)
	})
	require.Zero(s, sink.Calls(sandbox.Stdout))
}

// After an Open that failed the run can still be ended, and what is said about
// the start is true.
func openCancelled(s *suite) {
	sb, sink := s.create(), &Sink{}
	run, err := sb.Prepare(s.ctx(), s.process(Print("ran"), Sleep(long)), sink)
	require.NoError(s, err)
	prompt(s, "open", func() { err = run.Open(s.ended()) })
	proof, terr := run.Terminate(s.ctx(), 0)
	require.NoError(s, terr)
	requireProven(s, proof)
	end := s.wait(run)
	if err != nil && sandbox.KindOf(err) == sandbox.Refused {
		require.Equal(s, sandbox.StartedNo, end.Started)
	}
	if end.Started == sandbox.StartedNo {
		require.Empty(s, sink.String(sandbox.Stdout))
	}
}

func waitCancelled(s *suite) {
	_, run := s.running()
	prompt(s, "wait", func() {
		end, err := run.Wait(s.ended())
		if err != nil {
			require.ErrorIs(s, err, context.Canceled)
		}
		require.NotEqual(s, sandbox.StartedNo, end.Started, "it runs")
		require.NotZero(s, end.Started)
		require.Nil(s, end.Exit)
		require.False(s, end.Proof.Proven)
	})
	_, err := run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	require.NotNil(s, s.wait(run).Exit)
}

func terminateCancelled(s *suite) {
	_, run := s.running(IgnoreTerm())
	ctx, cancel := context.WithTimeout(s.Context(), never)
	defer cancel()
	prompt(s, "terminate", func() {
		proof, err := run.Terminate(ctx, long)
		if err != nil {
			require.ErrorIs(s, err, context.DeadlineExceeded)
		}
		require.False(s, proof.Proven)
	})
	proof, err := run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	requireProven(s, proof)
}

// A reset that failed leaves a sandbox that is not used again but can be
// destroyed.
func resetCancelled(s *suite) {
	sb := s.create()
	s.run(sb, s.process(Touch("old")))
	var err error
	prompt(s, "reset", func() { err = sb.Reset(s.ended()) })
	if err == nil && s.p.Capabilities().Reset {
		_, out, _ := s.run(sb, s.process(List()))
		require.Empty(s, out, "the reset said that it was done")
	}
}

func destroyCancelled(s *suite) {
	sb, _ := s.running(IgnoreTerm())
	prompt(s, "destroy", func() {
		proof, err := sb.Destroy(s.ended())
		if err == nil && proof.Proven {
			require.False(s, s.listed(sb.Handle().Lease))
		}
	})
}

// A collection that its context ended says so, or has all; the next one has all.
func collectCancelled(s *suite) {
	if !s.files() {
		return
	}
	run := s.finished(s.create(), Put("a", "1"), Put("b", "2"))
	seen := 0
	prompt(s, "collect", func() {
		more, err := run.Collect(s.ended(), plenty("*"), func(sandbox.Collected) error { seen++; return nil })
		if err == nil {
			require.Equal(s, 2, seen+more, "no error, and not all")
		}
	})
	lines, _ := s.collected(run, plenty("*"))
	require.Equal(s, []string{"a=1", "b=2"}, lines)
}

// A listing that its context ended is an error, or complete: never a part.
func inventoryCancelled(s *suite) {
	sb := s.create()
	prompt(s, "inventory", func() {
		handles, err := s.p.Inventory(s.ended())
		if err == nil {
			require.Len(s, handles, 1)
			require.Equal(s, sb.Handle().Lease, handles[0].Lease)
		}
	})
}

// The contexts of Create, Prepare and Open bound these calls only.
func outlivesItsContexts(s *suite) {
	ctx, cancel := context.WithCancel(s.Context())
	sb, err := s.p.Create(ctx, s.spec())
	cancel()
	require.NoError(s, err)
	s.Cleanup(func() {
		_, err := sb.Destroy(context.WithoutCancel(s.Context()))
		require.NoError(s, err)
	})
	sink := &Sink{}
	ctx, cancel = context.WithCancel(s.Context())
	run, err := sb.Prepare(ctx, s.process(Sleep(never), Print("on")), sink)
	cancel()
	require.NoError(s, err)
	ctx, cancel = context.WithCancel(s.Context())
	err = run.Open(ctx)
	cancel()
	require.NoError(s, err)
	require.Equal(s, &sandbox.Exit{}, s.wait(run).Exit)
	require.Equal(s, "on\n", sink.String(sandbox.Stdout))
}
