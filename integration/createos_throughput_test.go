package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// cpuOf is the processor time that a process has used.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	// Behind the name, which may hold anything: fields 14 and 15 in ticks of 10 ms.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// Many jobs, 64 at a time, over sandboxes that are used again, every tenth over a
// connection that is cut: the figures, and nothing is left.
func TestCreateOSThroughput(t *testing.T) {
	t.Parallel()
	const atOnce = 64
	jobs := soak(100, 1000)
	r := newRemote(t)
	w := r.worker("w1", "--slots", fmt.Sprint(atOnce))
	run := func(name string, n int) {
		var lanes sync.WaitGroup
		wrong := make(chan string, n)
		for lane := range atOnce {
			lanes.Go(func() {
				for i := lane; i < n; i += atOnce {
					job := id("%s-%d", name, i)
					f := r.submit(job, r.guest(job, "kept", 30_000, 500, fmt.Sprintf("lines:%d", pieces), "exit:5")).wait()
					stdout, stderr := lines(job, pieces)
					if f.result.ExitCode == nil || *f.result.ExitCode != 5 || string(f.stdout) != stdout || string(f.stderr) != stderr || f.result.Output.Truncated {
						wrong <- string(f.raw)
					}
				}
			})
		}
		lanes.Wait()
		close(wrong)
		for raw := range wrong {
			require.Fail(t, "a job is not as it should be", "%s", raw)
		}
	}
	for nth := range jobs / 10 {
		r.api.Script(createostest.Rule{Op: createostest.Connect, Nth: 10*nth + 5, Then: []createostest.Action{createostest.CutWire(int64(20 + 37*nth%3500))}})
	}
	run("warm", atOnce)
	pid := w.cmd.Process.Pid
	// What a worker has when nothing goes on: its idle connections, each with two
	// goroutines, are left out, since they last longer than this test.
	settled := func() (fds int, routines float64) {
		calls := -1
		require.Eventually(t, func() bool {
			before := calls
			calls = len(r.api.Calls())
			return calls == before
		}, patience, 300*time.Millisecond, "the worker does not come to rest")
		idle := established(t, r.api.URL())
		return descriptors(t, pid) - idle, w.metric(t, "go_goroutines") - 2*float64(idle)
	}
	fds, routines := settled()
	cpu, allocs, bytes := cpuOf(t, pid), w.metric(t, "go_memstats_mallocs_total"), w.metric(t, "go_memstats_alloc_bytes_total")
	calls, made := len(r.api.Calls()), len(r.api.Sandboxes())
	began := time.Now()
	run("job", jobs)
	took := time.Since(began)
	each := func(n float64) float64 { return n / float64(jobs) }
	t.Logf("%d jobs, %d at a time: %.0f jobs/s; of the worker for each %.2f ms CPU, %.0f allocations, %.0f KiB; %.1f calls; %d new sandboxes",
		jobs, atOnce, float64(jobs)/took.Seconds(), each(float64((cpuOf(t, pid)-cpu).Microseconds()))/1000,
		each(w.metric(t, "go_memstats_mallocs_total")-allocs), each(w.metric(t, "go_memstats_alloc_bytes_total")-bytes)/1024,
		each(float64(len(r.api.Calls())-calls)), len(r.api.Sandboxes())-made)
	nowFDs, nowRoutines := settled()
	t.Logf("files %d and %d, goroutines %.0f and %.0f", fds, nowFDs, routines, nowRoutines)
	require.Less(t, nowFDs, fds+10, "files are left")
	require.Less(t, nowRoutines, routines+10, "goroutines are left")
	w.stop()
	require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	require.Zero(t, established(t, r.api.URL()), "connections are left")
	require.Empty(t, r.live(), "sandboxes are left")
	require.Empty(t, r.unfinished())
	require.Empty(t, r.api.LiveProcesses())
}
