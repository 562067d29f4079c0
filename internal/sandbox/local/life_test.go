package local_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

// leftBehind is what a provider could leave in its process and mount namespace.
type leftBehind struct {
	descriptors, mounts int
}

func look(t testing.TB) leftBehind {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return leftBehind{len(fds), mounts(t)}
}

// leaseInits are the pids of living lease inits whose lease begins with prefix.
func leaseInits(t testing.TB, prefix string) []string {
	t.Helper()
	var pids []string
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, line := range lines {
		data, err := os.ReadFile(line)
		if err == nil && strings.HasPrefix(string(data), leaseinit.Marker+"\x00"+prefix) {
			pids = append(pids, strings.Split(line, "/")[2])
		}
	}
	return pids
}

func TestManyLeasesLeaveNothing(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		run(t, create(t, p), command("true")) // whatever is made once is made now
		prefix := newLease()[:12]
		before := look(t)
		const total, atOnce = 200, 8
		errs := make([]error, atOnce)
		var all sync.WaitGroup
		for i := range atOnce {
			all.Go(func() {
				for n := 0; n < total/atOnce && errs[i] == nil; n++ {
					errs[i] = liveAndDie(t.Context(), p, fmt.Sprintf("%s-%d-%d", prefix, i, n), n)
				}
			})
		}
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Empty(t, leaseInits(t, prefix))
		after := look(t)
		require.Equal(t, before.mounts, after.mounts)
		require.LessOrEqual(t, after.descriptors, before.descriptors)
		handles, err := p.Inventory(t.Context())
		require.NoError(t, err)
		require.Len(t, handles, 1)
	})
}

// TestLeaseInitThatSaysNothing: one that does not get ready in time is no sandbox, and is
// ended with proof. It is stopped as soon as its number is noted.
func TestLeaseInitThatSaysNothing(t *testing.T) {
	p := provider(t, false)
	prefix := newLease()[:12]
	silent := 0
	for round := 0; silent == 0; round++ {
		require.Less(t, round, 2000, "none was stopped in time")
		lease := fmt.Sprintf("%s-%d", prefix, round)
		created := make(chan struct{})
		var stopper sync.WaitGroup
		stopper.Go(func() {
			for {
				for _, pid := range leaseInits(t, lease) {
					if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, syscall.SIGSTOP) == nil {
						return
					}
				}
				select {
				case <-created:
					return
				default:
				}
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		box, err := p.Create(ctx, sandbox.Spec{Lease: lease})
		cancel()
		close(created)
		stopper.Wait()
		if err == nil {
			requireGone(t, box)
			continue
		}
		silent++
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err), "%v", err)
		require.Less(t, time.Since(began), patience)
	}
	require.Empty(t, leaseInits(t, prefix))
	handles, err := p.Inventory(t.Context())
	require.NoError(t, err)
	require.Empty(t, handles)
	requireExit(t, 0, run(t, create(t, p), command("/bin/true")))
}

// TestMountsAreTheLeasesOwn: no mount of a lease is copied into another lease's mount
// namespace that is made at the same moment, or back into the host's: so no reset and no
// destruction meets a busy one.
func TestMountsAreTheLeasesOwn(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		const atOnce, jobs = 6, 6
		errs := make([]error, atOnce)
		var all sync.WaitGroup
		for i := range atOnce {
			all.Go(func() { errs[i] = busyMounts(t.Context(), p, jobs) })
		}
		all.Wait()
		require.NoError(t, errors.Join(errs...))
		box := create(t, p)
		table, err := os.ReadFile("/proc/" + box.Handle().Detail["pid"] + "/mountinfo")
		if os.Geteuid() == 0 {
			require.NoError(t, err)
			require.NotContains(t, string(table), "shared:")
			require.NotContains(t, string(table), "master:")
		}
		requireGone(t, box)
	})
}

// busyMounts runs jobs in one lease that leave processes in every mount that they have.
func busyMounts(ctx context.Context, p *local.Provider, jobs int) error {
	box, err := p.Create(ctx, sandbox.Spec{Lease: newLease()})
	if err != nil {
		return err
	}
	for n := range jobs {
		script := "exit 0"
		if n%2 == 0 {
			script = "for d in /workspace /tmp /dev/shm /proc/self; do cd $d; sleep 1000 3<. & done; exit 0"
		}
		r, err := box.Prepare(ctx, shell(script), newRecorder())
		if err != nil {
			return err
		}
		if err := r.Open(ctx); err != nil {
			return err
		}
		end, err := r.Wait(ctx)
		if err != nil || !end.Proof.Proven {
			return fmt.Errorf("end %+v: %w", end, err)
		}
		if err := box.Reset(ctx); err != nil {
			return err
		}
	}
	proof, err := box.Destroy(ctx)
	if err == nil && !proof.Proven {
		err = errors.New("not proven")
	}
	return err
}

// liveAndDie makes a lease, uses it in one of several ways and destroys it.
func liveAndDie(ctx context.Context, p *local.Provider, lease string, n int) error {
	box, err := p.Create(ctx, sandbox.Spec{Lease: lease})
	if err != nil {
		return err
	}
	if n%4 != 0 {
		r, err := box.Prepare(ctx, shell("cd /tmp; sleep 1000"), newRecorder())
		if err != nil {
			return err
		}
		if n%4 == 1 {
			_, err = r.Terminate(ctx, 0)
		} else {
			err = r.Open(ctx)
		}
		if err != nil {
			return err
		}
	}
	proof, err := box.Destroy(ctx)
	if err == nil && !proof.Proven {
		err = errors.New("not proven")
	}
	return err
}

func TestDestroy(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		handle := box.Handle()
		require.Equal(t, local.Name, handle.Provider)
		require.Equal(t, "testhost", handle.Host)
		_, err := p.Create(t.Context(), sandbox.Spec{Lease: handle.Lease})
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
		handles, err := p.Inventory(t.Context())
		require.NoError(t, err)
		require.Equal(t, []sandbox.Handle{handle}, handles)
		r, rec := begin(t, box, shell("echo up; sleep 1000"))
		awaitOutput(t, rec)

		proof, err := p.Destroy(t.Context(), handle)
		require.NoError(t, err)
		require.True(t, proof.Proven)
		require.Equal(t, sandbox.EvidencePidfd, proof.Evidence[0].Kind)
		again, err := box.Destroy(t.Context())
		require.NoError(t, err)
		require.Equal(t, proof, again)
		// The provider has forgotten it, and proves it by looking.
		third, err := p.Destroy(t.Context(), handle)
		require.NoError(t, err)
		require.True(t, third.Proven)
		require.Equal(t, sandbox.EvidenceOwnerDead, third.Evidence[0].Kind)
		handles, err = p.Inventory(t.Context())
		require.NoError(t, err)
		require.Empty(t, handles)
		end, err := r.Wait(t.Context())
		require.NoError(t, err)
		require.True(t, end.Proof.Proven)
		select {
		case <-box.Lost():
			t.Fatal("a sandbox that was destroyed is not lost")
		default:
		}
	})
}

func TestDestroyForeign(t *testing.T) {
	p := provider(t, false)
	box := create(t, p)
	handle := func(change map[string]string) sandbox.Handle {
		h := box.Handle()
		detail := map[string]string{}
		maps.Copy(detail, h.Detail)
		maps.Copy(detail, change)
		h.Lease, h.Detail = newLease(), detail
		return h
	}
	t.Run("another boot", func(t *testing.T) {
		proof, err := p.Destroy(t.Context(), handle(map[string]string{"boot_id": "another"}))
		require.NoError(t, err)
		require.True(t, proof.Proven)
		require.Equal(t, sandbox.EvidenceBoot, proof.Evidence[0].Kind)
	})
	t.Run("another process has the pid", func(t *testing.T) {
		proof, err := p.Destroy(t.Context(), handle(map[string]string{"start": "1"}))
		require.NoError(t, err)
		require.True(t, proof.Proven)
		require.Equal(t, sandbox.EvidenceOwnerDead, proof.Evidence[0].Kind)
		requireExit(t, 0, run(t, box, command("true"))) // it was not harmed
	})
	t.Run("another host", func(t *testing.T) {
		h := handle(nil)
		h.Host = "elsewhere"
		_, err := p.Destroy(t.Context(), h)
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
	})
	t.Run("a wicked name", func(t *testing.T) {
		h := handle(map[string]string{"instance": "../../etc"})
		_, err := p.Destroy(t.Context(), h)
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
	})
}

func TestBadRoot(t *testing.T) {
	p := provider(t, false)
	before := look(t)
	_, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: "/no/such/root"})
	require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	require.ErrorContains(t, err, "/no/such/root")
	closed := openDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(closed, "root", "bin"), 0o755))
	require.NoError(t, os.Chmod(closed, 0o700))
	_, err = p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: filepath.Join(closed, "root")})
	if os.Geteuid() == 0 {
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
		require.ErrorContains(t, err, "chmod o+x")
		require.Equal(t, before, look(t))
	}
	handles, err := p.Inventory(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, len(handles), 1)
}

func TestImageRoot(t *testing.T) {
	root := openDir(t)
	for _, dir := range []string{"etc", "tmp", "dev"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/from-image"), []byte("yes\n"), 0o644))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		busybox = "/bin/true" // it then shows only that what is missing is not found
	}
	program, err := os.ReadFile(busybox)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, "cat"), program, 0o755))
	p := provider(t, false)
	box, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: root})
	require.NoError(t, err)
	r := run(t, box, command("/cat", "/etc/from-image"))
	if strings.HasSuffix(busybox, "busybox") {
		require.Equal(t, "yes\n", r.stdout)
	} else {
		require.Equal(t, sandbox.StartBadInterpreter, r.StartError.Reason)
	}
	require.Equal(t, sandbox.StartNotFound, run(t, box, command("/usr/bin/env")).StartError.Reason)
}

func TestOneInstanceAtATime(t *testing.T) {
	t.Parallel()
	config := local.Config{StateDir: t.TempDir(), Host: "h", Instance: "same", Log: zerolog.Nop()}
	p, err := local.New(config)
	require.NoError(t, err)
	_, err = local.New(config)
	require.ErrorContains(t, err, "another worker")
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Create(t.Context(), sandbox.Spec{Lease: newLease()})
	require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	p, err = local.New(config)
	require.NoError(t, err)
	require.NoError(t, p.Close())
}

func TestCloseEndsEverything(t *testing.T) {
	before := look(t)
	dir := t.TempDir()
	p, err := local.New(local.Config{StateDir: dir, Host: "h", Instance: "i", Log: zerolog.Nop()})
	require.NoError(t, err)
	prefix := newLease()[:12]
	var runs []sandbox.Run
	for i := range 4 {
		box, err := p.Create(t.Context(), sandbox.Spec{Lease: fmt.Sprintf("%s-%d", prefix, i)})
		require.NoError(t, err)
		r, rec := begin(t, box, shell("echo up; sleep 1000"))
		awaitOutput(t, rec)
		runs = append(runs, r)
	}
	require.NoError(t, p.Close())
	for _, r := range runs {
		end, err := r.Wait(t.Context())
		require.NoError(t, err)
		require.True(t, end.Proof.Proven)
	}
	require.Equal(t, before, look(t))
	require.Empty(t, leaseInits(t, prefix))
	left, err := os.ReadDir(filepath.Join(dir, "leases"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// workerEnv makes the test binary a worker that runs jobs until it is killed; its
// value is the state directory.
const workerEnv = "SALLYPORT_TEST_WORKER"

// asWorker is the worker of TestWorkerKilled.
func asWorker(dir string) {
	p, err := local.New(local.Config{StateDir: dir, Host: "testhost", Instance: "dead", Log: zerolog.Nop()})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	ctx := context.Background()
	for i := range 3 {
		box, err := p.Create(ctx, sandbox.Spec{Lease: fmt.Sprintf("%s-%d", filepath.Base(dir), i)})
		if err == nil && i > 0 {
			var r sandbox.Run
			if r, err = box.Prepare(ctx, shell("(setsid sleep 1000 &); sleep 1000"), newRecorder()); err == nil && i > 1 {
				err = r.Open(ctx)
			}
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Println("up")
	select {}
}

func TestWorkerKilled(t *testing.T) {
	for round := range 5 {
		dir := filepath.Join(t.TempDir(), "w"+newLease()[:10])
		require.NoError(t, os.Mkdir(dir, 0o700))
		worker := exec.CommandContext(t.Context(), "/proc/self/exe")
		worker.Env = append(os.Environ(), workerEnv+"="+dir)
		out, err := worker.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, worker.Start())
		var word [3]byte
		_, err = out.Read(word[:])
		require.NoError(t, err)
		require.Equal(t, "up\n", string(word[:]))
		// Three lease inits and two stubs, which look the same; a process that has
		// not executed its program yet does, too.
		require.GreaterOrEqual(t, len(leaseInits(t, filepath.Base(dir))), 5)
		require.NoError(t, worker.Process.Signal(syscall.SIGKILL))
		require.ErrorContains(t, worker.Wait(), "signal: killed")
		if round%2 == 0 {
			require.Eventually(t, func() bool { return len(leaseInits(t, filepath.Base(dir))) == 0 },
				patience, time.Millisecond)
		}
		// The next worker finds the leases in the books and proves them gone.
		p, err := local.New(local.Config{StateDir: dir, Host: "testhost", Instance: "next", Log: zerolog.New(zerolog.NewTestWriter(t))})
		require.NoError(t, err)
		require.Empty(t, leaseInits(t, filepath.Base(dir)))
		handles, err := p.Inventory(t.Context())
		require.NoError(t, err)
		require.Empty(t, handles)
		require.NoError(t, p.Close())
		_, err = os.Stat(filepath.Join(dir, "leases", "dead"))
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}

// notOfUsers are tests that show the same whoever the user is, and take long. The
// suite's part about running and ending programs is none of them.
const notOfUsers = "^TestManyLeasesLeaveNothing$|^TestOneInstanceAtATime$|^TestNumbersThatComeAgain$|^TestPlacedProgramsAreNeverBusy$|" +
	"^TestThreadsComeAndGo$|^TestManyRunsAtOnce$|^TestTimesAreMonotonic$|^TestConformance$/^namespaces$/^(Output|Context|Race)$"

// TestUnprivileged runs this package's tests as an ordinary user, the soak all of
// them. Where the tests are run by one, there is nothing to add.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return
	}
	tmp := openDir(t)
	const nobody = 65534
	require.NoError(t, os.Chown(tmp, nobody, nobody))
	args := []string{"-test.run", "^Test", "-test.v", "-test.shuffle=on"}
	if os.Getenv("SALLYPORT_SOAK") == "" {
		args = append(args, "-test.skip", notOfUsers)
	}
	tests := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	tests.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "HOME=" + tmp}
	tests.Dir = "/"
	tests.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := tests.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, shown := range []string{"TestExitCodesAndSignals/namespaces", "TestConformance/namespaces/Life", "TestConformance/namespaces/End"} {
		require.Contains(t, string(out), "--- PASS: "+shown+" ")
	}
	require.NotContains(t, string(out), "--- SKIP")
}

// TestGroupsThatNoRecordNames: a worker may be killed between making a control group
// and noting it. The next one of the instance must be able to start, and to end.
func TestGroupsThatNoRecordNames(t *testing.T) {
	if !hasGroups(t) {
		return
	}
	instance := newLease()[:16]
	open := func() *cgroup.Group {
		group, report := cgroup.Open(cgroup.Config{Instance: instance})
		require.NotNil(t, group, "%s", report)
		return group
	}
	dead := open()
	_, err := dead.NewLease("left-by-the-dead", cgroup.Limits{})
	require.NoError(t, err)
	group := open()
	p, err := local.New(local.Config{StateDir: t.TempDir(), Host: "h", Instance: instance, Cgroup: group, Log: zerolog.Nop()})
	require.NoError(t, err)
	left, err := group.Leases()
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, p.Close())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, group.Close(ctx))
}
