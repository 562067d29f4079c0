package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// A lease that cannot be proven empty is never used again: its record goes to
// quarantine before the job's message is acknowledged, and the reaper keeps at
// it until its end is proven.
func TestUnprovenLeaseGoesThroughQuarantine(t *testing.T) {
	s := newStack(t).apply()
	s.worker("w1", "--slots", "4")

	t.Run("destroyed after some tries", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("stubborn", wire.Request{Profile: "fake", Argv: []string{"fake", "print:hi", "wait:never", "destroy:fail*3", "exit:0"}, Limits: wire.Limits{WallMS: new(int64(500)), GraceMS: new(int64(100))}}).wait()
		require.Equal(t, "hi\n", string(f.stdout))
		require.Equal(t, wire.Unproven, f.result.Containment.Verdict, "%s", f.raw)
		require.Equal(t, wire.Quarantined, f.result.Lease.Disposition)
		q := s.quarantine(f.result.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
		require.NotEmpty(t, q.Evidence)
		require.GreaterOrEqual(t, q.Attempts, 4, "three refusals and the try that worked")
		require.Equal(t, "stubborn", q.Job)
		require.Equal(t, wire.QuarantineUnproven, q.Reason)
	})
	t.Run("one that never dies stays, and delays nobody", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("undead", wire.Request{Profile: "fake", Argv: []string{"fake", "wait:never", "destroy:never", "exit:0"}, Limits: wire.Limits{WallMS: new(int64(500)), GraceMS: new(int64(100))}}).wait()
		require.Equal(t, wire.Unproven, f.result.Containment.Verdict)
		began := time.Now()
		s.run("bystander", "echo", "ok").exited(0)
		require.Less(t, time.Since(began), 3*time.Second)
		g := s.submit("next", wire.Request{Profile: "fake", Argv: []string{"fake", "print:ok", "exit:0"}}).wait().exited(0)
		require.NotEqual(t, f.result.Lease.ID, g.result.Lease.ID, "a doubtful lease was used again")
		q := s.quarantine(f.result.Lease.ID, func(*wire.Quarantine) bool { return true })
		require.Equal(t, wire.InQuarantine, q.State)
		out, code := s.command("quarantine", "ls", "--server", s.url)
		require.Equal(t, 0, code, out)
		require.Contains(t, out, f.result.Lease.ID)
		out, code = s.command("quarantine", "show", "--server", s.url, f.result.Lease.ID)
		require.Equal(t, 0, code, out)
		require.Contains(t, out, "undead")
	})
}

// quarantine waits for the record of a lease to be as wanted.
func (s *stack) quarantine(lease string, wanted func(*wire.Quarantine) bool) *wire.Quarantine {
	s.t.Helper()
	var q *wire.Quarantine
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		stream, err := s.js.Stream(ctx, "EXEC_LEDGER")
		require.NoError(s.t, err)
		msg, err := stream.GetLastMsgForSubject(ctx, "exec.quarantine.*.*."+lease)
		if err != nil {
			return false
		}
		q, err = wire.DecodeQuarantine(msg.Data)
		require.NoError(s.t, err)
		return wanted(q)
	}, patience, 20*time.Millisecond, "quarantine record of %s", lease)
	return q
}
