package sandboxtest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func resetTests() []namedTest {
	return []namedTest{
		{"LastJobIsInvisible", lastJobIsInvisible},
		{"NotBeforeTheProof", notBeforeTheProof},
	}
}

func lastJobIsInvisible(s *suite) {
	sb := s.create()
	for i := range 5 {
		name := fmt.Sprint("file", i)
		end, out, _ := s.run(sb, s.process(Touch(name), Leftover(), List()))
		require.Equal(s, &sandbox.Exit{}, end.Exit)
		require.Equal(s, name+"\n", out, "only this job's own file is there")
		if !s.p.Capabilities().Reset {
			require.Equal(s, sandbox.Refused, sandbox.KindOf(sb.Reset(s.ctx())))
			return
		}
		require.NoError(s, sb.Reset(s.ctx()))
	}
	require.NoError(s, sb.Reset(s.ctx()), "a reset of a fresh sandbox")
}

func notBeforeTheProof(s *suite) {
	sb, run := s.running()
	require.Error(s, sb.Reset(s.ctx()), "while it runs")
	proof, err := run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	requireProven(s, proof)
}

func lostTests() []namedTest {
	return []namedTest{{"Lost", lost}}
}

func lost(s *suite) {
	if s.Break == nil {
		s.Log("NOT TESTED: the harness has no Break, so nothing is said about Lost")
		return
	}
	sb, run := s.running(IgnoreTerm())
	select {
	case <-sb.Lost():
		require.Fail(s, "lost before it was")
	default:
	}
	s.Break(s.T, sb)
	select {
	case <-sb.Lost():
	case <-s.ctx().Done():
		require.Fail(s, "nobody notices that the sandbox is lost")
	}
	_, err := sb.Prepare(s.ctx(), s.process(), &Sink{})
	require.Error(s, err)
	require.Error(s, sb.Reset(s.ctx()))
	proof, err := sb.Destroy(s.ctx())
	require.NoError(s, err)
	requireProven(s, proof)
	end := s.wait(run)
	require.Equal(s, sandbox.StartedYes, end.Started)
}
