package integration

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// What a job prints, reads and exits with arrives byte for byte, with its proof.
func TestJobsOnOneWorker(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "4")

	t.Run("prints on both streams", func(t *testing.T) {
		s := s.on(t)
		f := s.run("prints", "sh", "-c", "printf 'a\\000b\\r\\nc'; printf err >&2; exit 3").exited(3)
		require.Equal(t, "a\x00b\r\nc", string(f.stdout))
		require.Equal(t, "err", string(f.stderr))
		require.Equal(t, wire.EventStarted, f.events[0])
		require.Equal(t, wire.StartYes, f.result.StartState)
		require.Equal(t, int64(6), f.result.Output.StdoutBytes)
	})
	t.Run("reads stdin of 4 MiB", func(t *testing.T) {
		s := s.on(t)
		in := make([]byte, 4<<20)
		_, err := rand.Read(in)
		require.NoError(t, err)
		f := s.submit("cat", wire.Request{Argv: []string{"cat"}, StdinBase64: new(base64.StdEncoding.EncodeToString(in))}).wait().exited(0)
		require.True(t, bytes.Equal(in, f.stdout))
	})
	t.Run("stdin that is never read", func(t *testing.T) {
		s := s.on(t)
		s.submit("deaf", wire.Request{Argv: []string{"true"}, Stdin: new(strings.Repeat("x", 4<<20))}).wait().exited(0)
	})
	t.Run("signal and number are told apart", func(t *testing.T) {
		s := s.on(t)
		f := s.run("sig", "sh", "-c", "kill -9 $$").proven()
		require.Equal(t, wire.Signaled, f.result.Outcome, "%s", f.raw)
		require.Equal(t, 9, f.result.Signal.Number)
		require.Nil(t, f.result.ExitCode)
		s.run("num", "sh", "-c", "exit 137").exited(137)
	})
	t.Run("environment is the base set and the request's own", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("env", wire.Request{Argv: []string{"env"}, Env: map[string]string{"A": "1"}}).wait().exited(0)
		require.NotContains(t, string(f.stdout), "CANARY")
		require.NotContains(t, string(f.stdout), "NATS")
		require.Contains(t, string(f.stdout), "A=1\n")
		require.Contains(t, string(f.stdout), "HOME=/workspace\n")
	})
	t.Run("what cannot be executed says why", func(t *testing.T) {
		s := s.on(t)
		for name, c := range map[string]struct {
			argv   []string
			reason wire.Reason
			code   int
		}{
			"missing":       {[]string{"nosuch"}, wire.ReasonNotFound, 127},
			"not-exec":      {[]string{"/etc/passwd"}, wire.ReasonNotExecutable, 126},
			"directory":     {[]string{"/tmp"}, wire.ReasonNotExecutable, 126},
			"long-argument": {[]string{"/no/" + strings.Repeat("x", 300)}, "", 0},
		} {
			f := s.run(name, c.argv...).proven()
			require.Equal(t, wire.NotStarted, f.result.Outcome, "%s", f.raw)
			require.Equal(t, wire.StartNo, f.result.StartState)
			if c.reason != "" {
				require.Equal(t, c.reason, f.result.Reason, "%s", f.raw)
				require.Equal(t, c.code, *f.result.ExitCode)
			}
		}
		f := s.submit("cwd", wire.Request{Argv: []string{"true"}, Cwd: "/no/such"}).wait()
		require.Equal(t, wire.ReasonBadCwd, f.result.Reason, "%s", f.raw)
		f = s.submit("relative-cwd", wire.Request{Argv: []string{"pwd"}, Cwd: "."}).wait().exited(0)
		require.Equal(t, "/workspace\n", string(f.stdout))
	})
	t.Run("64 MiB arrive whole, in big chunks", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("flood", wire.Request{Argv: []string{"head", "-c", "64M", "/dev/zero"}, Limits: wire.Limits{OutputBytes: new(int64(64 << 20))}}).wait().exited(0)
		require.Len(t, f.stdout, 64<<20)
		require.False(t, f.result.Output.Truncated, "an exact fit is not truncated")
		require.Less(t, len(f.events), 64<<20/(16<<10), "chunks are too small")
	})
	t.Run("one byte over the output limit", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("over", wire.Request{Argv: []string{"sh", "-c", "head -c 1048577 /dev/zero; sleep 60"}, Limits: wire.Limits{OutputBytes: new(int64(1 << 20))}}).wait().proven()
		require.Equal(t, wire.Limit, f.result.Outcome, "%s", f.raw)
		require.Equal(t, wire.ReasonOutput, f.result.Reason)
		require.Len(t, f.stdout, 1<<20)
		require.True(t, f.result.Output.Truncated)
	})
	t.Run("inline output", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("inline", wire.Request{Argv: []string{"sh", "-c", "echo out; printf '\\377' >&2"}, Output: wire.OutputInline}).wait().exited(0)
		require.Empty(t, f.stdout)
		require.Equal(t, &wire.Inline{Encoding: "text", Data: "out\n"}, f.result.Stdout)
		require.Equal(t, "base64", f.result.Stderr.Encoding)
	})
	t.Run("no output", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("none", wire.Request{Argv: []string{"echo", "x"}, Output: wire.OutputNone}).wait().exited(0)
		require.Empty(t, f.stdout)
		require.Equal(t, int64(2), f.result.Output.StdoutProduced)
	})
	s.queueEmpty()
}

// Programs that do not want to end, end: with the right outcome, all their
// output, the proof, and within the limits that they were given.
func TestStubbornPrograms(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "8")
	limits := wire.Limits{WallMS: new(int64(1000)), GraceMS: new(int64(500))}
	for _, c := range []struct {
		name    string
		argv    []string
		outcome wire.Outcome
		stdout  string
		within  time.Duration
	}{
		{"ignores-term", []string{"sh", "-c", "trap '' TERM INT HUP; echo before; printf partial; while :; do sleep 1; done"}, wire.TimedOut, "before\npartial", 3 * time.Second},
		{"exits-on-term", []string{"sh", "-c", "trap 'echo saved; exit 0' TERM; sleep 60 & wait"}, wire.TimedOut, "saved\n", 2 * time.Second},
		{"grandchild-holds-stdout", []string{"sh", "-c", "echo hi; sleep 3600 & exit 0"}, wire.Exited, "hi\n", time.Second},
		{"daemon", []string{"sh", "-c", "setsid -f sleep 3600; echo hi"}, wire.Exited, "hi\n", time.Second},
		{"stopped", []string{"sh", "-c", "echo hi; kill -STOP $$"}, wire.TimedOut, "hi\n", 3 * time.Second},
		{"pipe-full-then-gone", []string{"sh", "-c", "head -c 60000 /dev/zero | tr '\\0' x"}, wire.Exited, strings.Repeat("x", 60000), time.Second},
		{"children", []string{"sh", "-c", "sleep 20 | cat"}, wire.TimedOut, "", 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.on(t)
			t.Parallel()
			f := s.submit(c.name, wire.Request{Argv: c.argv, Limits: limits}).wait().proven()
			require.Equal(t, c.outcome, f.result.Outcome, "%s", f.raw)
			require.Equal(t, c.stdout, string(f.stdout))
			require.Less(t, f.result.Timing.RunMS+f.result.Timing.ProofMS, float64(c.within.Milliseconds()), "%s", f.raw)
			if c.outcome == wire.Exited {
				require.Equal(t, 0, *f.result.ExitCode)
			}
		})
	}
}
