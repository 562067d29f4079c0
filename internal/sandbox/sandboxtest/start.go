package sandboxtest

import (
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

func nothingRunsBehindTheGate(s *suite) {
	sb := s.create()
	sink := &Sink{}
	run, err := sb.Prepare(s.ctx(), s.process(Print("ran"), Touch("ran")), sink)
	require.NoError(s, err)
	end := s.waitFor(run, never)
	require.Equal(s, sandbox.StartedNo, end.Started)
	require.Nil(s, end.Exit)

	proof, err := run.Terminate(s.ctx(), long)
	require.NoError(s, err, "a closed gate needs no grace")
	requireProven(s, proof)
	end = s.wait(run)
	require.Equal(s, sandbox.StartedNo, end.Started)
	require.Nil(s, end.Exit)
	require.Nil(s, end.StartError)
	require.False(s, end.Leftover)
	require.Error(s, run.Open(s.ctx()), "the gate opens after the end")
	require.Zero(s, sink.Calls(sandbox.Stdout)+sink.Calls(sandbox.Stderr))
	if s.p.Capabilities().Reset {
		require.NoError(s, sb.Reset(s.ctx()))
		_, out, _ := s.run(sb, s.process(List()))
		require.Empty(s, out)
	}
}

func openStarts(s *suite) {
	sb := s.create()
	end, out, errs := s.run(sb, s.process(Print("out"), Eprint("err")))
	require.Equal(s, sandbox.StartedYes, end.Started)
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	require.Nil(s, end.StartError)
	require.False(s, end.Leftover)
	require.False(s, end.EndedAt.IsZero())
	require.False(s, end.ProvenAt.Before(end.EndedAt), "proven before it ended")
	require.Equal(s, "out\n", out)
	require.Equal(s, "err\n", errs)
}

func openTwice(s *suite) {
	sb := s.create()
	sink := &Sink{}
	run := s.start(sb, sink, Print("once"))
	require.Error(s, run.Open(s.ctx()))
	s.wait(run)
	require.Error(s, run.Open(s.ctx()))
	require.Equal(s, "once\n", sink.String(sandbox.Stdout))
}

func oneRunAtATime(s *suite) {
	sb := s.create()
	sink, other := &Sink{}, &Sink{}
	run, err := sb.Prepare(s.ctx(), s.process(Print("first")), sink)
	require.NoError(s, err)
	_, err = sb.Prepare(s.ctx(), s.process(Print("second")), other)
	require.Error(s, err, "behind the gate of the first")
	require.NoError(s, run.Open(s.ctx()))
	require.Equal(s, &sandbox.Exit{}, s.wait(run).Exit)
	_, err = sb.Prepare(s.ctx(), s.process(Print("third")), other)
	require.Error(s, err, "before the reset")
	require.Equal(s, "first\n", sink.String(sandbox.Stdout))
	require.Zero(s, other.Calls(sandbox.Stdout))
}

func badProcessIsRefused(s *suite) {
	sb := s.create()
	good := s.process(Print("usable"))
	for name, bad := range map[string]sandbox.Process{
		"no argv":         {Env: s.Env, Limits: s.Limits},
		"NUL in argv":     {Argv: append(s.Command(), "a\x00b"), Env: s.Env, Limits: s.Limits},
		"NUL in env":      {Argv: good.Argv, Env: s.env("A=b\x00"), Limits: s.Limits},
		"env without =":   {Argv: good.Argv, Env: s.env("A"), Limits: s.Limits},
		"env, no name":    {Argv: good.Argv, Env: s.env("=b"), Limits: s.Limits},
		"argv[0] is \"\"": {Argv: []string{""}, Env: s.Env, Limits: s.Limits},
	} {
		_, err := sb.Prepare(s.ctx(), bad, &Sink{})
		require.Error(s, err, name)
		require.Equal(s, sandbox.Refused, sandbox.KindOf(err), "%s: %v", name, err)
	}
	_, out, _ := s.run(sb, good)
	require.Equal(s, "usable\n", out, "after refusals")
}

func startErrors(s *suite) {
	for reason, process := range s.StartErrors {
		s.sub(string(reason), func(s *suite) {
			sb := s.create()
			if process.Env == nil {
				process.Env = s.Env
			}
			process.Limits = s.Limits
			sink := &Sink{}
			run := s.startProcess(sb, sink, process)
			end := s.wait(run)
			require.Equal(s, sandbox.StartedNo, end.Started)
			require.NotNil(s, end.StartError)
			require.Equal(s, reason, end.StartError.Reason)
			require.NotEmpty(s, end.StartError.Path)
			require.Nil(s, end.Exit)
			require.Zero(s, sink.Calls(sandbox.Stdout)+sink.Calls(sandbox.Stderr))
			if s.p.Capabilities().Reset {
				require.NoError(s, sb.Reset(s.ctx()))
				_, out, _ := s.run(sb, s.process(Print("usable")))
				require.Equal(s, "usable\n", out)
			}
		})
	}
}
