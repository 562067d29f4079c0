package sandboxtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func resetTests() []namedTest {
	return []namedTest{
		{"LastJobIsInvisible", lastJobIsInvisible},
		{"NotBeforeTheProof", notBeforeTheProof},
	}
}

func lastJobIsInvisible(t *testing.T, s *suite) {
	sb := s.create(t)
	for i := range 5 {
		name := fmt.Sprint("file", i)
		end, out, _ := s.run(t, sb, s.process(Touch(name), Leftover(), List()))
		require.Equal(t, &sandbox.Exit{}, end.Exit)
		require.Equal(t, name+"\n", out, "only this job's own file is there")
		if !s.p.Capabilities().Reset {
			require.Equal(t, sandbox.Refused, sandbox.KindOf(sb.Reset(s.ctx(t))))
			return
		}
		require.NoError(t, sb.Reset(s.ctx(t)))
	}
	require.NoError(t, sb.Reset(s.ctx(t)), "a reset of a fresh sandbox")
}

func notBeforeTheProof(t *testing.T, s *suite) {
	sb, run := s.running(t)
	require.Error(t, sb.Reset(s.ctx(t)), "while it runs")
	proof, err := run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
	requireProven(t, proof)
}

func lostTests() []namedTest {
	return []namedTest{{"Lost", lost}}
}

func lost(t *testing.T, s *suite) {
	if s.Break == nil {
		t.Log("NOT TESTED: the harness has no Break, so nothing is said about Lost")
		return
	}
	sb, run := s.running(t, IgnoreTerm())
	select {
	case <-sb.Lost():
		require.Fail(t, "lost before it was")
	default:
	}
	s.Break(t, sb)
	select {
	case <-sb.Lost():
	case <-s.ctx(t).Done():
		require.Fail(t, "nobody notices that the sandbox is lost")
	}
	_, err := sb.Prepare(s.ctx(t), s.process(), &Sink{})
	require.Error(t, err)
	require.Error(t, sb.Reset(s.ctx(t)))
	proof, err := sb.Destroy(s.ctx(t))
	require.NoError(t, err)
	requireProven(t, proof)
	end := s.wait(t, run)
	require.Equal(t, sandbox.StartedYes, end.Started)
}
