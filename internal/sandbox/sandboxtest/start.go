package sandboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func startTests() []namedTest {
	return []namedTest{
		{"NothingRunsBehindTheGate", nothingRunsBehindTheGate},
		{"OpenStarts", openStarts},
		{"OpenTwice", openTwice},
		{"OneRunAtATime", oneRunAtATime},
		{"BadProcessIsRefused", badProcessIsRefused},
		{"StartErrors", startErrors},
	}
}

func nothingRunsBehindTheGate(t *testing.T, s *suite) {
	sb := s.create(t)
	sink := &Sink{}
	run, err := sb.Prepare(s.ctx(t), s.process(Print("ran"), Touch("ran")), sink)
	require.NoError(t, err)
	end := s.waitFor(t, run, never)
	require.Equal(t, sandbox.StartedNo, end.Started)
	require.Nil(t, end.Exit)

	proof, err := run.Terminate(s.ctx(t), long)
	require.NoError(t, err, "a closed gate needs no grace")
	requireProven(t, proof)
	end = s.wait(t, run)
	require.Equal(t, sandbox.StartedNo, end.Started)
	require.Nil(t, end.Exit)
	require.Nil(t, end.StartError)
	require.False(t, end.Leftover)
	require.Error(t, run.Open(s.ctx(t)), "the gate opens after the end")
	require.Zero(t, sink.Calls(sandbox.Stdout)+sink.Calls(sandbox.Stderr))
	if s.p.Capabilities().Reset {
		require.NoError(t, sb.Reset(s.ctx(t)))
		_, out, _ := s.run(t, sb, s.process(List()))
		require.Empty(t, out)
	}
}

func openStarts(t *testing.T, s *suite) {
	sb := s.create(t)
	end, out, errs := s.run(t, sb, s.process(Print("out"), Eprint("err")))
	require.Equal(t, sandbox.StartedYes, end.Started)
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Nil(t, end.StartError)
	require.False(t, end.Leftover)
	require.False(t, end.EndedAt.IsZero())
	require.False(t, end.ProvenAt.Before(end.EndedAt), "proven before it ended")
	require.Equal(t, "out\n", out)
	require.Equal(t, "err\n", errs)
}

func openTwice(t *testing.T, s *suite) {
	sb := s.create(t)
	sink := &Sink{}
	run := s.start(t, sb, sink, Print("once"))
	require.Error(t, run.Open(s.ctx(t)))
	s.wait(t, run)
	require.Error(t, run.Open(s.ctx(t)))
	require.Equal(t, "once\n", sink.String(sandbox.Stdout))
}

func oneRunAtATime(t *testing.T, s *suite) {
	sb := s.create(t)
	sink, other := &Sink{}, &Sink{}
	run, err := sb.Prepare(s.ctx(t), s.process(Print("first")), sink)
	require.NoError(t, err)
	_, err = sb.Prepare(s.ctx(t), s.process(Print("second")), other)
	require.Error(t, err, "behind the gate of the first")
	require.NoError(t, run.Open(s.ctx(t)))
	require.Equal(t, &sandbox.Exit{}, s.wait(t, run).Exit)
	_, err = sb.Prepare(s.ctx(t), s.process(Print("third")), other)
	require.Error(t, err, "before the reset")
	require.Equal(t, "first\n", sink.String(sandbox.Stdout))
	require.Zero(t, other.Calls(sandbox.Stdout))
}

func badProcessIsRefused(t *testing.T, s *suite) {
	sb := s.create(t)
	good := s.process(Print("usable"))
	for name, bad := range map[string]sandbox.Process{
		"no argv":         {Env: s.Env, Limits: s.Limits},
		"NUL in argv":     {Argv: append(s.Command(), "a\x00b"), Env: s.Env, Limits: s.Limits},
		"NUL in env":      {Argv: good.Argv, Env: append(s.Env[:len(s.Env):len(s.Env)], "A=b\x00"), Limits: s.Limits},
		"env without =":   {Argv: good.Argv, Env: append(s.Env[:len(s.Env):len(s.Env)], "A"), Limits: s.Limits},
		"env, no name":    {Argv: good.Argv, Env: append(s.Env[:len(s.Env):len(s.Env)], "=b"), Limits: s.Limits},
		"argv[0] is \"\"": {Argv: []string{""}, Env: s.Env, Limits: s.Limits},
	} {
		_, err := sb.Prepare(s.ctx(t), bad, &Sink{})
		require.Error(t, err, name)
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err), "%s: %v", name, err)
	}
	_, out, _ := s.run(t, sb, good)
	require.Equal(t, "usable\n", out, "after refusals")
}

func startErrors(t *testing.T, s *suite) {
	for reason, process := range s.StartErrors {
		t.Run(string(reason), func(t *testing.T) {
			sb := s.create(t)
			if process.Env == nil {
				process.Env = s.Env
			}
			process.Limits = s.Limits
			sink := &Sink{}
			run := s.startProcess(t, sb, sink, process)
			end := s.wait(t, run)
			require.Equal(t, sandbox.StartedNo, end.Started)
			require.NotNil(t, end.StartError)
			require.Equal(t, reason, end.StartError.Reason)
			require.NotEmpty(t, end.StartError.Path)
			require.Nil(t, end.Exit)
			require.Zero(t, sink.Calls(sandbox.Stdout)+sink.Calls(sandbox.Stderr))
			if s.p.Capabilities().Reset {
				require.NoError(t, sb.Reset(s.ctx(t)))
				_, out, _ := s.run(t, sb, s.process(Print("usable")))
				require.Equal(t, "usable\n", out)
			}
		})
	}
}
