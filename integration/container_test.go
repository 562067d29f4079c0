package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// zombies are the ended processes that nobody has waited for, of those below a
// process.
func zombies(t *testing.T, pid int) []string {
	t.Helper()
	type process struct {
		parent int
		state  string
		name   string
	}
	all := map[int]process{}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		text := string(data)
		open, end := strings.Index(text, "("), strings.LastIndex(text, ")")
		f := strings.Fields(text[end+1:])
		own, err := strconv.Atoi(strings.TrimSpace(text[:open]))
		require.NoError(t, err)
		parent, err := strconv.Atoi(f[1])
		require.NoError(t, err)
		all[own] = process{parent: parent, state: f[0], name: text[open : end+1]}
	}
	var found []string
	for own, p := range all {
		for up := p.parent; up > 1 && p.state == "Z"; up = all[up].parent {
			if up == pid {
				found = append(found, fmt.Sprintf("%d %s of %d", own, p.name, p.parent))
				break
			}
		}
	}
	return found
}

// TestWorkerAsPidOne: in a container a worker is pid 1, to which the kernel gives
// the orphans of the whole container. Neither those of jobs nor those of what is
// executed there from outside stay as zombies.
func TestWorkerAsPidOne(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("not tested: to make a pid namespace with a /proc takes root")
		return
	}
	s := newStack(t).apply()
	port := freePort(t)
	w := &service{
		t: t, http: port, log: &lockedBuffer{}, done: make(chan struct{}),
		cmd: exec.Command("/bin/sh", "-c", `mount -t proc proc /proc && exec "$@"`, "sh", binary, "worker", "--server", s.url,
			"--config", s.config, "--state-dir", filepath.Join(s.dir, "w1"), "--http", port, "--require", "namespaces", "--drain", "5s", "--slots", "4"),
	}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	w.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir)
	require.NoError(t, w.cmd.Start())
	go func() {
		defer close(w.done)
		_ = w.cmd.Wait() //nolint:errcheck // that it ends is what counts
	}()
	t.Cleanup(func() {
		w.stop()
		if t.Failed() {
			t.Logf("log:\n%s", w.log)
		}
	})
	w.waitReady()
	pid := w.cmd.Process.Pid
	n := soak(60, 1000)
	var jobs []*followed
	for i := range n {
		jobs = append(jobs, s.submit(id("orphan-%d", i), shell("(sleep 0.05 &); exit 0")))
	}
	for _, job := range jobs {
		job.wait().exited(0)
	}
	// What is executed in the container from outside, as docker exec does it.
	for range 20 {
		out, err := exec.CommandContext(t.Context(), "nsenter", "-t", strconv.Itoa(pid), "-p", "-m", "/bin/sh", "-c", "(sleep 0.1 &); (exit 3) & exit 0").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	last := time.Now()
	require.Eventually(t, func() bool { return len(zombies(t, pid)) == 0 }, patience, 20*time.Millisecond, "%v", zombies(t, pid))
	t.Logf("no zombie %s after the last of %d jobs", time.Since(last).Round(time.Millisecond), n)
	require.Less(t, time.Since(last), 5*time.Second)
	require.Equal(t, 1.0, w.metric(t, "sallyport_ready"))
	w.stop()
	require.True(t, w.cmd.ProcessState.Success(), "%s", w.log)
}
