package integration

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/wire"
)

// strangers are sandboxes beside ours that are not ours: the names that the account's
// owner and other installations could have given, and everything of another account.
func (r *remote) strangers() (ids []string) {
	r.t.Helper()
	const lease = "0123456789abcdef0123456789abcdef"
	for key, names := range map[string][]string{
		remoteKey: {
			"my-notebook", "sallyport", "sallyport-", "Sallyport-" + lease, "xsallyport-" + lease, "sallyport_" + lease,
			"sally-port-" + lease, "sallyport-" + strings.Repeat("a", 65), lease,
		},
		strangerKey: {"sallyport-" + lease, "my-notebook"},
	} {
		for _, name := range names {
			planted, err := r.api.Plant(key, name)
			require.NoError(r.t, err)
			ids = append(ids, planted)
		}
	}
	return ids
}

// untouched asserts that nobody asked anything of the strangers, and that all live.
func (r *remote) untouched(ids []string) {
	r.t.Helper()
	living := map[string]bool{}
	for _, b := range r.api.Sandboxes() {
		living[b.ID] = b.Live()
	}
	for _, stranger := range ids {
		require.True(r.t, living[stranger], "a stranger's sandbox is gone")
		require.Empty(r.t, r.calls(stranger))
	}
}

// serving has the workers of this stack that start from now on serve one queue alone, or
// all of the given ones.
func (r *remote) serving(names ...string) *remote {
	r.t.Helper()
	text, err := os.ReadFile(r.config)
	require.NoError(r.t, err)
	sub := *r.stack
	sub.config = r.config + "." + strings.Join(names, "-") + ".yaml"
	queues := "queues:\n"
	for _, name := range names {
		queues += "  - name: " + name + "\n"
	}
	require.NoError(r.t, os.WriteFile(sub.config, append(text, queues...), 0o600))
	return &remote{stack: &sub, api: r.api, guests: r.guests}
}

// Wherever a worker dies, whatever it has open at the service is found and destroyed,
// nobody else's sandbox is touched, and each of its jobs has one decision.
func TestCreateOSCrashPoints(t *testing.T) {
	t.Parallel()
	const leases = 20
	nth := fmt.Sprintf(":%d", leases)
	points := map[string]struct{ point, last string }{
		"intent": {"after-intent" + nth, "exit:0"}, "create": {"after-create" + nth, "exit:0"}, "confirm": {"after-confirm" + nth, "exit:0"},
		"start": {"after-start" + nth, "exit:0"}, "exit": {"after-exit", "leave"}, "proof": {"after-proof", "exit:0"}, "quarantine": {"after-quarantine", "leave"},
	}
	r := newRemote(t)
	r.configure(r.api.URL(), "ack_wait: 6s", "ack_wait: 3s") // so that jobs are taken over soon
	queues := slices.Collect(maps.Keys(points))
	for _, name := range queues[:len(queues)-soak(2, len(queues))] { // others each time
		delete(points, name)
	}
	queues = slices.Collect(maps.Keys(points))
	all := r.serving(queues...)
	all.apply()
	census := r.census()
	all.nc = r.nc
	strangers := r.strangers()
	all.reap()
	type death struct {
		worker *service
		jobs   []*followed
	}
	deaths := map[string]*death{}
	for name, p := range points {
		deaths[name] = &death{worker: r.serving(name).crashAt(p.point).worker("w-"+name, "--slots", fmt.Sprint(leases))}
	}
	submit := func(queue string, i int, steps ...string) {
		job := id("%s-%d", queue, i)
		deaths[queue].jobs = append(deaths[queue].jobs, all.into(queue).submit(job, r.guest(job, "default", 60_000, 200, steps...)))
	}
	for name := range deaths {
		for i := range leases - 1 {
			submit(name, i, "forever")
		}
	}
	for name, d := range deaths {
		require.Eventually(t, func() bool {
			for _, f := range d.jobs {
				if r.guests.runs(f.id) == 0 {
					return false
				}
			}
			return true
		}, patience, 10*time.Millisecond, "%s: not all jobs run: %s", name, d.worker.log)
		submit(name, leases, "await:"+name, points[name].last)
	}
	opened := map[string]bool{}
	for _, name := range []string{"exit", "proof", "quarantine"} {
		if deaths[name] == nil {
			continue
		}
		box := r.boxOf(id("%s-%d", name, leases))
		if name == "quarantine" {
			r.at(box, createostest.DeleteProcess, -1, createostest.TreeExitedFalse())
		}
		r.guests.open(name)
		opened[name] = true
	}
	for name, d := range deaths {
		r.within(d.worker.done, "the worker does not die at %s", name)
		require.Contains(t, d.worker.cmd.ProcessState.String(), "killed", "%s", d.worker.log)
	}
	for _, name := range queues {
		if !opened[name] {
			r.guests.open(name) // what did not begin there can end elsewhere
		}
	}
	last := all.worker("last", "--slots", "64")
	for _, d := range deaths {
		for _, f := range d.jobs {
			f.wait()
			require.Contains(t, []wire.Outcome{wire.Lost, wire.Exited}, f.result.Outcome, "%s", f.raw)
			if f.result.Outcome == wire.Lost {
				require.Equal(t, wire.ReasonWorkerGone, f.result.Reason, "%s", f.raw)
			}
			require.LessOrEqual(t, r.guests.runs(f.id), 1, "%s", f.raw)
			census.atMostOnce(f.id)
		}
	}
	last.stop()
	require.Zero(t, last.cmd.ProcessState.ExitCode(), "%s", last.log)
	r.balanced()
	r.untouched(strangers)
	require.GreaterOrEqual(t, len(r.api.Sandboxes())-len(strangers), len(points)*(leases-1), "each had them open")
}

// A worker that is told to end while its jobs run at the service leaves nothing there,
// with no reaper in the world.
func TestCreateOSShutdown(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	census := r.census()
	w := r.worker("w1", "--slots", "8", "--drain", "300ms")
	var jobs []*followed
	for i, steps := range [][]string{{"forever"}, {"leave", "forever"}, {"trap:50"}} {
		job := id("job-%d", i)
		jobs = append(jobs, r.submit(job, r.guest(job, "kept", 60_000, 1000, steps...)))
	}
	again := r.guest("again", "default", 60_000, 200, "await:again", "exit:3")
	again.Retry.IfLost = true
	moved := r.submit("again", again)
	for _, f := range append(jobs, moved) {
		r.boxOf(f.id)
	}
	w.stop()
	require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	require.Empty(t, r.live(), "sandboxes are left")
	require.Empty(t, r.unfinished())
	require.Zero(t, established(t, r.api.URL()), "connections are left")
	for _, f := range jobs {
		f.wait().proven()
		require.Equal(t, []any{wire.Lost, wire.ReasonShutdown, wire.StartYes}, []any{f.result.Outcome, f.result.Reason, f.result.StartState}, "%s", f.raw)
		census.once(f.id, 1)
	}
	require.Equal(t, "saved\n", string(jobs[2].stdout))
	r.guests.open("again")
	r.worker("w2", "--slots", "8")
	moved.wait().exited(3)
	require.Equal(t, 2, moved.result.Attempt)
	census.once("again", 2)
	require.Eventually(t, func() bool { return len(r.live()) == 0 }, patience, 10*time.Millisecond)
}
