package cgroup_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// The tests below run on this host's own control groups. What it cannot do is
// named by its report, and the test says so instead of looking the other way.

// views are the host as it is, and as it would be with less.
func views() map[string]cgroup.FS {
	return map[string]cgroup.FS{
		"as it is":              cgroup.OS{},
		"without a v2 tree":     lessFS{hide: []string{" cgroup2 "}},
		"v1 memory and cpu":     lessFS{hide: []string{" cgroup2 ", ",pids"}},
		"v2 tree and no limits": lessFS{hide: []string{" - cgroup cgroup "}},
	}
}

// lessFS hides mounts.
type lessFS struct {
	cgroup.OS
	hide []string
}

func (f lessFS) ReadFile(name string) ([]byte, error) {
	data, err := f.OS.ReadFile(name)
	if name != "/proc/self/mountinfo" {
		return data, err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		hidden := false
		for _, piece := range f.hide {
			hidden = hidden || strings.Contains(line, piece)
		}
		if !hidden {
			kept.WriteString(line)
		}
	}
	return []byte(kept.String()), err
}

// hostView is one view, and the running test's part of it.
type hostView struct {
	t      *testing.T
	group  *cgroup.Group
	report cgroup.Report
}

// onHost opens a group of its own for the test, in each view.
func onHost(t *testing.T, test func(h hostView)) {
	t.Helper()
	for name, view := range views() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hash := sha256.Sum256([]byte(t.Name()))
			g, report := cgroup.Open(cgroup.Config{Instance: fmt.Sprintf("test-%d-%x", os.Getpid(), hash[:8]), FS: view})
			if g == nil {
				require.NotEmpty(t, report.Proof.Why)
				t.Logf("this host has no control groups for this test: %s", report)
				return
			}
			t.Cleanup(func() { require.NoError(t, g.Close(cleanup(t))) })
			test(hostView{t: t, group: g, report: report})
		})
	}
}

// enforced says whether the host can do what the test is about, and if not, why.
func enforced(t *testing.T, finding cgroup.Finding) bool {
	t.Helper()
	if !finding.OK {
		require.NotEmpty(t, finding.Why)
		t.Logf("not enforced in this view: %s", finding.Why)
	}
	return finding.OK
}

func cleanup(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// start runs a shell script in the lease's job leaf; it enters before it does
// anything else, as the stub does. It has a pid namespace of its own, whose end
// leaves no zombie to a host's init that takes its time.
func start(t *testing.T, l *cgroup.Lease, script string) *exec.Cmd {
	t.Helper()
	return run(t, l, enter(l)+script)
}

// startBeside is start, but for the namespace's init, which stays outside of the
// leaf and reaps: its own end does not end the job.
func startBeside(t *testing.T, l *cgroup.Lease, script string) *exec.Cmd {
	t.Helper()
	return run(t, l, "( "+enter(l)+script+" ) & while :; do sleep 0.01; done")
}

func enter(l *cgroup.Lease) string {
	var script strings.Builder
	for i := range l.JobFiles() {
		fmt.Fprintf(&script, "echo 0 >&%d || exit 99; ", 3+i)
	}
	return script.String()
}

func run(t *testing.T, l *cgroup.Lease, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.ExtraFiles = l.JobFiles()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	require.NoError(t, cmd.Start())
	return cmd
}

func newLease(t *testing.T, g *cgroup.Group, limits cgroup.Limits) *cgroup.Lease {
	t.Helper()
	l, err := g.NewLease("lease", limits)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := cleanup(t)
		require.NoError(t, l.Kill())
		require.NoError(t, l.Remove(ctx))
	})
	require.NoError(t, l.Begin(t.Context()))
	return l
}

// onDisk is a directory that is not in memory, where the kernel can drop what is
// cached; empty where there is none.
func onDisk(t *testing.T) string {
	t.Helper()
	here := fmt.Sprintf("page-cache-%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(here)) })
	for _, dir := range []string{t.TempDir(), here} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		var stat unix.Statfs_t
		require.NoError(t, unix.Statfs(dir, &stat))
		if stat.Type != unix.TMPFS_MAGIC && stat.Type != unix.RAMFS_MAGIC {
			return dir
		}
	}
	return ""
}

func requireEmpty(t *testing.T, l *cgroup.Lease) {
	t.Helper()
	_, err := l.WaitEmpty(cleanup(t))
	require.NoError(t, err)
}

func TestHostEndOfAJob(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		require.True(t, report.Proof.OK)
		l := newLease(t, g, cgroup.Limits{})
		empty, _, err := l.Empty()
		require.NoError(t, err)
		require.True(t, empty)

		// A process in a session of its own belongs to the job like any other.
		cmd := start(t, l, "setsid sleep 1000 & exec sleep 1000")
		require.Eventually(t, func() bool {
			empty, _, err := l.Empty()
			return err == nil && !empty
		}, 10*time.Second, time.Millisecond)
		require.ErrorIs(t, l.Remove(short(t)), syscall.EBUSY)

		require.NoError(t, l.KillJob())
		require.Error(t, cmd.Wait())
		requireEmpty(t, l)
	})
}

func TestHostKillsWhatForksAllTheTime(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		limits := cgroup.Limits{}
		if report.Pids.OK {
			limits.Pids = 40
		}
		l := newLease(t, g, limits)
		cmd := startBeside(t, l, `f() { (sleep 0.01; f) & (sleep 0.02) & }; f; f; exec sleep 1000`)
		require.Eventually(t, func() bool {
			empty, _, err := l.Empty()
			return err == nil && !empty
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, l.Kill())
		requireEmpty(t, l)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
	})
}

func TestHostLeaseInitIsKilledWithItsLeaseAlone(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g := h.t, h.group
		l := newLease(t, g, cgroup.Limits{})
		lone := exec.CommandContext(t.Context(), "sleep", "1000")
		if dir := l.InitFD(); dir != nil {
			lone.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		}
		require.NoError(t, lone.Start())
		require.NoError(t, l.AttachInit(lone.Process.Pid))
		membership, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", lone.Process.Pid))
		require.NoError(t, err)
		for _, dir := range l.Dirs() {
			require.Contains(t, string(membership), filepath.Base(filepath.Dir(dir))+"/lease", "lease init is in every hierarchy")
		}
		require.NoError(t, l.KillJob())
		empty, detail, err := l.Empty()
		require.NoError(t, err)
		require.True(t, empty, "the job leaf is empty beside a living lease init: %s", detail)
		require.NoError(t, lone.Process.Signal(syscall.Signal(0)), "lease init outlives its job")
		require.NoError(t, l.Kill())
		require.ErrorContains(t, lone.Wait(), "killed")
	})
}

func TestHostMemoryLimit(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		if !enforced(t, report.Memory) {
			return
		}
		l := newLease(t, g, cgroup.Limits{MemoryBytes: 32 * mib})
		require.Error(t, start(t, l, "tail /dev/zero").Wait(), "it asks for memory without an end")
		requireEmpty(t, l)
		usage, err := l.Usage()
		require.NoError(t, err)
		require.Positive(t, usage.OOMKills)
		require.InDelta(t, 32*mib, usage.MemoryPeakBytes, mib)
		require.Positive(t, usage.CPUUser+usage.CPUSystem)

		// The next job in the same lease starts from nothing, with a smaller limit.
		require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 16 * mib}))
		require.NoError(t, l.Begin(t.Context()))
		require.NoError(t, start(t, l, "exec true").Wait())
		requireEmpty(t, l)
		usage, err = l.Usage()
		require.NoError(t, err)
		require.Zero(t, usage.OOMKills)
		require.Less(t, usage.MemoryPeakBytes, int64(8*mib))
		require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 256 * mib}), "it can be raised again")
		require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 8 * mib}))
		require.NoError(t, l.KillJob())
		require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 512 * mib}), "also when nothing counts as written")
		require.NoError(t, l.SetLimits(cgroup.Limits{}))
		if !strings.Contains(strings.Join(report.Weaker, "\n"), "swappiness") && strings.HasPrefix(report.Memory.By, "v1") {
			swappiness, err := os.ReadFile(strings.ReplaceAll(filepath.Join(filepath.Dir(report.Memory.By[3:]), "memory.swappiness"), "*", "lease"))
			require.NoError(t, err)
			require.Equal(t, "0\n", string(swappiness))
		}
	})
}

func TestHostPageCacheOfAnEarlierJob(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		if !enforced(t, report.Memory) {
			return
		}
		l := newLease(t, g, cgroup.Limits{MemoryBytes: 64 * mib})
		dir := onDisk(t)
		if dir == "" {
			t.Log("this host has no file system with a page cache for this test")
			return
		}
		file := filepath.Join(dir, "file")
		require.NoError(t, start(t, l, "head -c 33554432 /dev/zero >"+file+" && sync "+file).Wait())
		requireEmpty(t, l)
		usage, err := l.Usage()
		require.NoError(t, err)
		require.Greater(t, usage.MemoryPeakBytes, int64(30*mib))

		require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 8 * mib}), "what is cached gives way to a smaller limit")
		require.NoError(t, l.Begin(t.Context()))
		require.NoError(t, start(t, l, "exec true").Wait())
		usage, err = l.Usage()
		require.NoError(t, err)
		require.Less(t, usage.MemoryPeakBytes, int64(6*mib), "the peak is this job's own")
	})
}

// TestHostMemoryThatCannotBeFreed: a file in memory outlives its job.
func TestHostMemoryThatCannotBeFreed(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		if !enforced(t, report.Memory) {
			return
		}
		l := newLease(t, g, cgroup.Limits{MemoryBytes: 64 * mib})
		file := filepath.Join("/dev/shm", fmt.Sprintf("%s-%d", filepath.Base(l.Dirs()[0]), time.Now().UnixNano()))
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(file)) })
		require.NoError(t, start(t, l, "head -c 16777216 /dev/zero >"+file).Wait())
		requireEmpty(t, l)
		require.ErrorIs(t, l.SetLimits(cgroup.Limits{MemoryBytes: 4 * mib}), syscall.EBUSY)
		require.NoError(t, os.Remove(file))
		require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 4 * mib}))
	})
}

// failingFS is the host's FS, some of whose writes fail in a test's lease.
type failingFS struct {
	cgroup.OS
	mu *sync.Mutex
	// fail is how often a write into a file of the job leaf still fails; done
	// counts those that did not.
	fail, done map[string]int
}

func (f failingFS) WriteFile(name, value string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if file, ok := strings.CutPrefix(name[strings.LastIndex(name, "/lease/")+1:], "lease/job/"); ok {
		if f.fail[file] > 0 {
			f.fail[file]--
			return fail("write", name, syscall.EBUSY)
		}
		f.done[file]++
	}
	return f.OS.WriteFile(name, value)
}

func TestHostMemoryLimitThatIsBusy(t *testing.T) {
	t.Parallel()
	view := failingFS{mu: &sync.Mutex{}, fail: map[string]int{}, done: map[string]int{}}
	g, report := cgroup.Open(cgroup.Config{Instance: fmt.Sprintf("test-%d-busy", os.Getpid()), FS: view})
	if g != nil {
		t.Cleanup(func() { require.NoError(t, g.Close(cleanup(t))) })
	}
	if g == nil || !strings.HasPrefix(report.Memory.By, "v1") || !report.Pids.OK {
		t.Logf("memory is not limited by v1 here, or pids not at all: %s", report)
		return
	}
	l := newLease(t, g, cgroup.Limits{MemoryBytes: 64 * mib, Pids: 9})
	view.fail["memory.limit_in_bytes"] = 1
	require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 32 * mib, Pids: 9}))
	require.Equal(t, 1, view.done["memory.force_empty"], "what is cached is dropped, and the limit written again")
	view.fail["memory.limit_in_bytes"] = 2
	require.ErrorIs(t, l.SetLimits(cgroup.Limits{MemoryBytes: 8 * mib, Pids: 9}), syscall.EBUSY)

	// Half of the limits are written: the next ones must not trip over them.
	view.fail["pids.max"] = 1
	require.ErrorIs(t, l.SetLimits(cgroup.Limits{MemoryBytes: 8 * mib, Pids: 8}), syscall.EBUSY)
	require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 16 * mib, Pids: 9}))
}

func TestHostPidsLimit(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		if !enforced(t, report.Pids) {
			return
		}
		l := newLease(t, g, cgroup.Limits{Pids: 10})
		cmd := start(t, l, "i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; exec sleep 1000")
		require.Eventually(t, func() bool {
			usage, err := l.Usage()
			return err == nil && usage.PidsMaxHits > 0
		}, 10*time.Second, time.Millisecond)
		require.NoError(t, l.KillJob())
		require.Error(t, cmd.Wait())
		requireEmpty(t, l)
		usage, err := l.Usage()
		require.NoError(t, err)
		require.Equal(t, int64(10), usage.PidsPeak)

		require.NoError(t, l.SetLimits(cgroup.Limits{Pids: 3}))
		require.NoError(t, l.Begin(t.Context()))
		require.NoError(t, start(t, l, "true; exec true").Wait(), "the lease is good for another job after a kill")
		usage, err = l.Usage()
		require.NoError(t, err)
		require.Zero(t, usage.PidsMaxHits)
	})
}

func TestHostCPUShare(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		if !enforced(t, report.CPU) {
			return
		}
		l := newLease(t, g, cgroup.Limits{CPUShare: 5})
		began := time.Now()
		cmd := start(t, l, "while :; do :; done")
		require.Eventually(t, func() bool {
			spent, err := l.CPUTime()
			return err == nil && spent > 20*time.Millisecond
		}, 20*time.Second, time.Millisecond)
		require.NoError(t, l.KillJob())
		require.Error(t, cmd.Wait())
		requireEmpty(t, l)
		usage, err := l.Usage()
		require.NoError(t, err)
		// 5 ms in each 100 ms, the first period's and one more on each of the cores.
		allowed := time.Since(began)/20 + 30*time.Millisecond
		require.Less(t, usage.CPUUser+usage.CPUSystem, allowed)
	})
}

func TestHostUsageCountsWhatNobodyReaped(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g, report := h.t, h.group, h.report
		l := newLease(t, g, cgroup.Limits{})
		if spent, err := l.CPUTime(); err == nil && spent < 0 {
			t.Logf("cpu time is not measured in this view: %s", report)
			return
		}
		cmd := start(t, l, "(while :; do :; done) & exec sleep 1000")
		require.Eventually(t, func() bool {
			spent, err := l.CPUTime()
			return err == nil && spent > 30*time.Millisecond
		}, 20*time.Second, time.Millisecond)
		require.NoError(t, l.KillJob())
		require.Error(t, cmd.Wait())
		requireEmpty(t, l)
		usage, err := l.Usage()
		require.NoError(t, err)
		require.Greater(t, usage.CPUUser+usage.CPUSystem, 30*time.Millisecond)
	})
}

func TestHostRemainsOfACrashedWorker(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g := h.t, h.group
		l := newLease(t, g, cgroup.Limits{})
		cmd := start(t, l, "sleep 1000 & exec sleep 1000")
		require.Eventually(t, func() bool {
			empty, _, err := l.Empty()
			return err == nil && !empty
		}, 10*time.Second, time.Millisecond)
		ids, err := g.Leases()
		require.NoError(t, err)
		require.Equal(t, []string{"lease"}, ids)
		remains, err := g.Adopt("lease", l.Dirs())
		require.NoError(t, err)
		empty, detail, err := remains.Empty()
		require.NoError(t, err)
		require.False(t, empty, detail)
		require.NoError(t, remains.Kill())
		require.Error(t, cmd.Wait())
		_, err = remains.WaitEmpty(cleanup(t))
		require.NoError(t, err)
		require.NoError(t, remains.Remove(cleanup(t)))
		ids, err = g.Leases()
		require.NoError(t, err)
		require.Empty(t, ids)
	})
}

func TestHostFilesAreClosedAfterRemove(t *testing.T) {
	t.Parallel()
	onHost(t, func(h hostView) {
		t, g := h.t, h.group
		l := newLease(t, g, cgroup.Limits{})
		require.NoError(t, l.Remove(cleanup(t)))
		_, _, err := l.Empty()
		require.Error(t, err, "what is gone does not pass for empty")
		for _, file := range l.JobFiles() {
			require.ErrorIs(t, file.Close(), os.ErrClosed)
		}
	})
}

func BenchmarkLease(b *testing.B) {
	g, report := cgroup.Open(cgroup.Config{Instance: fmt.Sprintf("bench-%d", os.Getpid())})
	require.NotNil(b, g, "%s", report)
	limits := func(mibs int64) cgroup.Limits {
		var l cgroup.Limits
		if report.Memory.OK {
			l.MemoryBytes = mibs * mib
		}
		return l
	}
	b.Run("make and remove", func(b *testing.B) {
		for i := range b.N {
			l, err := g.NewLease(fmt.Sprint("l", i), limits(64))
			require.NoError(b, err)
			require.NoError(b, l.Remove(b.Context()))
		}
	})
	l, err := g.NewLease("bench", limits(64))
	require.NoError(b, err)
	b.Run("limits that change", func(b *testing.B) {
		for i := range b.N {
			require.NoError(b, l.SetLimits(limits(32+int64(i%2))))
		}
	})
	b.Run("a job: limits, begin, usage, empty", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			require.NoError(b, l.SetLimits(limits(64)))
			require.NoError(b, l.Begin(b.Context()))
			_, err := l.Usage()
			require.NoError(b, err)
			_, _, err = l.Empty()
			require.NoError(b, err)
		}
	})
	require.NoError(b, l.Remove(b.Context()))
	require.NoError(b, g.Close(b.Context()))
}
