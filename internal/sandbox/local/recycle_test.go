package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
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
)

// recycleEnv makes the test binary a worker in a pid namespace in which numbers soon
// come again; its value is the state directory.
const recycleEnv = "SALLYPORT_TEST_RECYCLE"

// fewPids is near the least that the kernel takes (kernel/pid.c, RESERVED_PIDS).
const fewPids = 400

// asRecycler runs short jobs, each of which is ended just when it ends by itself, beside
// processes that come and go all the time and count the unnatural deaths among them. It
// never returns.
func asRecycler(dir string) {
	err := recycle(dir)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func recycle(dir string) error {
	err := errors.Join(
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(fewPids)), 0o600))
	if err != nil {
		return err
	}
	p, err := local.New(local.Config{StateDir: dir, Host: "testhost", Instance: "recycle", Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	var bystanders, lanes sync.WaitGroup
	stop := make(chan struct{})
	errs := make([]error, 8)
	for i := range 4 {
		bystanders.Go(func() { errs[i] = stand(stop) })
	}
	for i := range 4 {
		lanes.Go(func() { errs[4+i] = endings(p, i) })
	}
	lanes.Wait()
	close(stop)
	bystanders.Wait()
	return errors.Join(append(errs, p.Close())...)
}

// stand has processes that live for a moment, one after another; none may be killed.
func stand(stop <-chan struct{}) error {
	for n := 0; ; n++ {
		select {
		case <-stop:
			fmt.Println("bystanders", n)
			return nil
		default:
		}
		if out, err := exec.Command("/bin/sleep", "0.003").CombinedOutput(); err != nil {
			return fmt.Errorf("a bystander: %w %s", err, out)
		}
	}
}

// endings runs jobs in one lease after another.
func endings(p *local.Provider, lane int) error {
	const leases, jobs = 3, 25
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	for lease := range leases {
		box, err := p.Create(ctx, sandbox.Spec{Lease: fmt.Sprintf("recycle-%d-%d", lane, lease)})
		if err != nil {
			return err
		}
		for n := range jobs {
			r, err := box.Prepare(ctx, shell("sleep 0.004 & exec sleep 0.004"), newRecorder())
			if err != nil {
				return err
			}
			if err := r.Open(ctx); err != nil {
				return err
			}
			<-time.After(time.Duration(3+n%5) * time.Millisecond)
			if _, err := r.Terminate(ctx, time.Duration(n%3)*time.Millisecond); err != nil {
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
		if proof, err := box.Destroy(ctx); err != nil || !proof.Proven {
			return fmt.Errorf("destroy: %+v %w", proof, err)
		}
	}
	return nil
}

// TestNumbersThatComeAgain: a number of a process that has ended is soon another's. Who
// ends jobs and leases by number would hit strangers.
func TestNumbersThatComeAgain(t *testing.T) {
	if os.Geteuid() != 0 || !ownPidMax(t) {
		t.Log("not tested: this takes root, and a kernel whose pid namespaces have a pid_max each (Linux 6.14)")
		return
	}
	worker := exec.CommandContext(t.Context(), "/proc/self/exe")
	worker.Env = append(os.Environ(), recycleEnv+"="+t.TempDir())
	worker.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	out, err := worker.CombinedOutput()
	require.NoError(t, err, "%s", out)
	sum := 0
	for line := range strings.Lines(string(out)) {
		n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "bystanders ")))
		require.NoError(t, err, "%s", out)
		sum += n
	}
	t.Logf("%d bystanders among %d numbers", sum, fewPids)
	require.Positive(t, sum)
}

// ownPidMax says whether writing pid_max in a pid namespace leaves the host's alone.
func ownPidMax(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	require.NoError(t, unix.Uname(&name))
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	require.NoError(t, err)
	return major > 6 || major == 6 && minor >= 14
}
