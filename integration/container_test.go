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

	"github.com/sallyport/sallyport/internal/wire"
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

// workerThrough starts a worker by way of another program, whose arguments come first,
// and waits until it is ready.
func (s *stack) workerThrough(attr *syscall.SysProcAttr, wrapper []string, args ...string) *service {
	s.t.Helper()
	port := freePort(s.t)
	argv := append(wrapper, binary, "worker", "--server", s.url, "--config", s.config, "--state-dir", filepath.Join(s.dir, "w1"),
		"--http", port, "--drain", "5s")
	argv = append(argv, args...)
	w := &service{t: s.t, http: port, log: &lockedBuffer{}, done: make(chan struct{}), cmd: exec.Command(argv[0], argv[1:]...)}
	w.cmd.SysProcAttr, w.cmd.Stdout, w.cmd.Stderr = attr, w.log, w.log
	w.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir)
	require.NoError(s.t, w.cmd.Start())
	go func() {
		defer close(w.done)
		_ = w.cmd.Wait() //nolint:errcheck // its exit code is asserted where it matters
	}()
	s.t.Cleanup(func() {
		w.stop()
		if s.t.Failed() {
			s.t.Logf("log:\n%s", w.log)
		}
	})
	w.waitReady()
	return w
}

// inContainer starts a worker as pid 1 of a pid namespace with a /proc of its own, after
// more has been done there.
func (s *stack) inContainer(flags uintptr, more string, args ...string) *service {
	s.t.Helper()
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | flags, Unshareflags: syscall.CLONE_NEWNS}
	return s.workerThrough(attr, []string{"/bin/sh", "-c", `mount -t proc proc /proc && ` + more + ` exec "$@"`, "sh"}, args...)
}

// TestWorkerAsPidOne: in a container a worker is pid 1, to which the kernel gives
// the orphans of the whole container. Neither those of jobs nor those of what is
// executed there from outside stay as zombies, and who waits for strangers takes no
// job's exit code away.
func TestWorkerAsPidOne(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("not tested: to make a pid namespace with a /proc takes root")
		return
	}
	s := newStack(t).apply()
	w := s.inContainer(0, "", "--require", "namespaces", "--slots", "16")
	pid := w.cmd.Process.Pid
	n := soak(100, 3000)
	var jobs []*followed
	for i := range n {
		jobs = append(jobs, s.submit(id("orphan-%d", i), shell(fmt.Sprintf("(sleep 0.02 &); exit %d", i%251))))
	}
	// What is executed in the container from outside, as docker exec does it.
	for range 20 {
		out, err := exec.CommandContext(t.Context(), "nsenter", "-t", strconv.Itoa(pid), "-p", "-m", "/bin/sh", "-c", "(sleep 0.1 &); (exit 3) & exit 0").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for i, job := range jobs {
		job.wait().exited(i % 251)
	}
	last := time.Now()
	require.Eventually(t, func() bool { return len(zombies(t, pid)) == 0 }, patience, 20*time.Millisecond, "%v", zombies(t, pid))
	t.Logf("no zombie %s after the last of %d jobs", time.Since(last).Round(time.Millisecond), n)
	require.Less(t, time.Since(last), 5*time.Second)
	require.Equal(t, 1.0, w.metric(t, "sallyport_ready"))
	w.stop()
	require.True(t, w.cmd.ProcessState.Success(), "%s", w.log)
}

// TestWorkerInAContainer: with a cgroup namespace, and control groups mounted in it, the
// worker is at the root of what it sees, and enforces limits below; where they are
// mounted read-only, it says what to do and does not start without.
func TestWorkerInAContainer(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("not tested: to make a container takes root")
		return
	}
	// As a container's runtime does it: each hierarchy again, seen from the namespace.
	const again = `for c in memory pids cpu,cpuacct cpu unified; do m=/sys/fs/cgroup/$c; [ -L $m ] && continue; mountpoint -q $m || continue
		umount $m; if [ $c = unified ]; then mount -t cgroup2 none $m; else mount -t cgroup -o $c none $m; fi || exit 9; done
		if [ -e /sys/fs/cgroup/cgroup.procs ]; then mount -t cgroup2 none /sys/fs/cgroup || exit 9; fi;`
	t.Run("private groups", func(t *testing.T) {
		t.Parallel()
		s := newStack(t).apply()
		w := s.inContainer(syscall.CLONE_NEWCGROUP, again, "--require", "namespaces,pids", "--slots", "4")
		r := shell(`exec tail /dev/zero`)
		r.Limits.MemoryBytes = new(int64(32 << 20))
		f := s.submit("much", r).wait().proven()
		t.Logf("%s", f.raw)
		if f.result.Outcome != wire.OOM { // a host that cannot limit memory says so
			require.Equal(t, wire.ReasonUnenforceable, f.result.Reason, "%s", f.raw)
		}
		s.run("next", "sh", "-c", "exit 5").exited(5)
		w.stop()
		require.True(t, w.cmd.ProcessState.Success(), "%s", w.log)
	})
	t.Run("read-only groups", func(t *testing.T) {
		t.Parallel()
		s := newStack(t).apply()
		attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Unshareflags: syscall.CLONE_NEWNS}
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `mount -t proc proc /proc; for m in /sys/fs/cgroup/* /sys/fs/cgroup; do
			mountpoint -q $m && { mount -o remount,bind,ro $m || exit 9; }; done; exec "$@"`,
			"sh", binary, "worker", "--server", s.url, "--config", s.config, "--state-dir", filepath.Join(s.dir, "w1"), "--http", "", "--require", "namespaces,memory,pids")
		cmd.SysProcAttr = attr
		out, err := cmd.CombinedOutput()
		require.ErrorContains(t, err, "exit status 4", "%s", out)
		require.Contains(t, string(out), "missing: memory limit")
		require.Contains(t, string(out), "read-only")
		require.Contains(t, string(out), "--cgroupns=private")
	})
}
