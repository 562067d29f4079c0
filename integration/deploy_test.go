package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// A thousand mixed jobs over two workers, both of them restarted in the middle:
// a thousand results, each once, outputs byte for byte, nothing left behind.
func TestThousandJobsThroughARollingRestart(t *testing.T) {
	const jobs = 1000
	// No takeover is wanted here: a server that stalls on a busy host costs time,
	// not jobs.
	s, _ := newBrokerStack(t, withAckWait("60s"), nil)
	c := s.census()
	w1 := s.worker("w1", "--slots", "8", "--drain", "20s")
	w2 := s.worker("w2", "--slots", "8", "--drain", "20s")

	instances := s.instances()
	var all []*followed
	var want []string
	for i := range jobs {
		r, out := mixedJob(i)
		all, want = append(all, s.submit(id("mixed-%d", i), r)), append(want, out)
		if i == jobs/2 {
			w1.stop()
			w1 = s.worker("w1b", "--slots", "8", "--drain", "20s")
			w2.stop()
			w2 = s.worker("w2b", "--slots", "8", "--drain", "20s")
			instances = append(instances, s.instances()...)
		}
	}
	for i, f := range all {
		f.wait().exited(i % 5)
		require.Equal(t, want[i], string(f.stdout), "job %d", i)
		require.Equal(t, 1, f.result.Attempt)
		require.Less(t, f.result.Timing.QueuedMS, 55_000.0, "job %d was left to its ack wait", i)
	}
	s.queueEmpty()
	w1.stop()
	w2.stop()
	// A second final would have come by now, if there were one.
	for _, f := range all {
		c.once(f.id, 1)
	}
	require.GreaterOrEqual(t, len(instances), 4, "each worker has leases under a name of its own")
	require.Eventually(t, func() bool { return len(s.leftovers(instances)) == 0 }, patience, 50*time.Millisecond, "left behind: %v", s.leftovers(instances))
	for _, w := range []*service{w1, w2} {
		require.Equal(t, 0, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	}
}

func mixedJob(i int) (wire.Request, string) {
	code := i % 5
	switch i % 4 {
	case 0:
		return wire.Request{Argv: []string{"sh", "-c", fmt.Sprintf("echo job %d; exit %d", i, code)}}, fmt.Sprintf("job %d\n", i)
	case 1:
		in := strings.Repeat(fmt.Sprintf("%d,", i), 2000)
		return wire.Request{Argv: []string{"sh", "-c", fmt.Sprintf("cat; exit %d", code)}, Stdin: &in}, in
	case 2:
		return wire.Request{Argv: []string{"sh", "-c", fmt.Sprintf("sleep 0.05; (sleep 60 &); head -c 30000 /dev/zero | tr '\\0' y; exit %d", code)}}, strings.Repeat("y", 30000)
	default:
		return wire.Request{Argv: []string{"sh", "-c", fmt.Sprintf("exit %d", code)}}, ""
	}
}

// leftovers lists what the stack's workers have on this host: control groups,
// processes in them, mounts, lease files. Other workers of this host do not count.
func (s *stack) leftovers(instances []string) []string {
	s.t.Helper()
	var left []string
	for _, instance := range instances {
		for _, pattern := range []string{"/sys/fs/cgroup/sallyport/", "/sys/fs/cgroup/*/sallyport/", "/sys/fs/cgroup/*/*/sallyport/", "/sys/fs/cgroup/*/*/*/sallyport/"} {
			m, err := filepath.Glob(pattern + instance + "/*")
			require.NoError(s.t, err)
			left = append(left, m...)
		}
		files, err := filepath.Glob(filepath.Join(s.dir, "*", "local", "leases", instance, "*"))
		require.NoError(s.t, err)
		left = append(left, files...)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	require.NoError(s.t, err)
	for _, p := range groups {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // it has ended
		}
		for _, instance := range instances {
			if strings.Contains(string(b), instance) {
				left = append(left, p)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(s.t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, s.dir) {
			left = append(left, line)
		}
	}
	return left
}

// instances are the names under which the stack's workers have kept leases.
func (s *stack) instances() []string {
	s.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(s.dir, "*", "local", "leases", "*"))
	require.NoError(s.t, err)
	var names []string
	for _, d := range dirs {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			names = append(names, filepath.Base(d))
		}
	}
	return names
}
