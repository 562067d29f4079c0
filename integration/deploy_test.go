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
	s := newStack(t).apply()
	before := leftovers(t)
	w1 := s.worker("w1", "--slots", "8", "--drain", "20s")
	w2 := s.worker("w2", "--slots", "8", "--drain", "20s")

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
		}
	}
	for i, f := range all {
		f.wait().exited(i % 5)
		require.Equal(t, want[i], string(f.stdout), "job %d", i)
		require.Equal(t, 1, f.result.Attempt)
	}
	s.queueEmpty()
	// A second final would come now, if there were one.
	for _, f := range all {
		n, _, err := f.sub.Pending()
		require.True(t, err != nil || n == 0, "something follows the end of %s", f.id)
	}
	w1.stop()
	w2.stop()
	require.Eventually(t, func() bool { return leftovers(t) == before }, patience, 50*time.Millisecond, "left behind")
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

// leftovers counts what workers may leave on this host: control groups, mounts,
// processes that carry our mark.
func leftovers(t *testing.T) string {
	t.Helper()
	groups := 0
	for _, pattern := range []string{"/sys/fs/cgroup/*/sallyport/*", "/sys/fs/cgroup/*/*/sallyport/*", "/sys/fs/cgroup/*/*/*/sallyport/*", "/sys/fs/cgroup/sallyport/*"} {
		m, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, p := range m {
			if st, err := os.Stat(p); err == nil && st.IsDir() {
				groups++
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	procs := 0
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, p := range cmdlines {
		if b, err := os.ReadFile(p); err == nil && strings.HasPrefix(string(b), "sallyport") && strings.Contains(string(b), "lease") {
			procs++
		}
	}
	return fmt.Sprintf("groups=%d mounts=%d processes=%d", groups, strings.Count(string(mounts), "\n"), procs)
}
