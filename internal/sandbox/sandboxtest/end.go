package sandboxtest

import (
	"context"
	"sync"
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
func (s *suite) running(ops ...Op) (sandbox.Sandbox, sandbox.Run) {
	s.Helper()
	sb, sink := s.create(), &Sink{}
	run := s.start(sb, sink, append(ops, Print("ready"), Sleep(long))...)
	require.Eventually(s, func() bool { return sink.String(sandbox.Stdout) == "ready\n" }, patience, tick)
	return sb, run
}

func termIsHonoured(s *suite) {
	_, run := s.running(TermExit(7))
	proof, err := run.Terminate(s.ctx(), long)
	require.NoError(s, err, "the grace period was waited for")
	requireProven(s, proof)
	end := s.wait(run)
	require.Equal(s, &sandbox.Exit{Code: 7}, end.Exit)
	require.Equal(s, sandbox.StartedYes, end.Started)
}

func termByDefault(s *suite) {
	_, run := s.running()
	proof, err := run.Terminate(s.ctx(), long)
	require.NoError(s, err)
	requireProven(s, proof)
	require.Equal(s, &sandbox.Exit{Signal: 15}, s.wait(run).Exit)
}

func termIgnored(s *suite) {
	const grace = 300 * time.Millisecond
	_, run := s.running(IgnoreTerm())
	begin := time.Now()
	proof, err := run.Terminate(s.ctx(), grace)
	require.NoError(s, err)
	require.GreaterOrEqual(s, time.Since(begin), grace, "killed within the grace period")
	requireProven(s, proof)
	require.Equal(s, &sandbox.Exit{Signal: 9}, s.wait(run).Exit)
}

func graceZero(s *suite) {
	_, run := s.running(IgnoreTerm())
	prompt(s, "without grace", func() {
		proof, err := run.Terminate(s.ctx(), 0)
		require.NoError(s, err)
		requireProven(s, proof)
	})
	require.Equal(s, &sandbox.Exit{Signal: 9}, s.wait(run).Exit)
}

func shorterGraceWins(s *suite) {
	_, run := s.running(IgnoreTerm())
	var first sync.WaitGroup
	first.Go(func() {
		proof, err := run.Terminate(s.ctx(), long)
		if err != nil || !proof.Proven {
			s.Errorf("the first call: %v, proof %+v", err, proof)
		}
	})
	end := s.waitFor(run, never)
	require.Nil(s, end.Exit)
	proof, err := run.Terminate(s.ctx(), 50*time.Millisecond)
	require.NoError(s, err)
	requireProven(s, proof)
	first.Wait()
	s.wait(run)
}

func terminateAfterTheEnd(s *suite) {
	run := s.start(s.create(), &Sink{}, Exit(5))
	s.wait(run)
	for range 3 {
		proof, err := run.Terminate(s.ctx(), long)
		require.NoError(s, err)
		requireProven(s, proof)
	}
	require.Equal(s, &sandbox.Exit{Code: 5}, s.wait(run).Exit, "a late Terminate changes nothing")
}

func leftoverIsEnded(s *suite) {
	end, _, _ := s.run(s.create(), s.process(Leftover(), Exit(3)))
	require.Equal(s, &sandbox.Exit{Code: 3}, end.Exit)
	require.True(s, end.Leftover)
}

func leftoverThatIgnoresTerm(s *suite) {
	end, _, _ := s.run(s.create(), s.process(IgnoreTerm(), Leftover(), Leftover(), Exit(0)))
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	require.True(s, end.Leftover)
}

func leftoverOfATerminatedRun(s *suite) {
	_, run := s.running(IgnoreTerm(), Leftover())
	proof, err := run.Terminate(s.ctx(), 50*time.Millisecond)
	require.NoError(s, err)
	requireProven(s, proof)
	require.Equal(s, &sandbox.Exit{Signal: 9}, s.wait(run).Exit)
}

func waitByMany(s *suite) {
	_, run := s.running()
	var all sync.WaitGroup
	ends := make([]sandbox.End, 8)
	for i := range ends {
		all.Go(func() {
			end, err := run.Wait(s.ctx())
			if err != nil {
				s.Errorf("wait: %v", err)
			}
			ends[i] = end
		})
	}
	for range 4 {
		all.Go(func() {
			if _, err := run.Terminate(s.ctx(), long); err != nil {
				s.Errorf("terminate: %v", err)
			}
		})
	}
	all.Wait()
	last := s.wait(run)
	for _, end := range ends {
		require.Equal(s, last, end)
	}
}

// waitFor waits for d on a run that is not expected to be over, and returns what
// is known.
func (s *suite) waitFor(run sandbox.Run, d time.Duration) sandbox.End {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	var end sandbox.End
	var err error
	prompt(s, "wait after its context's end", func() { end, err = run.Wait(ctx) })
	if err == nil {
		require.False(s, end.Proof.Proven, "the run is over: %+v", end)
		return end
	}
	require.ErrorIs(s, err, context.DeadlineExceeded)
	return end
}
