package cgroup_test

import (
	"context"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

const mib = 1 << 20

func open(t *testing.T, f cgroup.FS) (*cgroup.Group, cgroup.Report) {
	t.Helper()
	g, report := cgroup.Open(cgroup.Config{Instance: "one", FS: f})
	require.NotNil(t, g, "%s", report)
	return g, report
}

func lease(t *testing.T, g *cgroup.Group, limits cgroup.Limits) *cgroup.Lease {
	t.Helper()
	l, err := g.NewLease("5e1f", limits)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Remove(context.WithoutCancel(t.Context()))) })
	return l
}

func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestOpenAtTheRealRootMovesNobody(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/")
	f.realRoot = true
	g, report := open(t, f)
	require.Empty(t, report.Moved)
	require.Equal(t, "v2", report.Layout)
	require.Equal(t, []string{mount + "/sallyport/one"}, report.Dirs)
	for _, finding := range []cgroup.Finding{report.Memory, report.Pids, report.CPU, report.Proof} {
		require.True(t, finding.OK, "%s", report)
	}
	require.Empty(t, report.Weaker)
	memory, pids, cpu := g.Enforces()
	require.True(t, memory && pids && cpu)
	require.Equal(t, []int{self}, f.at("/").procs)
	require.NoError(t, g.Close(t.Context()))
	require.Equal(t, []string{mount}, slices.Collect(maps.Keys(f.groups)))
}

func TestOpenStepsAsideWhereItsGroupHasProcesses(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/") // a container's own namespace: its root is not the real one
	g, report := open(t, f)
	require.Equal(t, mount+"/worker", report.Moved)
	require.True(t, report.Memory.OK && report.Pids.OK && report.CPU.OK, "%s", report)
	require.Empty(t, f.at("/").procs)
	require.Equal(t, []int{self}, f.at("/worker").procs)
	require.Contains(t, report.String(), "moved   the worker into /sys/fs/cgroup/worker")

	require.NoError(t, g.Close(t.Context()))
	require.Equal(t, []int{self}, f.at("/").procs, "Close leaves the group as it was found")
	require.Empty(t, f.at("/").subtree)
	require.Equal(t, []string{mount}, slices.Collect(maps.Keys(f.groups)))
}

func TestOpenReturnsWhereOthersAreInTheWay(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.at("/app").procs = append(f.at("/app").procs, 77)
	g, report := open(t, f)
	require.Empty(t, report.Moved)
	require.False(t, report.Memory.OK)
	require.Contains(t, report.Memory.Why, "1 other processes are in the worker's own group (77)")
	require.Contains(t, strings.Join(report.Memory.Fix, "\n"), "start the worker alone")
	require.ElementsMatch(t, []int{self, 77}, f.at("/app").procs)
	require.NotContains(t, f.groups, mount+"/app/worker")
	require.True(t, report.Proof.OK, "the tree still proves the end: %s", report)

	memory, pids, cpu := g.Enforces()
	require.False(t, memory || pids || cpu)
	l := lease(t, g, cgroup.Limits{})
	var unenforced *cgroup.UnenforcedError
	require.ErrorAs(t, l.SetLimits(cgroup.Limits{MemoryBytes: mib}), &unenforced)
	require.Equal(t, cgroup.Memory, unenforced.Controller)
	require.ErrorAs(t, l.SetLimits(cgroup.Limits{CPUShare: 10}), &unenforced)
	require.Equal(t, cgroup.CPU, unenforced.Controller)
	empty, detail, err := l.Empty()
	require.NoError(t, err)
	require.True(t, empty)
	require.Equal(t, "populated 0", detail)
}

func TestOpenBelowADelegatedParent(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/user.slice/run.service/worker")
	f.at("/user.slice/run.service").subtree = map[string]bool{}
	f.owned = []string{mount + "/user.slice/run.service"}
	g, report := open(t, f)
	require.Empty(t, report.Moved)
	require.Equal(t, []string{mount + "/user.slice/run.service/sallyport/one"}, report.Dirs)
	require.True(t, report.Memory.OK && report.Pids.OK && report.CPU.OK, "%s", report)
	require.NoError(t, lease(t, g, cgroup.Limits{MemoryBytes: mib}).SetLimits(cgroup.Limits{MemoryBytes: 2 * mib}))
}

func TestOpenWithoutRights(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*tree)
		why    string
		fix    string
	}{
		"an ordinary user without delegation": {
			func(f *tree) { f.owned = []string{"/home"} }, "permission denied", "systemd-run --user --scope -p Delegate=yes",
		},
		"mounted read-only": {
			func(f *tree) { f.mountinfo = strings.Replace(f.mountinfo, "rw,nosuid", "ro,nosuid", 1) }, "mounted read-only", "--privileged",
		},
		"not mounted": {func(f *tree) { f.mountinfo = "" }, "not mounted", "mount -t cgroup2"},
		"no /proc":    {func(f *tree) { f.mountinfo = "x\n" }, "too few fields", "mount /proc"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTree(t, "/app")
			c.change(f)
			g, report := cgroup.Open(cgroup.Config{Instance: "one", FS: f})
			require.Nil(t, g)
			for _, finding := range []cgroup.Finding{report.Memory, report.Pids, report.CPU, report.Proof} {
				require.False(t, finding.OK)
				require.Contains(t, finding.Why, c.why)
				require.Contains(t, strings.Join(finding.Fix, "\n"), c.fix)
			}
			require.Contains(t, report.String(), "fix: ")
		})
	}
}

func TestOpenRefusesABadInstance(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a/b", "..", strings.Repeat("x", 65)} {
		g, report := cgroup.Open(cgroup.Config{Instance: name, FS: newTree(t, "/")})
		require.Nil(t, g)
		require.Contains(t, report.Memory.Why, "is not a token")
	}
}

func TestOpenWithoutCPUDelegated(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	delete(f.at("/").subtree, "cpu")
	g, report := open(t, f)
	memory, pids, cpu := g.Enforces()
	require.True(t, memory && pids)
	require.False(t, cpu)
	require.Contains(t, report.CPU.Why, "cpu controller is not offered to /sys/fs/cgroup/app")
	require.Contains(t, strings.Join(report.CPU.Fix, "\n"), "Delegate=cpu")
}

func TestOpenOnAnOldKernelSaysWhatIsWeaker(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.absent = set("cgroup.kill", "memory.swap.max", "memory.oom.group", "memory.peak", "memory.reclaim", "pids.peak", "peak reset")
	g, report := open(t, f)
	weaker := strings.Join(report.Weaker, "\n")
	for _, want := range []string{"cgroup.kill is missing", "swap is not accounted", "memory.oom.group is missing", "peak cannot be reset"} {
		require.Contains(t, weaker, want)
	}
	l := lease(t, g, cgroup.Limits{MemoryBytes: mib})
	require.NoError(t, l.Begin(t.Context()))
	usage, err := l.Usage()
	require.NoError(t, err)
	require.Equal(t, int64(-1), usage.MemoryPeakBytes)
	require.Equal(t, int64(-1), usage.PidsPeak)
	require.Zero(t, usage.OOMKills)
}

func TestOpenFindsAWriteThatFails(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.broken["/app/sallyport/one/probe/memory.max"] = syscall.EINVAL
	g, report := open(t, f)
	memory, pids, cpu := g.Enforces()
	require.False(t, memory)
	require.True(t, pids && cpu)
	require.Contains(t, report.Memory.Why, "write a limit")
	require.NotContains(t, f.groups, mount+"/app/sallyport/one/probe")
}

func TestOpenWhereNoGroupCanBeMade(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.broken["/app/sallyport/one/probe"] = fail("mkdir", "probe", syscall.EAGAIN) // cgroup.max.descendants
	g, report := cgroup.Open(cgroup.Config{Instance: "one", FS: f})
	require.Nil(t, g)
	require.False(t, report.Proof.OK)
	require.Contains(t, report.Memory.Why, "resource temporarily unavailable")
}

func TestNewLeaseWritesEveryLimitOnTheJobLeaf(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	f.writes = nil
	l := lease(t, g, cgroup.Limits{MemoryBytes: 64 * mib, Pids: 20, CPUShare: 250})
	const top = "/app/sallyport/one/5e1f"
	require.Equal(t, []string{
		top + "/cgroup.subtree_control +memory",
		top + "/cgroup.subtree_control +pids",
		top + "/cgroup.subtree_control +cpu",
		top + "/job/memory.oom.group 1",
		top + "/job/memory.max 67108864",
		top + "/job/memory.swap.max 0",
		top + "/job/pids.max 20",
		top + "/job/cpu.max 250000 100000",
	}, f.writes)
	require.Equal(t, []string{mount + top}, l.Dirs())
	require.NotNil(t, l.InitFD())
	require.Len(t, l.JobFiles(), 1)
	require.Contains(t, f.groups, mount+top+"/init")

	f.writes = nil
	require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 64 * mib, Pids: 20, CPUShare: 250}))
	require.Empty(t, f.writes, "what is written is not written again")
	require.NoError(t, l.SetLimits(cgroup.Limits{Pids: 7}))
	require.Equal(t, []string{
		top + "/job/memory.max max",
		top + "/job/memory.swap.max max",
		top + "/job/pids.max 7",
		top + "/job/cpu.max max 100000",
	}, f.writes)
}

func TestAdmitGivesLeaseInitTheWayIntoTheJobLeafAndNoOther(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{})
	require.NotNil(t, l.JobDir())
	require.NoError(t, l.Admit(7000))
	top := l.Dirs()[0]
	require.Equal(t, map[string]int{top + "/cgroup.procs": 7000, top + "/job/cgroup.procs": 7000}, f.owners)
}

func TestNewLeaseRefusesBadIDs(t *testing.T) {
	t.Parallel()
	g, _ := open(t, newTree(t, "/app"))
	for _, id := range []string{"", "probe", "a/b", ".", ".."} {
		_, err := g.NewLease(id, cgroup.Limits{})
		require.Error(t, err, "%q", id)
	}
	lease(t, g, cgroup.Limits{})
	_, err := g.NewLease("5e1f", cgroup.Limits{})
	require.ErrorIs(t, err, syscall.EEXIST, "a lease id is never used twice")
	_, detail, err := adopt(t, g, "5e1f").Empty()
	require.NoError(t, err)
	require.Equal(t, "3 groups, no process", detail, "the first lease's groups are still there")
}

// TestNewLeaseLeavesNothingAfterAnError breaks each step in its turn.
func TestNewLeaseLeavesNothingAfterAnError(t *testing.T) {
	t.Parallel()
	for _, step := range []string{
		"", "/init", "/job", "/cgroup.subtree_control", "/job/memory.oom.group", "/job/memory.max", "/job/memory.swap.max",
		"/job/pids.max", "/job/cpu.max",
	} {
		t.Run("step "+step, func(t *testing.T) {
			t.Parallel()
			f := newTree(t, "/app")
			g, _ := open(t, f)
			f.broken["/app/sallyport/one/5e1f"+step] = fail("do", step, syscall.ENOSPC)
			_, err := g.NewLease("5e1f", cgroup.Limits{MemoryBytes: mib, Pids: 1, CPUShare: 1})
			require.ErrorIs(t, err, syscall.ENOSPC)
			ids, err := g.Leases()
			require.NoError(t, err)
			require.Empty(t, ids)
			require.NoError(t, g.Close(t.Context()))
		})
	}
}

func TestSetLimitsThatFailsIsWrittenAgain(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{MemoryBytes: mib, Pids: 5})
	const file = "/app/sallyport/one/5e1f/job/pids.max"
	f.broken[file] = syscall.EIO
	require.ErrorIs(t, l.SetLimits(cgroup.Limits{MemoryBytes: mib, Pids: 6}), syscall.EIO)
	delete(f.broken, file)
	f.writes = nil
	require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: mib, Pids: 5}))
	require.Contains(t, f.writes, file+" 5", "after an error nothing counts as written")
	for _, bad := range []cgroup.Limits{{MemoryBytes: -1}, {Pids: -1}, {CPUShare: -1}, {CPUShare: 1 << 40}} {
		require.ErrorContains(t, l.SetLimits(bad), "out of range")
	}
}

func TestSetLimitsBelowWhatIsInUse(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{MemoryBytes: 64 * mib})
	job := f.at("/app/sallyport/one/5e1f/job")
	job.current, job.pinned = 40*mib, mib
	require.NoError(t, l.SetLimits(cgroup.Limits{MemoryBytes: 16 * mib}), "page cache is no obstacle")
	job.current, job.pinned = 40*mib, 20*mib
	require.ErrorIs(t, l.SetLimits(cgroup.Limits{MemoryBytes: 8 * mib}), syscall.EBUSY,
		"the kernel takes the limit, and would kill the next process at once")
}

func TestUnthrottle(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{CPUShare: 5})
	job := "/app/sallyport/one/5e1f/job/cpu.max"
	f.writes = nil
	require.NoError(t, l.Unthrottle())
	require.Equal(t, []string{job + " max 100000"}, f.writes)
	require.NoError(t, l.SetLimits(cgroup.Limits{CPUShare: 5}))
	require.Contains(t, f.writes, job+" 5000 100000", "the next run has the limit again")
	require.NoError(t, l.SetLimits(cgroup.Limits{}))
	f.writes = nil
	require.NoError(t, l.Unthrottle())
	require.Empty(t, f.writes, "there is no limit to lift")
	require.NoError(t, l.Remove(cleanup(t)))
	require.NoError(t, l.Unthrottle())
}

func TestUsageIsSinceBegin(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{MemoryBytes: 64 * mib, Pids: 9})
	job := f.at("/app/sallyport/one/5e1f/job")
	job.values["cpu.stat"] = "usage_usec 300\nuser_usec 200\nsystem_usec 100\n"
	job.values["memory.events"] = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n"
	job.values["pids.events"] = "max 4\n"
	job.values["pids.peak"] = "8\n"
	job.current, job.pinned, job.peak = 30*mib, mib, 50*mib
	require.NoError(t, l.Begin(t.Context()))
	require.Equal(t, int64(mib), job.current, "an earlier job's page cache is dropped")

	job.values["cpu.stat"] = "usage_usec 1800\nuser_usec 1200\nsystem_usec 600\n"
	job.values["memory.events"] = "low 0\nhigh 0\nmax 9\noom 3\noom_kill 5\noom_group_kill 2\n"
	job.values["pids.events"] = "max 10\n"
	job.peak = 12 * mib
	usage, err := l.Usage()
	require.NoError(t, err)
	require.Equal(t, cgroup.Usage{
		CPUUser: time.Millisecond, CPUSystem: 500 * time.Microsecond, MemoryPeakBytes: 12 * mib,
		PidsPeak: -1, OOMKills: 2, PidsMaxHits: 6,
	}, usage, "a peak of tasks that did not rise may be an earlier job's")
	spent, err := l.CPUTime()
	require.NoError(t, err)
	require.Equal(t, 1500*time.Microsecond, spent)

	job.values["pids.peak"] = "9\n"
	usage, err = l.Usage()
	require.NoError(t, err)
	require.Equal(t, int64(9), usage.PidsPeak)
}

func TestBeginLeavesASmallCacheAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ limit, held, left int64 }{
		"less than a quarter of the limit":  {64 * mib, 15 * mib, 15 * mib},
		"more than that":                    {64 * mib, 16*mib + 1, 0},
		"4 MiB under a small limit":         {8 * mib, 4 * mib, 4 * mib},
		"more than 4 MiB":                   {8 * mib, 4*mib + 1, 0},
		"anything where nothing is limited": {0, 1 << 40, 1 << 40},
	} {
		f := newTree(t, "/app")
		g, _ := open(t, f)
		l := lease(t, g, cgroup.Limits{MemoryBytes: c.limit})
		job := f.at("/app/sallyport/one/5e1f/job")
		job.current = c.held
		require.NoError(t, l.Begin(t.Context()))
		require.Equal(t, c.left, job.current, name)
	}
}

func TestPeakThatCannotBeReset(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.absent = set("peak reset")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{MemoryBytes: 64 * mib})
	job := f.at("/app/sallyport/one/5e1f/job")
	job.peak = 10 * mib
	require.NoError(t, l.Begin(t.Context()))
	usage, err := l.Usage()
	require.NoError(t, err)
	require.Equal(t, int64(-1), usage.MemoryPeakBytes)
	job.peak = 11 * mib
	usage, err = l.Usage()
	require.NoError(t, err)
	require.Equal(t, int64(11*mib), usage.MemoryPeakBytes)
}

func TestUsageOfNonsenseIsAnError(t *testing.T) {
	t.Parallel()
	for file, text := range map[string]string{
		"cpu.stat": "usage_usec 1\n", "memory.events": "low 0\n", "pids.events": "max many\n", "pids.peak": "\n",
	} {
		f := newTree(t, "/app")
		g, _ := open(t, f)
		l := lease(t, g, cgroup.Limits{})
		f.at("/app/sallyport/one/5e1f/job").values[file] = text
		require.Error(t, l.Begin(t.Context()), file)
		_, err := l.Usage()
		require.ErrorContains(t, err, file)
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{})
	job := f.at("/app/sallyport/one/5e1f/job")
	f.at("/app/sallyport/one/5e1f/init").procs = []int{100}
	empty, detail, err := l.Empty()
	require.NoError(t, err)
	require.True(t, empty, "lease init does not count")
	require.Equal(t, "populated 0, pids 0", detail)

	member := sleeper(t)
	job.procs = []int{member.Process.Pid}
	empty, detail, err = l.Empty()
	require.NoError(t, err)
	require.False(t, empty)
	require.Equal(t, "populated 1, pids 1", detail)
	detail, err = l.WaitEmpty(short(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, "populated 1, pids 1", detail)

	require.NoError(t, l.KillJob())
	require.ErrorContains(t, member.Wait(), "killed")
	require.NotContains(t, f.writes, "/app/sallyport/one/5e1f/job/cgroup.kill 1", "later jobs are to be born here")
	require.False(t, l.Spent())
	job.procs = nil
	detail, err = l.WaitEmpty(short(t))
	require.NoError(t, err)
	require.Equal(t, "populated 0, pids 0", detail)
	require.Equal(t, []int{100}, f.at("/app/sallyport/one/5e1f/init").procs, "lease init lives on")
	require.NoError(t, l.Kill())
	require.Empty(t, f.at("/app/sallyport/one/5e1f/init").procs)
}

// TestKillJobWhereForksCannotBeStopped: then only the kernel's own kill is sure.
func TestKillJobWhereForksCannotBeStopped(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.absent = set("pids.max")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{})
	job := f.at("/app/sallyport/one/5e1f/job")
	job.procs = []int{101}
	require.NoError(t, l.KillJob())
	require.Empty(t, job.procs)
	require.True(t, l.Spent())
}

// TestKillWithoutTheKernelsHelp: an old kernel lists processes, and somebody else
// may be behind a number by the time that it is used.
func TestKillWithoutTheKernelsHelp(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.absent = set("cgroup.kill")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{Pids: 5})
	member, stranger := sleeper(t), sleeper(t)
	job := f.at("/app/sallyport/one/5e1f/job")
	job.procs = []int{member.Process.Pid, 1, 0}
	job.once = []int{stranger.Process.Pid}
	f.writes = nil
	require.NoError(t, l.KillJob())
	require.ErrorContains(t, member.Wait(), "killed")
	require.NoError(t, stranger.Process.Signal(syscall.SIGTERM))
	require.ErrorContains(t, stranger.Wait(), "terminated", "nobody else was killed")
	require.Equal(t, []string{"/app/sallyport/one/5e1f/job/pids.max 0"}, f.writes, "nothing is born while it goes on")
	f.change(func() { job.procs = nil })
	f.writes = nil
	require.NoError(t, l.SetLimits(cgroup.Limits{Pids: 5}))
	require.Contains(t, f.writes, "/app/sallyport/one/5e1f/job/pids.max 5", "the lease can be used again")
}

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			require.NoError(t, cmd.Process.Kill())
			require.Error(t, cmd.Wait())
		}
	})
	return cmd
}

func TestRemoveRetriesWhileBusyAndIsIdempotent(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l, err := g.NewLease("5e1f", cgroup.Limits{})
	require.NoError(t, err)
	job := f.at("/app/sallyport/one/5e1f/job")
	job.procs = []int{101}
	err = l.Remove(short(t))
	require.ErrorIs(t, err, syscall.EBUSY)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotContains(t, f.groups, mount+"/app/sallyport/one/5e1f/init", "what can go goes")
	require.ErrorContains(t, g.Close(t.Context()), "still has 5e1f")

	f.change(func() { job.procs, f.busy = nil, 3 })
	require.NoError(t, l.Remove(t.Context()))
	require.NoError(t, l.Remove(t.Context()))
	require.NoError(t, l.Kill(), "groups that are gone have nothing to kill")
	require.NoError(t, g.Close(t.Context()))
}

func TestGroupRemovedUnderALeaseIsDoubt(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	g, _ := open(t, f)
	l := lease(t, g, cgroup.Limits{})
	f.change(func() { delete(f.groups, mount+"/app/sallyport/one/5e1f/job") })
	_, _, err := l.Empty()
	require.ErrorIs(t, err, cgroup.ErrGone)
	require.ErrorIs(t, l.Begin(t.Context()), cgroup.ErrGone)
	require.Error(t, l.SetLimits(cgroup.Limits{Pids: 3}))
}

func TestRemainsOfACrashedWorker(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	f.realRoot = true
	first, _ := open(t, f)
	l, err := first.NewLease("dead", cgroup.Limits{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Remove(context.WithoutCancel(t.Context()))) })
	f.at("/app/sallyport/one/dead/init").procs = []int{100}
	f.at("/app/sallyport/one/dead/job").procs = []int{101}

	// The next worker starts in another group and knows the old one's by its state.
	f.change(func() {
		f.add(mount + "/other").procs = []int{self}
		f.at("/app/worker").procs = nil
	})
	second, report := open(t, f)
	require.Equal(t, []string{mount + "/other/sallyport/one"}, report.Dirs)
	ids, err := second.Leases()
	require.NoError(t, err)
	require.Empty(t, ids)
	for _, dir := range []string{"/etc/dead", "/x/sallyport/one/../dead", "sallyport/one/dead", mount + "/app/sallyport/one/alive"} {
		_, err := second.Adopt("dead", []string{dir})
		require.Error(t, err, dir)
	}
	remains, err := second.Adopt("dead", l.Dirs())
	require.NoError(t, err)
	require.Equal(t, l.Dirs(), remains.Dirs())
	empty, detail, err := remains.Empty()
	require.NoError(t, err)
	require.False(t, empty)
	require.Contains(t, detail, "is populated")
	require.NoError(t, remains.Kill())
	_, err = remains.WaitEmpty(short(t))
	require.NoError(t, err)
	require.NoError(t, remains.Remove(t.Context()))
	require.NotContains(t, f.groups, mount+"/app/sallyport/one/dead")

	again := adopt(t, second, "dead")
	require.Empty(t, again.Dirs())
	empty, _, err = again.Empty()
	require.NoError(t, err)
	require.True(t, empty)
}

func TestLeasesAreFoundAfterARestartInTheSameGroup(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	first, _ := open(t, f)
	l, err := first.NewLease("5e1f", cgroup.Limits{})
	require.NoError(t, err)
	second, report := open(t, f)
	require.True(t, report.Memory.OK, "%s", report)
	ids, err := second.Leases()
	require.NoError(t, err)
	require.Equal(t, []string{"5e1f"}, ids)
	require.NoError(t, l.Remove(t.Context()))
}

// TestOpenWhileAnotherInstanceCloses: the base goes away between two steps.
func TestOpenWhileAnotherInstanceCloses(t *testing.T) {
	t.Parallel()
	for times, works := range map[int]bool{1: true, 4: true, 5: false} {
		f := newTree(t, "/app")
		f.beforeMkdir = func(name string) {
			if times > 0 && name == mount+"/app/sallyport/one" {
				times--
				delete(f.groups, mount+"/app/sallyport")
			}
		}
		_, report := cgroup.Open(cgroup.Config{Instance: "one", FS: f})
		require.Equal(t, works, report.Memory.OK, "%s", report)
	}
}

func TestTwoInstancesShareABase(t *testing.T) {
	t.Parallel()
	f := newTree(t, "/app")
	one, _ := open(t, f)
	two, report := cgroup.Open(cgroup.Config{Instance: "two", FS: f})
	require.True(t, report.Memory.OK, "%s", report)
	require.NoError(t, one.Close(t.Context()))
	require.Contains(t, f.groups, mount+"/app/sallyport/two")
	require.NoError(t, two.Close(t.Context()))
	require.NotContains(t, f.groups, path.Join(mount, "/app/sallyport"))
}

func adopt(t *testing.T, g *cgroup.Group, id string) *cgroup.Remains {
	t.Helper()
	r, err := g.Adopt(id, nil)
	require.NoError(t, err)
	return r
}
