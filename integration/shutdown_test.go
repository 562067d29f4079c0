package integration

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// A worker ends when it is told to: as soon as nothing runs, at the latest when
// its drain is over, and with a decision about every job.
func TestWorkerEndsInTime(t *testing.T) {
	t.Parallel()
	ends := func(s *stack, w *service, sig os.Signal, least, most time.Duration) {
		s.t.Helper()
		began := time.Now()
		w.signal(sig)
		s.within(w.done, "the worker does not end")
		took := time.Since(began)
		require.GreaterOrEqual(s.t, took, least)
		require.Less(s.t, took, most, "%s", w.log)
		require.Equal(s.t, 0, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	}
	s := newStack(t).apply()
	idle := s.worker("idle", "--slots", "2")
	ends(s, idle, syscall.SIGTERM, 0, 4*time.Second)

	patient := s.worker("patient", "--slots", "2", "--drain", "30s")
	f, _ := s.started("ends-in-drain", shell("sleep 1; echo done"))
	ends(s, patient, syscall.SIGINT, 300*time.Millisecond, 5*time.Second)
	f.wait().exited(0)
	require.Equal(t, "done\n", string(f.stdout))

	c := s.census()
	hasty := s.worker("hasty", "--slots", "2", "--drain", "500ms")
	long := limited(60_000, 200, "sh", "-c", "trap '' TERM; sleep 300")
	kept, _ := s.started("kept", long)
	again := limited(60_000, 200, "sh", "-c", "sleep 2; echo done")
	again.Retry.IfLost = true
	moved, _ := s.started("moved", again)
	queued := s.submit("queued", wire.Request{Argv: []string{"echo", "later"}})
	ends(s, hasty, syscall.SIGTERM, 500*time.Millisecond, 6*time.Second)
	kept.wait()
	require.Equal(t, []any{wire.Lost, wire.ReasonShutdown, wire.StartYes}, []any{kept.result.Outcome, kept.result.Reason, kept.result.StartState}, "%s", kept.raw)
	kept.proven()
	next := s.worker("next", "--slots", "2", "--drain", "60s")
	began := time.Now()
	queued.wait().exited(0)
	moved.wait().exited(0)
	require.Less(t, time.Since(began), 10*time.Second, "what goes back at a shutdown is there at once")
	require.Equal(t, 2, moved.result.Attempt)
	require.Equal(t, 1, queued.result.Attempt)
	c.once("kept", 1)
	c.once("moved", 2)
	c.once("queued", 1)

	hurried, _ := s.started("hurried", limited(60_000, 200, "sleep", "300"))
	next.signal(syscall.SIGTERM)
	code := func() int { code, _ := next.get("/readyz"); return code }
	require.Eventually(t, func() bool { return code() != 200 }, patience, 10*time.Millisecond)
	ends(s, next, syscall.SIGTERM, 0, 6*time.Second)
	hurried.wait().proven()
	require.Equal(t, []any{wire.Lost, wire.ReasonShutdown}, []any{hurried.result.Outcome, hurried.result.Reason}, "%s", hurried.raw)
	s.queueEmpty()
}
