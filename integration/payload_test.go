package integration

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// What is bigger than the server's messages is cut, capped or left out, and the
// final always arrives.
func TestWhatIsBiggerThanAMessage(t *testing.T) {
	t.Parallel()
	s, _ := newBrokerStack(t, workerConfig, func(o *server.Options) { o.MaxPayload = 1 << 20 })
	s.worker("w1", "--slots", "4")

	f := s.run("one-write", "perl", "-e", `syswrite STDOUT, "x" x 3145728`).exited(0)
	require.Equal(t, strings.Repeat("x", 3<<20), string(f.stdout))

	f = s.run("long-name", "/"+strings.Repeat("n", 100<<10)).proven()
	require.Equal(t, []any{wire.NotStarted, wire.StartNo}, []any{f.result.Outcome, f.result.StartState}, "%s", f.raw)
	require.Less(t, len(f.raw), 16<<10)

	// Both streams inline are more than one message may be.
	f = s.submit("inline", wire.Request{Argv: []string{"perl", "-e", `print "\xff" x 700000; print STDERR "\xff" x 700000`}, Output: wire.OutputInline}).wait().exited(0)
	require.Less(t, len(f.raw), 1<<20)
	require.Equal(t, []int64{700_000, 700_000}, []int64{f.result.Output.StdoutProduced, f.result.Output.StderrProduced})
	if f.result.Stdout == nil {
		require.True(t, f.result.Output.Truncated, "output was left out and nothing says so: %s", f.raw)
	}
	s.queueEmpty()
}

// An argument is as long as the kernel takes it, and refused by name beyond.
func TestLongArguments(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "4")
	const most = 128<<10 - 1
	f := s.run("longest", "echo", "-n", strings.Repeat("x", most)).exited(0)
	require.Len(t, f.stdout, most)
	refused := func(id, field string, r wire.Request) {
		t.Helper()
		f := s.submit(id, r).wait()
		require.Equal(t, []any{wire.InvalidJob, wire.ReasonTooBig}, []any{f.result.Outcome, f.result.Reason}, "%s", f.raw)
		require.Contains(t, f.result.Message, field)
	}
	refused("too-long", "argv[1]", wire.Request{Argv: []string{"echo", strings.Repeat("x", most+1)}})
	refused("long-variable", "env.LONG", wire.Request{Argv: []string{"true"}, Env: map[string]string{"LONG": strings.Repeat("x", most+1)}})
	many := []string{"echo"}
	for range 30 {
		many = append(many, strings.Repeat("x", 100<<10))
	}
	f = s.submit("too-many", wire.Request{Argv: many}).wait()
	require.Contains(t, []wire.Outcome{wire.InvalidJob, wire.NotStarted}, f.result.Outcome, "%s", f.raw)
	require.Contains(t, []wire.Reason{wire.ReasonTooBig, wire.ReasonArgumentsTooBig}, f.result.Reason, "%s", f.raw)
	require.Equal(t, wire.StartNo, f.result.StartState)
	require.Equal(t, 1, f.result.Attempt)
}
