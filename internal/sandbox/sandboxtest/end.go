package sandboxtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func endTests() []namedTest {
	return []namedTest{
		{"TermIsHonoured", termIsHonoured},
		{"TermByDefault", termByDefault},
		{"TermIgnored", termIgnored},
		{"GraceZero", graceZero},
		{"ShorterGraceWins", shorterGraceWins},
		{"TerminateAfterTheEnd", terminateAfterTheEnd},
		{"LeftoverIsEnded", leftoverIsEnded},
		{"LeftoverThatIgnoresTerm", leftoverThatIgnoresTerm},
		{"LeftoverOfATerminatedRun", leftoverOfATerminatedRun},
		{"WaitByMany", waitByMany},
	}
}

// running starts a program and returns once it has printed "ready", its signal
// dispositions set.
func (s *suite) running(t *testing.T, ops ...Op) (sandbox.Sandbox, sandbox.Run) {
	t.Helper()
	sb, sink := s.create(t), &Sink{}
	run := s.start(t, sb, sink, append(ops, Print("ready"), Sleep(long))...)
	require.Eventually(t, func() bool { return sink.String(sandbox.Stdout) == "ready\n" }, patience, tick)
	return sb, run
}

func termIsHonoured(t *testing.T, s *suite) {
	_, run := s.running(t, TermExit(7))
	proof, err := run.Terminate(s.ctx(t), long)
	require.NoError(t, err, "the grace period was waited for")
	requireProven(t, proof)
	end := s.wait(t, run)
	require.Equal(t, &sandbox.Exit{Code: 7}, end.Exit)
	require.Equal(t, sandbox.StartedYes, end.Started)
}

func termByDefault(t *testing.T, s *suite) {
	_, run := s.running(t)
	proof, err := run.Terminate(s.ctx(t), long)
	require.NoError(t, err)
	requireProven(t, proof)
	require.Equal(t, &sandbox.Exit{Signal: 15}, s.wait(t, run).Exit)
}

func termIgnored(t *testing.T, s *suite) {
	const grace = 300 * time.Millisecond
	_, run := s.running(t, IgnoreTerm())
	begin := time.Now()
	proof, err := run.Terminate(s.ctx(t), grace)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), grace, "killed within the grace period")
	requireProven(t, proof)
	require.Equal(t, &sandbox.Exit{Signal: 9}, s.wait(t, run).Exit)
}

func graceZero(t *testing.T, s *suite) {
	_, run := s.running(t, IgnoreTerm())
	prompt(t, "without grace", func() {
		proof, err := run.Terminate(s.ctx(t), 0)
		require.NoError(t, err)
		requireProven(t, proof)
	})
	require.Equal(t, &sandbox.Exit{Signal: 9}, s.wait(t, run).Exit)
}

func shorterGraceWins(t *testing.T, s *suite) {
	_, run := s.running(t, IgnoreTerm())
	var first sync.WaitGroup
	first.Go(func() {
		proof, err := run.Terminate(s.ctx(t), long)
		if err != nil || !proof.Proven {
			t.Errorf("the first call: %v, proof %+v", err, proof)
		}
	})
	end := s.waitFor(t, run, never)
	require.Nil(t, end.Exit)
	proof, err := run.Terminate(s.ctx(t), 50*time.Millisecond)
	require.NoError(t, err)
	requireProven(t, proof)
	first.Wait()
	s.wait(t, run)
}

func terminateAfterTheEnd(t *testing.T, s *suite) {
	run := s.start(t, s.create(t), &Sink{}, Exit(5))
	s.wait(t, run)
	for range 3 {
		proof, err := run.Terminate(s.ctx(t), long)
		require.NoError(t, err)
		requireProven(t, proof)
	}
	require.Equal(t, &sandbox.Exit{Code: 5}, s.wait(t, run).Exit, "a late Terminate changes nothing")
}

func leftoverIsEnded(t *testing.T, s *suite) {
	end, _, _ := s.run(t, s.create(t), s.process(Leftover(), Exit(3)))
	require.Equal(t, &sandbox.Exit{Code: 3}, end.Exit)
	require.True(t, end.Leftover)
}

func leftoverThatIgnoresTerm(t *testing.T, s *suite) {
	end, _, _ := s.run(t, s.create(t), s.process(IgnoreTerm(), Leftover(), Leftover(), Exit(0)))
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.True(t, end.Leftover)
}

func leftoverOfATerminatedRun(t *testing.T, s *suite) {
	_, run := s.running(t, IgnoreTerm(), Leftover())
	proof, err := run.Terminate(s.ctx(t), 50*time.Millisecond)
	require.NoError(t, err)
	requireProven(t, proof)
	require.Equal(t, &sandbox.Exit{Signal: 9}, s.wait(t, run).Exit)
}

func waitByMany(t *testing.T, s *suite) {
	_, run := s.running(t)
	var all sync.WaitGroup
	ends := make([]sandbox.End, 8)
	for i := range ends {
		all.Go(func() {
			end, err := run.Wait(s.ctx(t))
			if err != nil {
				t.Errorf("wait: %v", err)
			}
			ends[i] = end
		})
	}
	for range 4 {
		all.Go(func() {
			if _, err := run.Terminate(s.ctx(t), long); err != nil {
				t.Errorf("terminate: %v", err)
			}
		})
	}
	all.Wait()
	last := s.wait(t, run)
	for _, end := range ends {
		require.Equal(t, last, end)
	}
}

// waitFor waits for d on a run that is not expected to be over, and returns what
// is known.
func (s *suite) waitFor(t *testing.T, run sandbox.Run, d time.Duration) sandbox.End {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var end sandbox.End
	var err error
	prompt(t, "wait after its context's end", func() { end, err = run.Wait(ctx) })
	if err == nil {
		require.False(t, end.Proof.Proven, "the run is over: %+v", end)
		return end
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	return end
}
