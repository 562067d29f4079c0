package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// awaitOutput waits for the run's first output.
func awaitOutput(t testing.TB, rec *recorder) {
	t.Helper()
	select {
	case <-rec.seen:
	case <-time.After(patience):
		t.Fatal("no output")
	}
}

func TestLeftovers(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		for name, script := range map[string]string{
			"grandchild holds stdout": "echo hi; sleep 3600 & exit 0",
			"grandchild holds stderr": "echo hi; sleep 3600 >/dev/null & exit 0",
			"daemon":                  "echo hi; setsid sh -c '(trap \"\" TERM HUP INT; sleep 3600) &' >/dev/null 2>&1; exit 0",
			"stopped":                 "echo hi; sleep 3600 & kill -STOP $!; exit 0",
		} {
			start := time.Now()
			r := run(t, box, shell(script))
			requireExit(t, 0, r)
			require.True(t, r.Leftover, name)
			require.Equal(t, "hi\n", r.stdout)
			require.Less(t, time.Since(start), 2*time.Second, name)
		}
		r := run(t, box, shell("sleep 0.001 & wait"))
		requireExit(t, 0, r)
		require.False(t, r.Leftover)
	})
}

func TestTerminateAsks(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r, rec := begin(t, box, shell("trap 'echo saved; exit 7' TERM; echo up; while :; do sleep 0.01; done"))
		awaitOutput(t, rec)
		start := time.Now()
		proof, err := r.Terminate(t.Context(), patience)
		require.NoError(t, err)
		require.True(t, proof.Proven)
		require.Less(t, time.Since(start), patience/2)
		res := finish(t, box, r, rec)
		requireExit(t, 7, res)
		require.Equal(t, "up\nsaved\n", res.stdout)
	})
}

func TestTerminateReachesStopped(t *testing.T) {
	box := create(t, provider(t, false))
	r, rec := begin(t, box, shell("trap 'echo saved; exit 7' TERM; echo up; kill -STOP $$"))
	awaitOutput(t, rec)
	require.Eventually(t, func() bool { return stopped(t, box.Handle().Detail["pid"]) }, patience, time.Millisecond)
	_, err := r.Terminate(t.Context(), patience)
	require.NoError(t, err)
	requireExit(t, 7, finish(t, box, r, rec))
}

// stopped says whether a process below pid is stopped.
func stopped(t testing.TB, pid string) bool {
	t.Helper()
	for _, child := range children(t, pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil {
			continue // it has ended
		}
		if state := stat[bytes.LastIndexByte(stat, ')')+2]; state == 'T' || stopped(t, strconv.Itoa(child)) {
			return true
		}
	}
	return false
}

func TestTerminateForces(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		const grace = 150 * time.Millisecond
		for name, script := range map[string]string{
			"ignores TERM":       "trap '' TERM; echo up; while :; do sleep 0.01; done",
			"child ignores TERM": "trap '' TERM; sh -c 'echo up; while :; do sleep 0.01; done' & wait",
		} {
			r, rec := begin(t, box, shell(script))
			awaitOutput(t, rec)
			start := time.Now()
			_, err := r.Terminate(t.Context(), grace)
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(start), grace, name)
			res := finish(t, box, r, rec)
			require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, res.Exit, name)
			require.Equal(t, sandbox.StartedYes, res.Started, name)
		}
		// Without grace nobody is asked.
		r, rec := begin(t, box, shell("trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done"))
		awaitOutput(t, rec)
		_, err := r.Terminate(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, "up\n", finish(t, box, r, rec).stdout)
	})
}

func TestTerminateShortens(t *testing.T) {
	box := create(t, provider(t, false))
	r, rec := begin(t, box, shell("trap '' TERM; echo up; while :; do sleep 0.01; done"))
	awaitOutput(t, rec)
	var first sync.WaitGroup
	var firstErr error
	first.Go(func() { _, firstErr = r.Terminate(t.Context(), time.Hour) })
	_, err := r.Terminate(t.Context(), 10*time.Millisecond)
	require.NoError(t, err)
	first.Wait()
	require.NoError(t, firstErr)
	finish(t, box, r, rec)
	// After the end it is the same answer.
	proof, err := r.Terminate(t.Context(), 0)
	require.NoError(t, err)
	require.True(t, proof.Proven)
}

func TestClosedGate(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		rec := newRecorder()
		r, err := box.Prepare(t.Context(), shell("echo ran"), rec)
		require.NoError(t, err)
		_, err = box.Prepare(t.Context(), shell("echo ran"), rec)
		require.Equal(t, sandbox.Busy, sandbox.KindOf(err))
		require.Equal(t, sandbox.Busy, sandbox.KindOf(box.Reset(t.Context())))
		_, err = r.Terminate(t.Context(), time.Hour)
		require.NoError(t, err)
		err = r.Open(t.Context())
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
		res := finish(t, box, r, rec)
		require.Equal(t, sandbox.StartedNo, res.Started)
		require.Nil(t, res.Exit)
		require.Nil(t, res.StartError)
		require.Empty(t, res.stdout)
		last := res.Proof.Evidence[len(res.Proof.Evidence)-1]
		require.Equal(t, sandbox.EvidenceNotStarted, last.Kind)
		requireExit(t, 0, run(t, box, command("/bin/true")))
	})
}

func TestKillEverybody(t *testing.T) {
	p := provider(t, false)
	other := create(t, p)
	bystander, rec := begin(t, other, shell("echo up; read x; echo alive"))
	awaitOutput(t, rec)
	box := create(t, p)
	r := run(t, box, shell("kill -9 -1; kill -9 1; kill -TERM 1; kill -USR1 1; exit 9"))
	requireExit(t, 9, r)
	r = run(t, box, shell("kill -9 0"))
	require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, r.Exit)
	requireExit(t, 0, finish(t, other, bystander, rec))
	require.Contains(t, rec.out(), "alive")
}

func TestForkBombs(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		const limit = 40
		for name, process := range map[string]sandbox.Process{
			"bomb":  command("/usr/bin/perl", "-e", `$|=1; print "up\n"; while (1) { fork // select(undef,undef,undef,0.001) }`),
			"hydra": command("/usr/bin/perl", "-e", `$|=1; for (1..20) { if (!fork) { print "up\n"; while (1) { my $p = fork // next; exit if $p; setpgrp } } } exit 0 if $ARGV[0]; sleep 1000`),
			"hops":  command("/usr/bin/perl", "-e", `$|=1; print "up\n"; while (1) { my $p = fork; exit if $p }`),
		} {
			process.Limits.Pids = limit
			r, rec := begin(t, box, process)
			awaitOutput(t, rec)
			_, err := r.Terminate(t.Context(), 20*time.Millisecond)
			require.NoError(t, err, name)
			res := finish(t, box, r, rec)
			if res.Usage.PidsPeak > 0 {
				require.LessOrEqual(t, res.Usage.PidsPeak, int64(limit), name)
			}
		}
	})
}

// TestPidsLimit counts how many processes a job may have, in two leases at once.
func TestPidsLimit(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		var all sync.WaitGroup
		for range 2 {
			box := create(t, p)
			all.Go(func() {
				process := command("/usr/bin/perl", "-e", `$n = 1; while (defined(my $p = fork)) { if (!$p) { sleep 1000 } $n++ } print "$n $!"`)
				process.Limits.Pids = 20
				require.Equal(t, "20 Resource temporarily unavailable", run(t, box, process).stdout)
			})
		}
		all.Wait()
	})
}

// TestGroupsHaveNoNames: what the groups are called outside says where the worker is
// and what its leases are called.
func TestGroupsHaveNoNames(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r := run(t, box, shell("cat /proc/self/cgroup /proc/1/cgroup"))
		requireExit(t, 0, r)
		require.NotEmpty(t, r.stdout)
		require.NotContains(t, r.stdout, "sallyport")
		require.NotContains(t, r.stdout, box.Handle().Lease)
	})
}

func TestCgroupLimits(t *testing.T) {
	if !hasGroups(t) {
		return
	}
	p := provider(t, true)
	box := create(t, p)
	t.Run("memory", func(t *testing.T) {
		process := command("/usr/bin/perl", "-e", `$x = "x" x 200_000_000; print length $x`)
		process.Limits.MemoryBytes = 32 << 20
		r := run(t, box, process)
		require.Positive(t, r.OOM)
		require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, r.Exit)
		require.Equal(t, sandbox.StartedYes, r.Started)
		require.LessOrEqual(t, r.Usage.MemoryPeakBytes, int64(32<<20))
	})
	t.Run("memory of children", func(t *testing.T) {
		process := command("/usr/bin/perl", "-e", `for (1..20) { if (!fork) { $x = "x" x 8_000_000; sleep 1000 } } wait; sleep 1000`)
		process.Limits.MemoryBytes = 64 << 20
		r, rec := begin(t, box, process)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := r.Wait(ctx); err != nil {
			_, err = r.Terminate(t.Context(), 0)
			require.NoError(t, err)
		}
		require.Positive(t, finish(t, box, r, rec).OOM)
	})
	t.Run("next to no memory", func(t *testing.T) {
		// Less than lease init itself uses, which has to survive all of this.
		for _, limit := range []int64{256 << 10, 1 << 20, 4 << 20} {
			for _, script := range []string{"exec tail /dev/zero", "exec cat /dev/zero >/dev/shm/x", "cat /dev/zero >/workspace/x & tail /dev/zero & wait; exit 9"} {
				process := shell(script)
				process.Limits.MemoryBytes = limit
				r := run(t, create(t, p), process)
				if r.StartError != nil { // not even the program was executed
					require.Equal(t, int(unix.ENOMEM), r.StartError.Errno, "%d %s", limit, script)
					continue
				}
				require.NotNil(t, r.Exit, "%d %s: %+v", limit, script, r.End)
				require.NotEqual(t, &sandbox.Exit{}, r.Exit)
			}
		}
	})
	t.Run("no memory left over", func(t *testing.T) {
		require.Zero(t, run(t, box, command("/bin/true")).OOM)
	})
	t.Run("cpu", func(t *testing.T) {
		process := shell("while :; do :; done & while :; do :; done")
		process.Limits.CPU = 300 * time.Millisecond
		r := run(t, box, process)
		require.True(t, r.CPUExceeded)
		require.GreaterOrEqual(t, r.Usage.CPUUser+r.Usage.CPUSystem, 300*time.Millisecond)
		over := 300 * time.Millisecond
		if emulated(t) {
			over = 2 * time.Second
		}
		require.Less(t, r.Usage.CPUUser+r.Usage.CPUSystem, 300*time.Millisecond+over)
	})
	t.Run("cpu share", func(t *testing.T) {
		process := shell("sleep 1000 & while :; do :; done & while :; do :; done & echo up; wait")
		process.Limits.CPUShare = 50
		start := time.Now() // they burn before anybody hears of it
		r, rec := begin(t, box, process)
		awaitOutput(t, rec)
		require.Eventually(t, func() bool { return victim(t, box) != 0 }, patience, time.Millisecond)
		stat := cpuStat(t, victim(t, box))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		throttled := stat("nr_throttled")
		require.GreaterOrEqual(t, throttled, 0, "the kernel says nothing about the limit")
		_, err = r.Terminate(t.Context(), 0)
		require.NoError(t, err)
		wall := time.Since(start)
		res := finish(t, box, r, rec)
		most := wall / 2
		if throttled > 0 { // an emulated processor that others want, too, is held back late
			most = wall * 3 / 4
		}
		require.Less(t, res.Usage.CPUUser+res.Usage.CPUSystem, most+200*time.Millisecond)
	})
}

// emulated says whether the processor is a program, whose timers are late by tenths of a
// second where others want the real one, too.
func emulated(t *testing.T) bool {
	t.Helper()
	info, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	return strings.Contains(string(info), "QEMU TCG")
}

// cpuStat reads the numbers of cpu.stat of a process's control group, where its CPU share
// is limited.
func cpuStat(t *testing.T, pid int) func(name string) int {
	t.Helper()
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	var files []string
	for line := range strings.Lines(string(groups)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, tree := range append(strings.Split(f[1], ","), f[1]) {
			files = append(files, "/sys/fs/cgroup/"+tree+f[2]+"/cpu.stat")
		}
	}
	return func(name string) int {
		for _, file := range files {
			data, err := os.ReadFile(file)
			if _, after, found := strings.Cut(string(data), name+" "); err == nil && found {
				n, err := strconv.Atoi(strings.Fields(after)[0])
				require.NoError(t, err)
				return n
			}
		}
		return -1
	}
}

func TestFileLimits(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		process := shell("head -c 5000000 /dev/zero > big; stat -c %s big; (head -c 5000000 /dev/zero | cat >> big2) 2>/dev/null; du -sb . | cut -f1")
		process.Limits.DiskBytes = 4 << 20
		r := run(t, box, process)
		lines := strings.Fields(r.stdout)
		require.Len(t, lines, 2)
		require.Equal(t, strconv.Itoa(4<<20), lines[0])
		require.LessOrEqual(t, len(lines[1]), len("4194304"))
		process = command("/usr/bin/perl", "-e", `$i++ while open(my $h, ">", "f$i"); print "$i\n"`)
		process.Limits.Inodes = 100
		r = run(t, box, process)
		require.Equal(t, "100\n", r.stdout)
		process = command("/usr/bin/perl", "-e", `my @f; while (open(my $h, "<", "/dev/null")) { push @f, $h } print scalar(@f) + 3`)
		process.Limits.OpenFiles = 50
		require.Equal(t, "50", run(t, box, process).stdout)
	})
}

// TestFullDisk: what is full says so to the program that writes, which goes on, and is
// empty again for the next job.
func TestFullDisk(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		const size = 8 << 20
		for range 2 {
			for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
				process := in(dir, shell(`head -c 100m /dev/zero >f 2>err; echo rc=$?; stat -c %s f; rm f
					exec 3<>f; rm f; head -c 100m /dev/zero >&3; echo rc=$?; exec 3>&-
					fallocate -l 10G f 2>/dev/null && echo allocated; truncate -s 10G f 2>/dev/null && echo sparse
					echo more >g && cat g`))
				process.Limits.DiskBytes = size
				r := run(t, box, process)
				requireExit(t, 0, r)
				require.Equal(t, fmt.Sprintf("rc=1\n%d\nrc=1\nmore\n", size), r.stdout, "%s: %s", dir, r.stderr)
			}
		}
	})
}

// TestFirstActIsWithinLimits: a program that forks and allocates as its very first act
// finds itself in its group, with its limits.
func TestFirstActIsWithinLimits(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		const limit = 12
		bomb := command("/usr/bin/perl", "-e", `my $n = 1; for (1..500) { my $p = fork // last; if (!$p) { sleep 1000 } $n++ } print $n`)
		bomb.Limits.Pids = limit
		for range 40 {
			require.Equal(t, strconv.Itoa(limit), run(t, box, bomb).stdout)
		}
		if box.Isolation().Level != "namespaces+cgroup" || !p.Capabilities().Enforces.Memory {
			return
		}
		hog := command("/usr/bin/tail", "/dev/zero")
		hog.Limits.MemoryBytes, hog.Limits.Pids = 16<<20, limit
		for range 10 {
			r := run(t, box, hog)
			require.Positive(t, r.OOM)
			require.Less(t, r.Usage.MemoryPeakBytes, int64(32<<20)) // the kernel lends a little to those that it kills
		}
		r, rec := begin(t, box, shell("sleep 1000 & echo up; wait"))
		awaitOutput(t, rec)
		require.Eventually(t, func() bool { return victim(t, box) != 0 }, patience, time.Millisecond)
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", victim(t, box)))
		require.NoError(t, err)
		require.Contains(t, string(groups), box.Handle().Lease+"/job")
		_, err = r.Terminate(t.Context(), 0)
		require.NoError(t, err)
		finish(t, box, r, rec)
	})
}

// TestPreviousJob leaves all sorts of traces and looks for them in the next job.
func TestPreviousJob(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r := run(t, box, shell(`touch /workspace/a /tmp/a /dev/shm/a; ipcmk -M 4096 -Q -S 2 >/dev/null; umask 0
			mkdir /workspace/d; chmod 000 /workspace/d; sleep 1000 & cd /workspace; (while :; do date > /tmp/b; done) & ipcs | grep -c job; exit 0`))
		requireExit(t, 0, r)
		require.Equal(t, "3\n", r.stdout)
		r = run(t, box, shell(`ls -A /workspace /tmp /dev/shm | grep -v :; ipcs | grep -c job; echo /proc/[0-9]*; umask`))
		// Pid 1 is the stub, 2 the shell.
		require.Equal(t, "\n\n0\n/proc/1 /proc/2\n0022\n", r.stdout)
	})
}

func TestNothingIsWritable(t *testing.T) {
	box := create(t, provider(t, false))
	r := run(t, box, shell(`for f in / /usr /etc /dev /proc/sys /proc /bin /var /etc/ssl/certs; do touch $f/x 2>/dev/null && echo $f; done
		echo 1 2>/dev/null > /proc/sys/user/max_user_namespaces && echo sysctl
		for cmd in "unshare -U true" "unshare -r true" "unshare -m true" "mount -t tmpfs x /tmp" "umount /proc/sys" "umount /workspace" "mknod /tmp/n c 1 3" "hostname x" "chroot / true" "nsenter -t 1 -m true"; do $cmd 2>/dev/null && echo "$cmd"; done
		ls /sys /home /root /host /old_root /mnt 2>/dev/null; cat /etc/shadow /proc/kcore /proc/kmsg 2>/dev/null
		cat /proc/net/dev | grep -c :; cat /proc/net/route | wc -l`))
	require.Equal(t, "1\n0\n", r.stdout, r.stderr)
}

func TestLost(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r, rec := begin(t, box, shell("echo up; sleep 1000"))
		awaitOutput(t, rec)
		pid, err := strconv.Atoi(box.Handle().Detail["pid"])
		require.NoError(t, err)
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
		select {
		case <-box.Lost():
		case <-time.After(patience):
			t.Fatal("not lost")
		}
		end, err := r.Wait(t.Context())
		require.NoError(t, err)
		require.Nil(t, end.Exit)
		require.Equal(t, sandbox.StartedYes, end.Started)
		require.True(t, end.Proof.Proven)
		require.Equal(t, "up\n", rec.out())
		require.Equal(t, sandbox.Gone, sandbox.KindOf(box.Reset(t.Context())))
		_, err = box.Prepare(t.Context(), command("true"), newRecorder())
		require.Equal(t, sandbox.Gone, sandbox.KindOf(err))
		requireGone(t, box)
	})
}

func TestLostWhileIdle(t *testing.T) {
	box := create(t, provider(t, false))
	pid, err := strconv.Atoi(box.Handle().Detail["pid"])
	require.NoError(t, err)
	require.NoError(t, unix.Kill(pid, unix.SIGTERM), "a signal to the worker's whole group does nothing")
	requireExit(t, 0, run(t, box, command("/bin/true")))
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	select {
	case <-box.Lost():
	case <-time.After(patience):
		t.Fatal("not lost")
	}
	requireGone(t, box)
}

func TestStubKilled(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r, rec := begin(t, box, shell("echo up; sleep 1000"))
		awaitOutput(t, rec)
		stub := children(t, box.Handle().Detail["pid"])
		require.Len(t, stub, 1)
		require.NoError(t, unix.Kill(stub[0], unix.SIGKILL))
		res := finish(t, box, r, rec)
		require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, res.Exit)
		require.Equal(t, sandbox.StartedYes, res.Started)
	})
}

func children(t testing.TB, pid string) []int {
	t.Helper()
	data, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	require.NoError(t, err)
	var pids []int
	for f := range strings.FieldsSeq(string(data)) {
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		pids = append(pids, n)
	}
	return pids
}

// TestThreadsComeAndGo ends threads of the runtime all the time: no lease may die
// with one.
func TestThreadsComeAndGo(t *testing.T) {
	p := provider(t, false)
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			var one sync.WaitGroup
			one.Go(runtime.LockOSThread) // the thread ends with the goroutine
			one.Wait()
		}
	})
	var all sync.WaitGroup
	errs := make([]error, 30)
	for i := range errs {
		all.Go(func() { errs[i] = sleeper(t.Context(), p) })
	}
	all.Wait()
	close(stop)
	churn.Wait()
	require.NoError(t, errors.Join(errs...))
}

func sleeper(ctx context.Context, p *local.Provider) error {
	box, err := p.Create(ctx, sandbox.Spec{Lease: newLease()})
	if err != nil {
		return err
	}
	r, err := box.Prepare(ctx, shell("sleep 1"), newRecorder())
	if err != nil {
		return err
	}
	if err := r.Open(ctx); err != nil {
		return err
	}
	end, err := r.Wait(ctx)
	if err != nil {
		return err
	}
	if end.Exit == nil || *end.Exit != (sandbox.Exit{}) {
		return fmt.Errorf("end %+v", end)
	}
	return nil
}

// TestUnkillable has a process that the kernel cannot end: frozen by a version 1
// freezer, it is in a sleep that no signal ends, as one that waits for a dead
// network file system is.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	write := freezer(t)
	if write == nil {
		return
	}
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r, rec := begin(t, box, shell("sleep 1000 & echo up; wait"))
		awaitOutput(t, rec)
		require.Eventually(t, func() bool { return victim(t, box) != 0 }, patience, time.Millisecond)
		write("freezer.state", "FROZEN")
		write("cgroup.procs", strconv.Itoa(victim(t, box)))
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		_, err := r.Terminate(ctx, 0)
		require.Equal(t, sandbox.Ambiguous, sandbox.KindOf(err))
		end, err := r.Wait(ctx)
		require.Error(t, err)
		require.False(t, end.Proof.Proven)
		require.Error(t, box.Reset(t.Context()))
		// Nor can the lease be destroyed.
		_, err = box.Destroy(ctx)
		require.Error(t, err)
		write("freezer.state", "THAWED")
		requireGone(t, box)
		end, err = r.Wait(t.Context())
		require.NoError(t, err)
		require.True(t, end.Proof.Proven)
	})
}

// A lease whose job was killed by all the force that there is serves the next one.
func TestLeaseServesAfterTheLastRung(t *testing.T) {
	t.Parallel()
	write := freezer(t)
	if write == nil {
		return
	}
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		r, rec := begin(t, box, shell("sleep 1000 & echo up; wait"))
		awaitOutput(t, rec)
		require.Eventually(t, func() bool { return victim(t, box) != 0 }, patience, time.Millisecond)
		write("freezer.state", "FROZEN")
		write("cgroup.procs", strconv.Itoa(victim(t, box)))
		// Force, 300 ms later the stub, 500 ms later the control group.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Terminate(ctx, 0)
		require.Equal(t, sandbox.Ambiguous, sandbox.KindOf(err))
		write("freezer.state", "THAWED")
		finish(t, box, r, rec)
		for range 2 {
			requireExit(t, 3, run(t, box, shell("true; exit 3")))
		}
	})
}

// freezer makes a control group that stops processes beyond the reach of signals, and
// returns what writes into its files. It is nil where there is none.
func freezer(t *testing.T) func(file, value string) {
	t.Helper()
	const freezer = "/sys/fs/cgroup/freezer"
	group := freezer + "/sallyport-test-" + newLease()[:8]
	if os.Mkdir(group, 0o755) != nil {
		t.Logf("not tested: this host has no %s that we may use", freezer)
		return nil
	}
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.Remove(group) == nil }, patience, 5*time.Millisecond)
	})
	return func(file, value string) {
		require.NoError(t, os.WriteFile(group+"/"+file, []byte(value), 0o644))
	}
}

// victim is the pid of a sleep in the sandbox, or 0.
func victim(t testing.TB, box sandbox.Sandbox) int {
	t.Helper()
	pids := children(t, box.Handle().Detail["pid"])
	for len(pids) > 0 {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pids[0]))
		if err == nil && string(name) == "sleep\n" {
			return pids[0]
		}
		var below []int
		for _, pid := range pids {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				below = append(below, children(t, strconv.Itoa(pid))...)
			}
		}
		pids = below
	}
	return 0
}

func TestFilterIsLoaded(t *testing.T) {
	box := create(t, provider(t, false))
	r := run(t, box, shell(`grep -E '^Seccomp:' /proc/self/status | tr '\t' ' '
		perl -e 'use POSIX; for my $family (1, 2, 10, 16, 17, 38, 40) { print "$family ", socket(my $s, $family, $family == 16 ? 3 : 1, 0) ? 0 : $!+0, "\n" }
		my $pid = fork; if (!$pid) { sleep 100 } print "ptrace ", syscall(101, 16, $pid, 0, 0), " ", $!+0, "\n"; kill 9, $pid'`))
	requireExit(t, 0, r)
	want := "Seccomp: 2\n1 0\n2 0\n10 0\n16 97\n17 97\n38 97\n40 97\n"
	if runtime.GOARCH == "amd64" {
		want += "ptrace -1 1\n"
		require.Equal(t, want, r.stdout)
	}
	require.True(t, strings.HasPrefix(r.stdout, want), r.stdout)
}
