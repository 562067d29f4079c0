package sandboxtest

import (
	"context"
	"testing"
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
		{"OutlivesItsContexts", outlivesItsContexts},
	}
}

func (s *suite) ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// createWith creates under ctx and makes sure that nothing is left: whatever the
// answer was, the handle that the caller knows is enough to destroy.
func (s *suite) createWith(t *testing.T, ctx context.Context) {
	t.Helper()
	spec := s.spec()
	prompt(t, "create", func() { _, _ = s.p.Create(ctx, spec) }) //nolint:errcheck // both answers are right
	h := sandbox.Handle{Provider: s.p.Name(), Host: s.p.Capabilities().Host, Lease: spec.Lease}
	proof, err := s.p.Destroy(s.ctx(t), h)
	require.NoError(t, err)
	requireProven(t, proof)
	require.False(t, s.listed(t, spec.Lease))
}

func createCancelled(t *testing.T, s *suite) { s.createWith(t, s.ended()) }

func createShort(t *testing.T, s *suite) {
	for _, d := range []time.Duration{50 * time.Microsecond, 500 * time.Microsecond, 2 * time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		s.createWith(t, ctx)
		cancel()
	}
}

func prepareCancelled(t *testing.T, s *suite) {
	sb := s.create(t)
	sink := &Sink{}
	prompt(t, "prepare", func() {
		run, err := sb.Prepare(s.ended(), s.process(Print("never")), sink)
		if err != nil {
			return
		}
		_, err = run.Terminate(s.ctx(t), 0)
		require.NoError(t, err)
	})
	require.Zero(t, sink.Calls(sandbox.Stdout))
}

// After an Open that failed the run can still be ended, and what is said about
// the start is true.
func openCancelled(t *testing.T, s *suite) {
	sb, sink := s.create(t), &Sink{}
	run, err := sb.Prepare(s.ctx(t), s.process(Print("ran"), Sleep(long)), sink)
	require.NoError(t, err)
	prompt(t, "open", func() { err = run.Open(s.ended()) })
	proof, terr := run.Terminate(s.ctx(t), 0)
	require.NoError(t, terr)
	requireProven(t, proof)
	end := s.wait(t, run)
	if err != nil && sandbox.KindOf(err) == sandbox.Refused {
		require.Equal(t, sandbox.StartedNo, end.Started)
	}
	if end.Started == sandbox.StartedNo {
		require.Empty(t, sink.String(sandbox.Stdout))
	}
}

func waitCancelled(t *testing.T, s *suite) {
	_, run := s.running(t)
	prompt(t, "wait", func() {
		end, err := run.Wait(s.ended())
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.NotEqual(t, sandbox.StartedNo, end.Started, "it runs")
		require.NotZero(t, end.Started)
		require.Nil(t, end.Exit)
		require.False(t, end.Proof.Proven)
	})
	_, err := run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
	require.NotNil(t, s.wait(t, run).Exit)
}

func terminateCancelled(t *testing.T, s *suite) {
	_, run := s.running(t, IgnoreTerm())
	ctx, cancel := context.WithTimeout(context.Background(), never)
	defer cancel()
	prompt(t, "terminate", func() {
		proof, err := run.Terminate(ctx, long)
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.False(t, proof.Proven)
	})
	proof, err := run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
	requireProven(t, proof)
}

// A reset that failed leaves a sandbox that is not used again but can be
// destroyed.
func resetCancelled(t *testing.T, s *suite) {
	sb := s.create(t)
	s.run(t, sb, s.process(Touch("old")))
	var err error
	prompt(t, "reset", func() { err = sb.Reset(s.ended()) })
	if err == nil && s.p.Capabilities().Reset {
		_, out, _ := s.run(t, sb, s.process(List()))
		require.Empty(t, out, "the reset said that it was done")
	}
}

func destroyCancelled(t *testing.T, s *suite) {
	sb, _ := s.running(t, IgnoreTerm())
	prompt(t, "destroy", func() {
		proof, err := sb.Destroy(s.ended())
		if err == nil && proof.Proven {
			require.False(t, s.listed(t, sb.Handle().Lease))
		}
	})
}

// The contexts of Create, Prepare and Open bound these calls only.
func outlivesItsContexts(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(context.Background())
	sb, err := s.p.Create(ctx, s.spec())
	cancel()
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := sb.Destroy(context.Background())
		require.NoError(t, err)
	})
	sink := &Sink{}
	ctx, cancel = context.WithCancel(context.Background())
	run, err := sb.Prepare(ctx, s.process(Sleep(never), Print("on")), sink)
	cancel()
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(context.Background())
	err = run.Open(ctx)
	cancel()
	require.NoError(t, err)
	require.Equal(t, &sandbox.Exit{}, s.wait(t, run).Exit)
	require.Equal(t, "on\n", sink.String(sandbox.Stdout))
}
