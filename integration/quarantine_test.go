package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// A lease that cannot be proven empty is never used again: its record goes to
// quarantine before the job's message is acknowledged, and the reaper keeps at
// it until its end is proven.
func TestUnprovenLeaseGoesThroughQuarantine(t *testing.T) {
	t.Parallel()
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

// The server is away while leases turn bad: nothing of them is used again, and every
// record arrives after its return.
func TestOutageWhileLeasesTurnBad(t *testing.T) {
	t.Parallel()
	const jobs = 4
	outage := 4 * time.Second
	ackWait := "40s"
	if soaking {
		outage, ackWait = time.Minute, "5m"
	}
	s, b := newBrokerStack(t, withAckWait(ackWait), nil)
	w := s.worker("w1", "--slots", fmt.Sprint(jobs))
	var followed []*followed
	for i := range jobs {
		f, _ := s.started(id("bad-%d", i), wire.Request{
			Profile: "fake", Argv: []string{"fake", "print:up", "wait:never", "destroy:fail*2", "exit:0"},
			Limits: wire.Limits{WallMS: new(int64(2000)), GraceMS: new(int64(100))},
		})
		followed = append(followed, f)
	}
	b.stop()
	// Longer than the jobs may run, so that all of them end meanwhile; shorter than
	// their claims last, so that this worker decides about them.
	away := time.NewTimer(outage)
	<-away.C
	b.start()
	bad := map[string]bool{}
	for _, f := range followed {
		r := f.final()
		require.Equal(t, wire.Unproven, r.Containment.Verdict, "%s", f.raw)
		require.Equal(t, wire.Quarantined, r.Lease.Disposition, "%s", f.raw)
		bad[r.Lease.ID] = true
	}
	require.Len(t, bad, jobs, "each had a lease of its own")
	for lease := range bad {
		s.quarantine(lease, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	}
	next := s.submit("after", wire.Request{Profile: "fake", Argv: []string{"fake", "print:ok", "exit:0"}}).wait().exited(0)
	require.False(t, bad[next.result.Lease.ID], "a doubtful lease was used again")
	s.queueEmpty()
	w.stop()
}

// final waits for the result, whatever of the output comes again before it.
func (f *followed) final() *wire.Result {
	f.t.Helper()
	for f.result == nil {
		msg, err := f.sub.NextMsg(patience)
		require.NoError(f.t, err, "job %s: no result", f.id)
		ev, err := wire.ParseEvent(msg.Header, msg.Data)
		require.NoError(f.t, err)
		if ev.Type == wire.EventResult {
			f.take(ev)
		}
	}
	return f.result
}

// What operators may decide, as they decide it.
func TestOperatorsDecideAboutQuarantine(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "2")
	f := s.submit("undead", wire.Request{Profile: "fake", Argv: []string{"fake", "wait:never", "destroy:never", "exit:0"}, Limits: wire.Limits{WallMS: new(int64(500)), GraceMS: new(int64(100))}}).wait()
	lease := f.result.Lease.ID
	s.quarantine(lease, func(q *wire.Quarantine) bool { return q.State == wire.InQuarantine })
	do := func(code int, args ...string) string {
		t.Helper()
		out, got := s.command(append(append([]string{"quarantine"}, args...), "--server", s.url)...)
		require.Equal(t, code, got, out)
		return out
	}
	require.Contains(t, do(0, "hold", "--reason", "we look at it", "--by", "alice", lease), lease+" held")
	require.Contains(t, do(0, "ls"), "held")
	require.Contains(t, do(1, "retry", lease), "release it first")
	require.Contains(t, do(0, "release", lease), lease+" quarantined")
	require.Contains(t, do(0, "retry", "--json", lease), `"note":"retry at`)
	do(2, "resolve", lease)
	require.Contains(t, do(1, "resolve", "--evidence", "x", "nobody", lease), "no quarantine record", "the others are resolved all the same")
	shown := do(0, "show", lease)
	require.Contains(t, shown, `"operator"`)
	require.Contains(t, shown, "x (says ")
	require.Contains(t, do(1, "hold", lease), "destroyed already")
	require.Contains(t, do(0, "resolve", "--evidence", "x", lease), "destroyed", "again is no error")
	// The pool gives the place back on the operator's word.
	s.run("bystander", "echo", "ok").exited(0)
}
