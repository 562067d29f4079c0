package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func processTests() []namedTest {
	return []namedTest{
		{"Argv", argvIsExact},
		{"Env", envIsExact},
		{"Cwd", cwdIsApplied},
		{"Stdin", stdinIsExact},
		{"StdinAbsent", stdinAbsent},
		{"StdinUnread", stdinUnread},
		{"StdinFails", stdinFails},
		{"ExitCodes", exitCodes},
		{"Signals", signals},
	}
}

func argvIsExact(s *suite) {
	args := []string{"plain", "", "two words", "quote ' and \"", "$HOME `id` \\n", "über ☃", "-n", "--", "two\nlines"}
	_, out, _ := s.run(s.create(), s.process(Args(args...)))
	require.Equal(s, strings.Join(args, "\n")+"\n", out)
}

func envIsExact(s *suite) {
	process := s.process(Env("GREETING"), Env("EMPTY"), Env("UNSET"), Env("SANDBOXTEST_WORKER_SECRET"))
	process.Env = s.env("GREETING=a = b  'c' ☃", "EMPTY=")
	_, out, _ := s.run(s.create(), process)
	require.Equal(s, "a = b  'c' ☃\n\n\n\n", out)
}

func cwdIsApplied(s *suite) {
	process := s.process(Pwd())
	_, standard, _ := s.run(s.create(), process)
	require.True(s, strings.HasPrefix(standard, "/"), "%q", standard)
	require.NotEqual(s, s.Cwd+"\n", standard)
	process.Cwd = s.Cwd
	_, out, _ := s.run(s.create(), process)
	require.Equal(s, s.Cwd+"\n", out)
}

func stdinIsExact(s *suite) {
	text := pattern(1<<20 + 7)
	process := s.process(Cat())
	process.Stdin = iotest.HalfReader(strings.NewReader(text))
	end, out, _ := s.run(s.create(), process)
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	requireSame(s, text, out)
}

func stdinAbsent(s *suite) {
	end, out, _ := s.run(s.create(), s.process(Cat(), Print("end of input")))
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	require.Equal(s, "end of input\n", out)
}

func stdinUnread(s *suite) {
	process := s.process(Exit(4))
	process.Stdin = endless{}
	end, _, _ := s.run(s.create(), process)
	require.Equal(s, &sandbox.Exit{Code: 4}, end.Exit)
}

func stdinFails(s *suite) {
	process := s.process(Cat())
	process.Stdin = io.MultiReader(strings.NewReader("some"), iotest.ErrReader(errors.New("source broke")))
	end, out, _ := s.run(s.create(), process)
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	require.Equal(s, "some", out)
}

func exitCodes(s *suite) {
	sb := s.create()
	for _, code := range []int{0, 1, 2, 77, 126, 127, 128, 137, 143, 255} {
		end, _, _ := s.run(sb, s.process(Exit(code)))
		require.Equal(s, &sandbox.Exit{Code: code}, end.Exit)
		require.Equal(s, sandbox.StartedYes, end.Started)
		require.Zero(s, end.OOM)
		require.False(s, end.CPUExceeded)
		sb = s.again(sb)
	}
}

func signals(s *suite) {
	sb := s.create()
	for _, number := range []int{1, 2, 6, 9, 11, 15} {
		s.sub(fmt.Sprint(number), func(s *suite) {
			end, _, _ := s.run(sb, s.process(Signal(number)))
			require.Equal(s, &sandbox.Exit{Signal: number}, end.Exit)
			require.Zero(s, end.OOM)
		})
		sb = s.again(sb)
	}
}

// again is the sandbox for the next run: the same one after a reset where the
// provider can, else a new one.
func (s *suite) again(sb sandbox.Sandbox) sandbox.Sandbox {
	s.Helper()
	if !s.p.Capabilities().Reset {
		return s.create()
	}
	require.NoError(s, sb.Reset(s.ctx()))
	return sb
}

func pattern(n int) string { return strings.Repeat(Pattern, n/len(Pattern)+1)[:n] }

// requireSame compares long texts without printing them.
func requireSame(s *suite, want, got string) {
	s.Helper()
	require.Len(s, []byte(got), len(want), "the length differs")
	require.True(s, want == got, "the bytes differ")
}
