package seccomp_test

import (
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local/seccomp"
)

// loaded loads the filters into a thread of its own, which ends, and returns how
// long each took and what then answered the look-up of a key, which is refused, and
// a plain unmount.
func loaded(filters ...seccomp.Filter) (took []time.Duration, errs []error) {
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		errs = append(errs, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		for _, f := range filters {
			prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
			began := time.Now()
			_, _, e := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
			took = append(took, time.Since(began))
			if e != 0 {
				errs = append(errs, e)
			}
		}
		if errs[0] == nil {
			_, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, unix.KEY_SPEC_SESSION_KEYRING, 0, 0, 0)
			errs = append(errs[1:], err, unix.Unmount("/no/such/place", 0))
		}
	})
	thread.Wait()
	return took, errs
}

// TestKernelTakesThem loads both filters as a lease and its job do.
func TestKernelTakesThem(t *testing.T) {
	p := seccomp.New(seccomp.Native())
	_, errs := loaded(p.Lease)
	require.Equal(t, []error{unix.EPERM, unix.ENOENT}, errs, "lease init may unmount")
	_, errs = loaded(p.Lease, p.Job)
	require.Equal(t, []error{unix.EPERM, unix.EPERM}, errs, "jobs may not")
}

// BenchmarkLoad is what the filters cost to load: the first once a lease, the
// second once a job.
func BenchmarkLoad(b *testing.B) {
	p := seccomp.New(seccomp.Native())
	var lease, job []time.Duration
	for b.Loop() {
		took, _ := loaded(p.Lease, p.Job)
		lease, job = append(lease, took[0]), append(job, took[1])
	}
	for unit, all := range map[string][]time.Duration{"ns/lease": lease, "ns/job": job} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2]), unit)
	}
	b.ReportMetric(float64(len(p.Lease)), "instructions/lease")
	b.ReportMetric(float64(len(p.Job)), "instructions/job")
}
