package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// freezer is a control group whose processes no signal ends until it is thawed.
type freezer struct {
	t   *testing.T
	dir string
}

// newFreezer makes one out of the version 1 freezer, or of any version 2 tree; nil
// where the host has neither for us.
func newFreezer(t *testing.T) *freezer {
	t.Helper()
	for _, place := range []struct{ root, state string }{
		{"/sys/fs/cgroup/freezer", "freezer.state"}, {"/sys/fs/cgroup/unified", "cgroup.freeze"}, {"/sys/fs/cgroup", "cgroup.freeze"},
	} {
		f := &freezer{t: t, dir: filepath.Join(place.root, fmt.Sprintf("sallyport-test-%d-%d", os.Getpid(), time.Now().UnixNano()))}
		if os.Mkdir(f.dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(f.dir, place.state)); err != nil {
			require.NoError(t, os.Remove(f.dir))
			continue
		}
		t.Cleanup(func() {
			f.thaw()
			require.Eventually(t, func() bool { return os.Remove(f.dir) == nil }, patience, 5*time.Millisecond)
		})
		return f
	}
	return nil
}

func (f *freezer) set(v1, v2 string) {
	f.t.Helper()
	if os.WriteFile(filepath.Join(f.dir, "freezer.state"), []byte(v1), 0o644) != nil {
		require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, "cgroup.freeze"), []byte(v2), 0o644))
	}
}

func (f *freezer) freeze(pid int) {
	f.t.Helper()
	f.set("FROZEN", "1")
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644))
}

func (f *freezer) thaw() { f.set("THAWED", "0") }

// pidOf is the process whose command line is exactly argv.
func pidOf(t *testing.T, argv ...string) int {
	t.Helper()
	want, found := strings.Join(argv, "\x00")+"\x00", 0
	require.Eventually(t, func() bool {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		for _, line := range lines {
			if b, err := os.ReadFile(line); err == nil && string(b) == want {
				found, err = strconv.Atoi(strings.Split(line, "/")[2])
				require.NoError(t, err)
				return true
			}
		}
		return false
	}, patience, 5*time.Millisecond, "no process %v", argv)
	return found
}

// frozenJob runs a job with a descendant that is frozen, and so unkillable, before
// its wall time is over.
func (s *stack) frozenJob(name string, f *freezer) *followed {
	s.t.Helper()
	nap := fmt.Sprintf("1000.%09d", time.Now().UnixNano()%1_000_000_000)
	r := shell("setsid sleep " + nap + " & echo up; exec sleep 2000")
	r.Limits.WallMS, r.Limits.GraceMS = new(int64(1500)), new(int64(100))
	job, _ := s.started(name, r)
	f.freeze(pidOf(s.t, "sleep", nap))
	return job
}

// TestUnkillableProgram has a descendant that the kernel cannot end. The result
// comes in time and says that nothing is proven, the lease goes to quarantine and to
// nobody else, other jobs notice nothing, and the reaper ends it when it can.
func TestUnkillableProgram(t *testing.T) {
	t.Parallel()
	f := newFreezer(t)
	if f == nil {
		t.Log("not tested: this host has no freezer that we may use")
		return
	}
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "3")
	job := s.frozenJob("undead", f)
	var all []*followed
	for i := range 30 {
		all = append(all, s.submit(id("other-%d", i), shell(fmt.Sprintf("sleep 0.1; echo %d", i))))
	}
	began := time.Now()
	job.wait()
	took := time.Since(began)
	r := job.result
	require.Equal(t, wire.Unproven, r.Containment.Verdict, "%s", job.raw)
	require.Equal(t, wire.TimedOut, r.Outcome, "%s", job.raw)
	require.Equal(t, wire.Quarantined, r.Lease.Disposition)
	require.Equal(t, "up\n", string(job.stdout))
	// Wall time, grace, and the bound of the proof.
	require.Less(t, took, 1500*time.Millisecond+100*time.Millisecond+4*time.Second+3*time.Second)
	for i, o := range all {
		o.wait().exited(0)
		require.Equal(t, id("%d\n", i), string(o.stdout))
		require.NotEqual(t, r.Lease.ID, o.result.Lease.ID, "a doubtful lease was used again")
	}
	q := s.quarantine(r.Lease.ID, func(*wire.Quarantine) bool { return true })
	require.Equal(t, []any{wire.InQuarantine, "undead", wire.QuarantineUnproven}, []any{q.State, q.Job, q.Reason})
	s.queueEmpty()

	f.thaw()
	thawed := time.Now()
	q = s.quarantine(r.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	require.NotEmpty(t, q.Evidence)
	t.Logf("result after %s, gone %s after the thaw in %d attempts: %v", took, time.Since(thawed), q.Attempts, q.Evidence)
	w.stop()
	require.Empty(t, s.leftovers(s.instances()))
}

// TestWorkerKilledWithLeaseInQuarantine kills the worker while it has such a lease.
// A worker that dies before its quarantine record is durable leaves a lease that only
// its host knows of: the next worker there puts it into quarantine.
func TestWorkerKilledBeforeItsQuarantineRecord(t *testing.T) {
	t.Parallel()
	f := newFreezer(t)
	if f == nil {
		t.Log("not tested: this host has no freezer that we may use")
		return
	}
	s := newStack(t).apply()
	w := s.crashAt("before-quarantine").worker("w1", "--slots", "2")
	m := s.morgue(filepath.Join(s.dir, "w1"))
	job := s.frozenJob("undead", f)
	s.within(w.done, "the worker does not die where it should")
	left := m.leases()
	left = slices.DeleteFunc(left, func(lease string) bool { return len(m.living([]string{lease})) == 0 })
	require.Len(t, left, 1, "the frozen one alone")
	next := s.worker("w1", "--slots", "2")
	q := s.quarantine(left[0], func(*wire.Quarantine) bool { return true })
	require.Equal(t, []any{wire.InQuarantine, wire.QuarantineOwnerGone}, []any{q.State, q.Reason})
	f.thaw()
	s.quarantine(left[0], func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	require.Empty(t, m.living(left))
	// Its result was in the run record by then, or was not.
	if c := job.wait().result.Containment; c != nil {
		require.Equal(t, wire.Unproven, c.Verdict, "%s", job.raw)
	} else {
		require.Equal(t, wire.Lost, job.result.Outcome, "%s", job.raw)
	}
	next.stop()
	require.Empty(t, s.leftovers(s.instances()))
}

// The next worker starts, works beside what is left, and ends it after the thaw.
func TestWorkerKilledWithLeaseInQuarantine(t *testing.T) {
	t.Parallel()
	f := newFreezer(t)
	if f == nil {
		t.Log("not tested: this host has no freezer that we may use")
		return
	}
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "2")
	job := s.frozenJob("undead", f).wait()
	require.Equal(t, wire.Unproven, job.result.Containment.Verdict, "%s", job.raw)
	lease := job.result.Lease.ID
	m := s.morgue(filepath.Join(s.dir, "w1"))
	w.signal(syscall.SIGKILL)
	s.within(w.done, "the worker does not die")
	require.NotEmpty(t, m.living([]string{lease}), "nothing is left that could be tested")
	// No proof yet: what is left is not forgotten, and in nobody's way.
	next := s.worker("w1", "--slots", "2")
	s.run("bystander", "echo", "ok").exited(0)
	require.NotEmpty(t, m.living([]string{lease}))
	require.Contains(t, m.leases(), lease)

	f.thaw()
	// The dead worker's reaper was at it: its claim has to lapse first.
	require.Eventually(t, func() bool { return len(m.left([]string{lease})) == 0 }, 2*patience, 50*time.Millisecond)
	q := s.quarantine(lease, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	t.Logf("gone in %d attempts: %v", q.Attempts, q.Evidence)
	require.Empty(t, m.living([]string{lease}))
	next.stop()
	require.Empty(t, s.leftovers(s.instances()))
}
