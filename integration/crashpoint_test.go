package integration

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

// crashAt has services that start from now on kill themselves at a point.
func (s *stack) crashAt(point string) *stack {
	sub := *s
	sub.env = []string{"TEST_SALLYPORT_CRASH=" + point}
	return &sub
}

// cloud is a stack whose sandboxes of the profile cloud outlive their workers.
type cloud struct {
	*stack
	world *fake.World
}

// crashConfig makes no sandbox before a job wants one.
var crashConfig = ledgerConfig[:strings.Index(ledgerConfig, "  warm:")]

func newCloud(t *testing.T) *cloud {
	t.Helper()
	return newStack(t).withWorld(crashConfig)
}

// reaper starts the service that ends what outlives its worker.
func (s *stack) reaper() *service {
	s.t.Helper()
	port := freePort(s.t)
	r := s.start("reaper", "--server", s.url, "--config", s.config, "--state-dir", filepath.Join(s.dir, "reaper"), "--http", port)
	r.http = port
	return r
}

// balanced waits until nothing of ours is left in the cloud and the books say so of
// every lease.
func (c *cloud) balanced() {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		return len(c.world.Live()) == 0 && len(c.unfinished()) == 0
	}, patience, 50e6, "the books do not balance: %v in the cloud, %v unfinished", c.world.Live(), c.unfinished())
}

// unfinished are the entries and records that say nothing of an end.
func (c *cloud) unfinished() []string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	stream, err := c.js.Stream(ctx, "EXEC_LEDGER")
	require.NoError(c.t, err)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("exec.>"))
	require.NoError(c.t, err)
	var left []string
	for subject := range info.State.Subjects {
		if strings.HasPrefix(subject, "exec.lease._worker.") {
			continue
		}
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(c.t, err)
		if !strings.Contains(string(m.Data), `"state":"destroyed"`) {
			left = append(left, subject+" "+string(m.Data))
		}
	}
	return left
}

// Wherever a worker dies, its sandboxes are found and ended, its job has one
// decision, and nothing runs twice unasked.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	quick := []string{"fake", "print:x", "exit:0"}
	unproven := []string{"fake", "print:x", "wait:never", "exit:0"}
	for _, c := range []struct {
		point    string
		argv     []string
		outcomes []wire.Outcome
	}{
		// The claim is written while the lease is made: it may stand or not.
		{"after-intent", quick, []wire.Outcome{wire.Exited, wire.Lost}},
		{"after-create", quick, []wire.Outcome{wire.Exited, wire.Lost}},
		{"after-confirm", quick, []wire.Outcome{wire.Exited, wire.Lost}},
		{"after-start", quick, []wire.Outcome{wire.Lost}},
		{"after-exit", unproven, []wire.Outcome{wire.Lost}},
		{"after-proof", quick, []wire.Outcome{wire.Lost}},
		// The record with the result is written before or after, as it happens.
		{"after-quarantine", unproven, []wire.Outcome{wire.Exited, wire.Lost}},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			cloud := newCloud(t)
			census := cloud.census()
			w := cloud.crashAt(c.point).worker("w1", "--slots", "2")
			f := cloud.submit("job", wire.Request{Profile: "cloud", Argv: c.argv, Limits: wire.Limits{WallMS: new(int64(500)), GraceMS: new(int64(100))}})
			cloud.within(w.done, "the worker does not die where it should")
			require.Contains(t, w.cmd.ProcessState.String(), "killed", "%s", w.log)

			w2 := cloud.worker("w2", "--slots", "2")
			cloud.reaper().waitReady()
			f.wait()
			require.Contains(t, c.outcomes, f.result.Outcome, "%s", f.raw)
			if f.result.Outcome == wire.Lost {
				require.Equal(t, wire.ReasonWorkerGone, f.result.Reason, "%s", f.raw)
			}
			cloud.queueEmpty()
			census.atMostOnce("job")
			w2.stop()
			require.Zero(t, w2.cmd.ProcessState.ExitCode(), "%s", w2.log)
			cloud.balanced()
			require.NotZero(t, cloud.world.Created()+cloud.world.Destroyed(), "nothing was ever made")
		})
	}
}

// A reaper that dies before or after it destroys leaves the rest to the next one.
func TestReaperCrashPoints(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before-destroy", "after-destroy"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			cloud := newCloud(t)
			cloud.worker("w1", "--slots", "2")
			f := cloud.submit("job", wire.Request{
				Profile: "cloud", Argv: []string{"fake", "wait:never", "destroy:fail*2", "exit:0"},
				Limits: wire.Limits{WallMS: new(int64(500)), GraceMS: new(int64(100))},
			}).wait()
			require.Equal(t, wire.Quarantined, f.result.Lease.Disposition, "%s", f.raw)
			r := cloud.crashAt(point).reaper()
			cloud.within(r.done, "the reaper does not die where it should")
			require.Contains(t, r.cmd.ProcessState.String(), "killed", "%s", r.log)
			q := cloud.quarantine(f.result.Lease.ID, func(*wire.Quarantine) bool { return true })
			require.Equal(t, wire.InQuarantine, q.State, "dead men write nothing")
			cloud.reaper().waitReady()
			q = cloud.quarantine(f.result.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
			require.NotEmpty(t, q.Evidence)
			cloud.balanced()
		})
	}
}
