package local

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// launcher forks all lease inits from one thread. Their death signal is tied to
// the thread that forked them (prctl(2), PR_SET_PDEATHSIG): if it were any of the
// runtime's threads, leases would die when the runtime ends that thread.
type launcher struct {
	requests chan func()
	quit     chan struct{}
	family   family
}

func newLauncher(all *sync.WaitGroup) *launcher {
	l := &launcher{requests: make(chan func()), quit: make(chan struct{}), family: family{pids: map[int]bool{}}}
	all.Go(func() {
		// Never unlocked: the thread ends with the goroutine, and what it forked
		// with it.
		runtime.LockOSThread()
		for {
			select {
			case request := <-l.requests:
				request()
			case <-l.quit:
				return
			}
		}
	})
	return l
}

// close ends the thread. It is called once.
func (l *launcher) close() { close(l.quit) }

// initProcess is a lease init that was forked.
type initProcess struct {
	pid   int
	pidfd int
}

// launch forks a lease init with its end of the socket. null is /dev/null, group a
// control group directory to be born in, or nil.
func (l *launcher) launch(h *host, slot uint32, lease string, socket, null, group *os.File) (initProcess, error) {
	p := initProcess{pidfd: -1}
	attr := &syscall.ProcAttr{
		// The runtime's own settings: little memory; and a processor to spare, or the
		// runtime takes the only one away from a thread that waits, and wakes another.
		Env:   []string{"GOMAXPROCS=2", "GOGC=25", "GOTRACEBACK=none", "GODEBUG=asyncpreemptoff=1"},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), socket.Fd()},
		Sys: &syscall.SysProcAttr{
			Cloneflags: namespaces,
			Pdeathsig:  syscall.SIGKILL,
			Setsid:     true,
			PidFD:      &p.pidfd,
		},
	}
	mapIDs(attr.Sys, h, slot)
	if group != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(group.Fd())
	}
	done := make(chan error)
	fork := func() {
		pid, err := l.family.fork(func() (int, error) {
			return syscall.ForkExec("/proc/self/exe", []string{leaseinit.Marker, lease}, attr)
		})
		p.pid = pid
		done <- err
	}
	select {
	case l.requests <- fork:
	case <-l.quit:
		return initProcess{}, errors.New("start lease init: the provider is closed")
	}
	if err := <-done; err != nil {
		return initProcess{}, fmt.Errorf("start lease init: %w%s", err, launchHint(err))
	}
	if p.pidfd < 0 {
		// It was not waited for, so the pid is still its own.
		l.family.disown(p.pid)
		return initProcess{}, errors.Join(
			errors.New("start lease init: the kernel gave no pidfd (Linux 5.14 or newer is needed)"),
			unix.Kill(p.pid, unix.SIGKILL))
	}
	return p, nil
}

// mapIDs gives lease init its uids. As root it is root of a range of its own. An
// ordinary user may map one uid only: it becomes the jobs' uid inside, and lease
// init keeps what it needs as ambient capabilities over its own namespaces.
func mapIDs(sys *syscall.SysProcAttr, h *host, slot uint32) {
	if h.root {
		first := h.firstUID(slot)
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: rangeSize}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: rangeSize}}
		sys.GidMappingsEnableSetgroups = true
		sys.Credential = &syscall.Credential{}
		return
	}
	sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: jobUID, HostID: h.uid, Size: 1}}
	sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: jobUID, HostID: h.gid, Size: 1}}
	sys.AmbientCaps = []uintptr{
		unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_SETPCAP, unix.CAP_KILL,
		// An overlay does its own work with what its mounter has: its work directory
		// is closed to everybody (overlayfs.rst).
		unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER,
	}
}

// launchHint says what usually stands behind an error of clone(2).
func launchHint(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return " (user.max_user_namespaces, max_pid_namespaces or another of /proc/sys/user is 0 or used up: raise it)"
	case errors.Is(err, unix.EPERM):
		return " (user namespaces are forbidden here: kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns, or a container's seccomp profile that refuses clone(CLONE_NEWUSER); allow them, or run the worker as root on the host)"
	case errors.Is(err, unix.EACCES):
		return " (the uid map was refused, or the worker's binary cannot be executed by everybody: chmod 755; with kernel.apparmor_restrict_unprivileged_userns=1 an AppArmor profile with \"userns,\" is needed)"
	case errors.Is(err, unix.ENOSYS):
		return " (clone3 is refused, as by the seccomp profile of a container: use one that allows it, or run the worker on the host)"
	case errors.Is(err, unix.EINVAL):
		return " (this kernel lacks one of the namespaces, or a wrong map)"
	}
	return ""
}
