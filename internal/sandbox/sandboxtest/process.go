package sandboxtest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
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

func argvIsExact(t *testing.T, s *suite) {
	args := []string{"plain", "", "two words", "quote ' and \"", "$HOME `id` \\n", "über ☃", "-n", "--", "two\nlines"}
	_, out, _ := s.run(t, s.create(t), s.process(Args(args...)))
	require.Equal(t, strings.Join(args, "\n")+"\n", out)
}

func envIsExact(t *testing.T, s *suite) {
	process := s.process(Env("GREETING"), Env("EMPTY"), Env("UNSET"), Env("SANDBOXTEST_WORKER_SECRET"))
	process.Env = append(s.Env[:len(s.Env):len(s.Env)], "GREETING=a = b  'c' ☃", "EMPTY=")
	_, out, _ := s.run(t, s.create(t), process)
	require.Equal(t, "a = b  'c' ☃\n\n\n\n", out)
}

func cwdIsApplied(t *testing.T, s *suite) {
	process := s.process(Pwd())
	_, standard, _ := s.run(t, s.create(t), process)
	require.True(t, strings.HasPrefix(standard, "/"), "%q", standard)
	require.NotEqual(t, s.Cwd+"\n", standard)
	process.Cwd = s.Cwd
	_, out, _ := s.run(t, s.create(t), process)
	require.Equal(t, s.Cwd+"\n", out)
}

func stdinIsExact(t *testing.T, s *suite) {
	text := pattern(1<<20 + 7)
	process := s.process(Cat())
	process.Stdin = iotest.HalfReader(strings.NewReader(text))
	end, out, _ := s.run(t, s.create(t), process)
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	requireSame(t, text, out)
}

func stdinAbsent(t *testing.T, s *suite) {
	end, out, _ := s.run(t, s.create(t), s.process(Cat(), Print("end of input")))
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Equal(t, "end of input\n", out)
}

func stdinUnread(t *testing.T, s *suite) {
	process := s.process(Exit(4))
	process.Stdin = endless{}
	end, _, _ := s.run(t, s.create(t), process)
	require.Equal(t, &sandbox.Exit{Code: 4}, end.Exit)
}

func stdinFails(t *testing.T, s *suite) {
	process := s.process(Cat())
	process.Stdin = io.MultiReader(strings.NewReader("some"), iotest.ErrReader(errors.New("source broke")))
	end, out, _ := s.run(t, s.create(t), process)
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Equal(t, "some", out)
}

func exitCodes(t *testing.T, s *suite) {
	sb := s.create(t)
	for _, code := range []int{0, 1, 2, 77, 126, 127, 128, 137, 143, 255} {
		end, _, _ := s.run(t, sb, s.process(Exit(code)))
		require.Equal(t, &sandbox.Exit{Code: code}, end.Exit)
		require.Equal(t, sandbox.StartedYes, end.Started)
		require.Zero(t, end.OOM)
		require.False(t, end.CPUExceeded)
		sb = s.again(t, sb)
	}
}

func signals(t *testing.T, s *suite) {
	sb := s.create(t)
	for _, number := range []int{1, 2, 6, 9, 11, 15} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			end, _, _ := s.run(t, sb, s.process(Signal(number)))
			require.Equal(t, &sandbox.Exit{Signal: number}, end.Exit)
			require.Zero(t, end.OOM)
		})
		sb = s.again(t, sb)
	}
}

// again is the sandbox for the next run: the same one after a reset where the
// provider can, else a new one.
func (s *suite) again(t *testing.T, sb sandbox.Sandbox) sandbox.Sandbox {
	t.Helper()
	if !s.p.Capabilities().Reset {
		return s.create(t)
	}
	require.NoError(t, sb.Reset(s.ctx(t)))
	return sb
}

func pattern(n int) string { return strings.Repeat(Pattern, n/len(Pattern)+1)[:n] }

// requireSame compares long texts without printing them.
func requireSame(t *testing.T, want, got string) {
	t.Helper()
	require.Len(t, []byte(got), len(want), "the length differs")
	require.True(t, want == got, "the bytes differ")
}
