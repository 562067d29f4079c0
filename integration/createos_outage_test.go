package integration

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/wire"
)

// An outage of the whole service while jobs run: each has one honest decision, none runs
// twice, and when the service is back, everything that is in doubt is ended.
func TestCreateOSOutages(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	way := newProxy(t, strings.TrimPrefix(r.api.URL(), "http://"))
	r.configure("http://" + way.listener.Addr().String())
	census := r.census()
	w := r.worker("w1", "--slots", "16")
	r.reap()
	const jobs = 8
	everything := func(times int, then ...createostest.Action) {
		r.api.Script(createostest.Rule{Times: times, Then: then})
	}
	type outage struct {
		name string
		// begin makes the outage; it is over after that long.
		begin func()
		lasts time.Duration
	}
	outages := []outage{
		{"burst-429", func() { everything(jobs, createostest.RetryAfter(http.StatusTooManyRequests, time.Second)) }, 0},
		{"burst-503", func() { everything(3*jobs, createostest.Status(http.StatusServiceUnavailable, "")) }, 0},
		{"burst-503-later", func() { everything(jobs, createostest.RetryAfter(http.StatusServiceUnavailable, time.Second)) }, 0},
		{"down", func() { everything(-1, createostest.CutBefore()); way.cut() }, time.Duration(soak(1500, 10_000)) * time.Millisecond},
		{"revoked", func() { everything(-1, createostest.Status(http.StatusUnauthorized, "")) }, time.Duration(soak(1000, 10_000)) * time.Millisecond},
		{"not-a-service", func() { everything(-1, createostest.Status(http.StatusBadGateway, "<html>")); way.cut() }, time.Second},
	}
	// In the short form another one each time, since a worker rests after failures.
	rand.Shuffle(len(outages), func(i, j int) { outages[i], outages[j] = outages[j], outages[i] })
	for _, outage := range outages[:soak(2, len(outages))] {
		t.Run(outage.name, func(t *testing.T) {
			r := r.with(t)
			census.s = r.stack
			var all []*followed
			for i := range jobs {
				job := id("%s-%d", outage.name, i)
				profile := []string{"default", "kept"}[i%2]
				all = append(all, r.submit(job, r.guest(job, profile, 30_000, 200, "lines:6", "await:"+outage.name, "lines:6", "exit:7")))
			}
			for _, f := range all {
				r.boxOf(f.id)
			}
			outage.begin()
			r.guests.open(outage.name) // they end, and more begin
			for i := range jobs {
				job := id("%s-late-%d", outage.name, i)
				all = append(all, r.submit(job, r.guest(job, "kept", 30_000, 200, "lines:6", "lines:6", "exit:7")))
			}
			if outage.lasts > 0 {
				over := time.NewTimer(outage.lasts)
				<-over.C
				r.api.Unscript()
			}
			honest := map[wire.Outcome]int{}
			for _, f := range all {
				f.wait()
				honest[f.result.Outcome]++
				r.honest(f)
				census.atMostOnce(f.id)
			}
			r.api.Unscript()
			t.Logf("%v", honest)
			require.GreaterOrEqual(t, honest[wire.Exited], jobs, "those that begin later are not lost")
		})
	}
	w.stop()
	require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	r.balanced()
}

// honest asserts that a job which ran once wrote its lines twice and ended with 7, or
// says what is not known of that.
func (r *remote) honest(f *followed) {
	r.t.Helper()
	stdout, stderr := lines(f.id, 6)
	stdout, stderr = stdout+stdout, stderr+stderr
	require.LessOrEqual(r.t, r.guests.runs(f.id), 1, "%s", f.raw)
	require.True(r.t, strings.HasPrefix(stdout, string(f.stdout)), "%q: %s", f.stdout, f.raw)
	require.True(r.t, strings.HasPrefix(stderr, string(f.stderr)), "%q: %s", f.stderr, f.raw)
	whole := len(stdout) == len(f.stdout) && len(stderr) == len(f.stderr)
	require.True(r.t, whole || f.result.Output.Truncated && f.result.Output.Unread != nil, "undeclared hole: %s", f.raw)
	if f.result.Outcome == wire.Exited {
		require.Equal(r.t, 7, *f.result.ExitCode, "%s", f.raw)
		require.Equal(r.t, 1, r.guests.runs(f.id), "%s", f.raw)
	} else {
		require.Equal(r.t, wire.Lost, f.result.Outcome, "%s", f.raw)
		require.Contains(r.t, []wire.Reason{wire.ReasonSandboxGone, wire.ReasonAmbiguous}, f.result.Reason, "%s", f.raw)
	}
	if f.result.Containment.Verdict == wire.Unproven {
		require.Equal(r.t, wire.Quarantined, f.result.Lease.Disposition, "%s", f.raw)
	}
}

// A publisher side that takes nothing for a while lets the service throw output away:
// what is missing is declared, the exit code is there, and the next job is as ever.
func TestCreateOSOutputOutlivesAStall(t *testing.T) {
	t.Parallel()
	r := newRemote(t, func(c *createostest.Config) { c.JournalBytes = 64 << 10 })
	way := newProxy(t, r.url)
	w := r.through(way).worker("w1", "--slots", "4")
	f, begun := r.submitWatched("stalled", r.guest("stalled", "default", 30_000, 200, "lines:2", "await:stalled", "flood:4096", "exit:7"),
		func(ev wire.Event) bool { return ev.Type == wire.EventStdout })
	r.within(begun, "no output comes")
	release := way.hold(false)
	r.guests.open("stalled")
	box := r.boxOf("stalled")
	require.Eventually(t, func() bool {
		return len(r.calls(box, createostest.DeleteProcess, createostest.GetProcess, createostest.Wait)) > 0 || !r.running(box)
	}, patience, 10*time.Millisecond)
	release()
	f.wait().proven()
	r.cutShort(f, 2)
	r.submit("next", r.guest("next", "default", 20_000, 200, "exit:3")).wait().exited(3)
	w.stop()
	require.Empty(t, r.live())
}

// running says that a program lives in the sandbox.
func (r *remote) running(box string) bool {
	for _, p := range r.api.LiveProcesses() {
		if p.Sandbox == box {
			return true
		}
	}
	return false
}

// With real programs in real processes: what a job is told, what it can leave, and what
// the next one in its sandbox finds.
func TestCreateOSPrograms(t *testing.T) {
	t.Parallel()
	r := newRemote(t, func(c *createostest.Config) { c.Backend = nil })
	w := r.worker("w1", "--slots", "4")
	run := func(id, script string, change ...func(*wire.Request)) *followed {
		request := shell(script)
		request.Profile = "kept"
		for _, c := range change {
			c(&request)
		}
		return r.submit(id, request).wait()
	}
	first := run("first", `
		cat; echo "$WORD" >&2
		echo mine > /tmp/file; echo mine > /dev/shm/file; echo mine > file; mkdir -p dir/deep; export WORD=left
		(trap '' TERM HUP; exec 1>&- 2>&-; while :; do echo again > /tmp/written; sleep 0.05; done) &
		setsid sleep 300 & exit 3`, func(q *wire.Request) {
		q.Stdin = new("input\n")
		q.Env = map[string]string{"WORD": "secret"}
	}).exited(3)
	require.Equal(t, []string{"input\n", "secret\n"}, []string{string(first.stdout), string(first.stderr)})
	require.Equal(t, wire.Reusable, first.result.Lease.Disposition, "%s", first.raw)
	second := run("second", `pwd; find . /tmp /var/tmp /dev/shm -mindepth 1 -not -path '*/.sallyport*'; echo "[$WORD]"
		for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null; done | grep -c 'sleep [3]00'`).exited(1)
	require.Equal(t, first.result.Lease.ID, second.result.Lease.ID, "it is the same sandbox")
	require.Equal(t, 2, second.result.Lease.Use)
	require.Equal(t, "/workspace\n[]\n0\n", string(second.stdout))

	run("signal", "kill -SEGV $$")
	saved := run("grace", `trap 'sleep 0.5; echo saved; exit 0' TERM; sleep 300 & wait`, func(q *wire.Request) {
		q.Limits = wire.Limits{WallMS: new(int64(400)), GraceMS: new(int64(20_000))}
	}).proven()
	require.Equal(t, wire.TimedOut, saved.result.Outcome, "%s", saved.raw)
	require.Equal(t, "saved\n", string(saved.stdout))
	missing := r.submit("missing", wire.Request{Profile: "kept", Argv: []string{"no-such-program"}}).wait()
	require.Equal(t, []any{wire.NotStarted, wire.Reason("not_found"), wire.StartNo}, []any{missing.result.Outcome, missing.result.Reason, missing.result.StartState}, "%s", missing.raw)
	w.stop()
	require.Empty(t, r.live())
	require.Empty(t, r.api.LiveProcesses())
}
