package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

// next makes the provider of a worker that comes after dead ones, and returns what
// the state directory then has beside its own lock.
func next(t *testing.T, config local.Config) []string {
	t.Helper()
	config.Host, config.Log = "testhost", zerolog.New(zerolog.NewTestWriter(t))
	p, err := local.New(config)
	require.NoError(t, err)
	var left []string
	err = filepath.WalkDir(config.StateDir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && path != filepath.Join(config.StateDir, "leases", config.Instance, "lock") {
			left = append(left, path)
		}
		return err
	})
	require.NoError(t, err)
	require.NoError(t, p.Close())
	return left
}

// record is a state file as a worker that was killed may have left it.
func record(t *testing.T, dir, instance, lease string, more map[string]any) string {
	t.Helper()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	require.NoError(t, err)
	r := map[string]any{"lease": lease, "instance": instance, "boot_id": strings.TrimSpace(string(boot)), "worker_pid": 1 << 30, "worker_start": 1}
	maps.Copy(r, more)
	data, err := json.Marshal(r)
	require.NoError(t, err)
	file := filepath.Join(dir, "leases", instance, lease+".json")
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, data, 0o600))
	return file
}

// ticks is when a process started (proc_pid_stat(5), field 22).
func ticks(t *testing.T, pid int) json.Number {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	return json.Number(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[19])
}

// TestUnfinishedRecords: a worker can be killed while it writes.
func TestUnfinishedRecords(t *testing.T) {
	for _, instance := range []string{"next", "other"} {
		dir := t.TempDir()
		file := record(t, dir, instance, newLease(), nil)
		require.NoError(t, os.WriteFile(file+".new", []byte(`{"lea`), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), newLease()+".json"), nil, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), newLease()+".json"), []byte(`{"lease":"another"}`), 0o600))
		require.Empty(t, next(t, local.Config{StateDir: dir, Instance: "next"}))
	}
}

// TestGroupsOfALeaseThatWasNotForked: a worker can be killed between making a
// lease's control groups and its lease init. Another instance finds them.
func TestGroupsOfALeaseThatWasNotForked(t *testing.T) {
	if !hasGroups(t) {
		return
	}
	last := "dead" + newLease()[:8]
	dead, report := cgroup.Open(cgroup.Config{Instance: last})
	lease := newLease()
	groups := dead.LeaseDirs(lease)
	_, err := dead.NewLease(lease, cgroup.Limits{})
	require.NoError(t, err)
	for _, dir := range groups {
		require.DirExists(t, dir)
	}
	dir, instance := t.TempDir(), "next"+newLease()[:8]
	record(t, dir, last, lease, map[string]any{"groups": groups})
	own, _ := cgroup.Open(cgroup.Config{Instance: instance})
	require.Empty(t, next(t, local.Config{StateDir: dir, Instance: instance, Cgroup: own}))
	for _, dir := range append(groups, report.Dirs...) {
		require.NoDirExists(t, dir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, own.Close(ctx))
}

// TestLockOutlivesItsWorker: what a worker was just forking has its lock until it
// executes lease init.
func TestLockOutlivesItsWorker(t *testing.T) {
	dir := t.TempDir()
	file := record(t, dir, "dead", newLease(), nil)
	lock, err := os.Create(filepath.Join(filepath.Dir(file), "lock"))
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	var dying sync.WaitGroup
	dying.Go(func() {
		<-time.After(200 * time.Millisecond)
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	})
	require.Empty(t, next(t, local.Config{StateDir: dir, Instance: "next"}))
	dying.Wait()

	// A worker that lives is let alone, and nobody waits for it.
	file = record(t, dir, "lives", newLease(), map[string]any{"worker_pid": os.Getpid(), "worker_start": ticks(t, os.Getpid())})
	lock, err = os.Create(filepath.Join(filepath.Dir(file), "lock"))
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	began := time.Now()
	require.ElementsMatch(t, []string{file, lock.Name()}, next(t, local.Config{StateDir: dir, Instance: "next"}))
	require.Less(t, time.Since(began), time.Second)
	require.NoError(t, lock.Close())
}

// TestWorkersComeAndGo: instances that share a directory are started and stopped at
// the same time; each cleans up after those that it finds dead, and none ever stands
// in another's way.
func TestWorkersComeAndGo(t *testing.T) {
	dir := t.TempDir()
	var workers sync.WaitGroup
	errs := make([]error, 4)
	for i, instance := range []string{"a", "b", "c", "d"} {
		workers.Go(func() {
			for n := 0; n < 40 && errs[i] == nil; n++ {
				p, err := local.New(local.Config{StateDir: dir, Host: "testhost", Instance: instance, Log: zerolog.Nop()})
				if err != nil {
					errs[i] = err
					return
				}
				errs[i] = p.Close()
			}
		})
	}
	workers.Wait()
	require.NoError(t, errors.Join(errs...))
	left, err := os.ReadDir(filepath.Join(dir, "leases"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestNotedProcessThatIsNotYetDead: the next worker may come before the last one's
// lease init has ended; it kills and waits.
func TestNotedProcessThatIsNotYetDead(t *testing.T) {
	dir := t.TempDir()
	const lease = "1000"
	victim := exec.CommandContext(t.Context(), "sleep", lease)
	victim.Args[0] = leaseinit.Marker
	require.NoError(t, victim.Start())
	require.Eventually(t, func() bool { return len(leaseInits(t, lease)) == 1 }, patience, time.Millisecond)
	record(t, dir, "dead", lease, map[string]any{"pid": victim.Process.Pid, "start": ticks(t, victim.Process.Pid)})
	require.Empty(t, next(t, local.Config{StateDir: dir, Instance: "next"}))
	require.ErrorContains(t, victim.Wait(), "killed")

	// One that only has the pid is nobody's.
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	require.NoError(t, bystander.Start())
	record(t, dir, "dead", newLease(), map[string]any{"pid": bystander.Process.Pid, "start": 1})
	require.Empty(t, next(t, local.Config{StateDir: dir, Instance: "next"}))
	require.NoError(t, bystander.Process.Signal(syscall.Signal(0)))
	require.NoError(t, bystander.Process.Kill())
	require.ErrorContains(t, bystander.Wait(), "killed")
}

// TestRecordsThatNameAnother: nothing that stands in a file or in a handle makes the
// worker signal a process that is no lease init, a group of them, or all there are.
func TestRecordsThatNameAnother(t *testing.T) {
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	require.NoError(t, bystander.Start())
	other := bystander.Process.Pid
	p := provider(t, false)
	for _, pid := range []int{-1, 0, 1, os.Getpid(), other, -other, 1 << 30} {
		start := json.Number("1")
		if pid > 0 && pid < 1<<30 {
			start = ticks(t, pid)
		}
		dir := t.TempDir()
		file := record(t, dir, "dead", newLease(), map[string]any{"pid": pid, "start": start})
		left := next(t, local.Config{StateDir: dir, Instance: "next"})
		if pid == os.Getpid() || pid == other {
			require.Contains(t, left, file, "what names a living process is in doubt")
		} else {
			require.Empty(t, left, "pid %d", pid)
		}
		handle := sandbox.Handle{Provider: local.Name, Host: "testhost", Lease: newLease(), Detail: map[string]string{
			"pid": fmt.Sprint(pid), "start": start.String(), "instance": "dead", "boot_id": "",
		}}
		proof, err := p.Destroy(t.Context(), handle)
		require.Equal(t, pid != os.Getpid() && pid != other, err == nil && proof.Proven, "pid %d: %v", pid, err)
		require.NoError(t, bystander.Process.Signal(syscall.Signal(0)))
	}
	require.NoError(t, bystander.Process.Kill())
	require.ErrorContains(t, bystander.Wait(), "killed")
}
