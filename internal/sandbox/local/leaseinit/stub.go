package leaseinit

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// job is one job's state. Lease init fills it before it starts the stub and leaves
// it alone until the stub has ended: the stub and the job's process work on it in
// the same memory. There is only one (theJob), outside the heap.
type job struct {
	stub, child program
	// passed are the job's standard descriptors.
	passed [3]uintptr
	// candidates, argv and env are tables of C strings, ended by 0.
	candidates unsafe.Pointer
	argv, env  uintptr
	// filter is the one that the job's process loads, the same for all jobs of a lease.
	filter struct {
		prog         unix.SockFprog
		instructions [MaxJobFilter]unix.SockFilter
	}
	// into are clone3's arguments for a birth in the job's v2 control group; without
	// flags it is not tried.
	into cloneArgs
	// report is what the stub says, and lease init after it.
	report Report

	// From here on it is the stub's and the child's scratch space.
	failure failure
	first   int // the first step of the child's program
	info    [16]uint64
	usage   syscall.Rusage
	status  int32
	now     unix.Timespec
}

// failure is what the job's process tells the stub when it could not execute the
// program.
type failure struct {
	stage, candidate uint32
	errno            int32
}

var theJob job

// stubStack is what the stub and the job's process run on: the linker checks that
// functions which are not to grow their stack take less than a page.
var stubStack [16 << 10]byte

// stubSignals are the ones that the stub waits for. Its parent namespace sends
// SIGUSR1 to open the gate, SIGTERM to end the job in order, SIGHUP by force.
const stubSignals = 1<<(unix.SIGCHLD-1) | 1<<(unix.SIGUSR1-1) | 1<<(unix.SIGTERM-1) | 1<<(unix.SIGHUP-1)

// stubSet is in memory because the system call wants a pointer.
var stubSet uint64 = stubSignals

// restored are the signals that lease init ignores, so that a service manager that
// signals all of the worker's group does not end it. Jobs get their defaults back.
var restored = [...]unix.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE,
}

// forkStub starts the stub in new pid, mount and ipc namespaces and returns its
// pid; *pidfd gets a descriptor for it. All signals must be blocked. The stub lives
// in lease init's memory (CLONE_VM): copying the page tables of a Go program would
// cost more than all the rest.
func forkStub(pidfd *int32) (uintptr, syscall.Errno) {
	const flags = unix.CLONE_VM | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_PIDFD | uintptr(unix.SIGCHLD)
	top := (uintptr(unsafe.Pointer(&stubStack)) + unsafe.Sizeof(stubStack)) &^ 15
	return result(spawnStub(unix.SYS_CLONE, flags, top, uintptr(unsafe.Pointer(pidfd))))
}

// spawnStub makes the clone(2) or clone3(2) call nr with the arguments a, b and c.
// The new process calls stub on the stack that it was given.
//
//go:noescape
func spawnStub(nr, a, b, c uintptr) (pid uintptr)

// spawnChild makes the clone(2) or clone3(2) call nr with the arguments a and b, to
// start the job's process as vfork(2) does it: it calls child in the stub's memory,
// and the stub goes on when it has executed the program or ended.
//
//go:noescape
func spawnChild(nr, a, b uintptr) (pid uintptr)

// childFlags are the job's process's: a cgroup namespace, whose root is the stub's
// group, hides what the groups are called outside.
const childFlags = unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_NEWCGROUP

// cloneArgs are those of clone3(2), struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// spawn starts the job's process in its v2 control group, or lets it move there: a
// move stops all forks and exits of the host for a moment. Being born there is not
// possible everywhere: a kernel may not know it, a container may forbid clone3, and
// with nsdelegate the group must be seen in the worker's cgroup namespace.
//
//go:noinline
//go:nosplit
//go:norace
func spawn(j *job) (uintptr, syscall.Errno) {
	if j.into.flags != 0 {
		j.first = 1 // the first step is the move
		pid, e := result(spawnChild(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&j.into)), unsafe.Sizeof(j.into)))
		if e == 0 {
			return pid, 0
		}
		j.into.flags = 0
	}
	j.first = 0
	return result(spawnChild(unix.SYS_CLONE, childFlags|uintptr(unix.SIGCHLD), 0))
}

// What assembly calls.
var _ = [...]func(){stub, child}

// result splits what a system call returns.
//
//go:nosplit
//go:norace
func result(r uintptr) (uintptr, syscall.Errno) {
	if r > ^uintptr(4095) {
		return 0, syscall.Errno(-r)
	}
	return r, 0
}

// stub is pid 1 of the job's namespaces. It never returns.
//
//go:noinline
//go:nosplit
//go:norace
func stub() {
	j := &theJob
	if stage, e := j.stub.play(0); e != 0 {
		tell(j, Unready, stage, e)
		exit(1)
	}
	tell(j, Waiting, StageNone, 0)
	for {
		sig := await(j)
		if sig == unix.SIGUSR1 {
			break
		}
		if sig != unix.SIGCHLD {
			exit(0) // ended before the gate was opened
		}
	}
	leader := start(j)
	leftover := false
	for {
		pid := reap(j)
		if pid == leader {
			j.report.Status = j.status
			leftover = drain(j)
			break
		}
		if pid != 0 {
			continue
		}
		switch await(j) {
		case unix.SIGTERM:
			signalAll(unix.SIGTERM)
			signalAll(unix.SIGCONT) // a stopped process sees the request, too
		case unix.SIGHUP:
			signalAll(unix.SIGKILL)
		}
	}
	report(j, leftover)
	exit(0)
}

// start forks the job's process and sees it execute the program, or not.
//
//go:noinline
//go:nosplit
//go:norace
func start(j *job) uintptr {
	j.failure = failure{}
	pid, e := spawn(j)
	if e != 0 {
		tell(j, Unready, StageFork, e)
		exit(1)
	}
	for i := range uintptr(3) {
		fd := *(*uintptr)(unsafe.Add(unsafe.Pointer(&j.passed), i*unsafe.Sizeof(i)))
		do(unix.SYS_CLOSE, fd, 0, 0, 0)
	}
	// Nothing failed when the program is executed, and when the process dies before;
	// then it was a signal that killed it, which is told as such.
	if Stage(j.failure.stage) == StageNone {
		j.report.Started = 1
		return pid
	}
	j.report.Stage = Stage(j.failure.stage)
	j.report.Errno = j.failure.errno
	j.report.Candidate = j.failure.candidate
	return pid
}

// child becomes the program. It never returns.
//
//go:noinline
//go:nosplit
//go:norace
func child() {
	j := &theJob
	if stage, e := j.child.play(j.first); e != 0 {
		fail(j, stage, e, 0)
	}
	// As execvp(3) does it: go on where there is nothing to execute, remember
	// where there is something that may not be.
	var denied, at uintptr
	for i := uintptr(0); ; i++ {
		path := *(*uintptr)(unsafe.Add(j.candidates, i*8))
		if path == 0 {
			break
		}
		_, _, e := syscall.RawSyscall(unix.SYS_EXECVE, path, j.argv, j.env)
		switch e {
		case syscall.ENOENT, syscall.ENOTDIR:
			_, _, missing := syscall.RawSyscall6(unix.SYS_FACCESSAT, atCwd, path, 0, 0, 0, 0)
			if missing == 0 {
				fail(j, StageInterpreter, e, i)
			}
		case syscall.EACCES:
			if denied == 0 {
				denied, at = 1, i
			}
		default:
			fail(j, StageExec, e, i)
		}
	}
	if denied != 0 {
		fail(j, StageExec, syscall.EACCES, at)
	}
	fail(j, StageExec, syscall.ENOENT, 0)
}

// atCwd is AT_FDCWD as an argument.
const atCwd = ^uintptr(99)

//go:noinline
//go:nosplit
//go:norace
func fail(j *job, stage Stage, e syscall.Errno, candidate uintptr) {
	j.failure = failure{uint32(stage), uint32(candidate), int32(e)}
	exit(127)
}

// await waits for SIGCHLD or a signal from outside. What processes of the job
// send has their pid, or, where they made the sender up, another code than kill's
// (rt_sigqueueinfo(2)); what comes from an outer namespace has no pid.
//
//go:noinline
//go:nosplit
//go:norace
func await(j *job) unix.Signal {
	for {
		r, _, e := syscall.RawSyscall6(unix.SYS_RT_SIGTIMEDWAIT, uintptr(unsafe.Pointer(&stubSet)), uintptr(unsafe.Pointer(&j.info)), 0, 8, 0, 0)
		if e != 0 {
			continue
		}
		code := *(*int32)(unsafe.Add(unsafe.Pointer(&j.info), 8))
		sender := *(*int32)(unsafe.Add(unsafe.Pointer(&j.info), 16))
		if sig := unix.Signal(r); sig == unix.SIGCHLD || code == 0 && sender == 0 {
			return sig
		}
	}
}

// reap returns the pid of an ended child that it waited for, or 0.
//
//go:noinline
//go:nosplit
//go:norace
func reap(j *job) uintptr {
	pid, _, e := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&j.status)), unix.WNOHANG, 0, 0, 0)
	if e != 0 {
		return 0
	}
	return pid
}

// mostZombies bounds what drain waits for. It is more than the pid namespace of a job
// holds at once.
const mostZombies = 1 << 16

// drain waits for all children that have ended and says whether one lives. Those
// that go on making orphans could keep it busy for ever: then one lives.
//
//go:noinline
//go:nosplit
//go:norace
func drain(j *job) bool {
	for range mostZombies {
		pid, _, e := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&j.status)), unix.WNOHANG, 0, 0, 0)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			return false
		}
		if pid == 0 {
			return true
		}
	}
	return true
}

// report says how the leader ended.
//
//go:noinline
//go:nosplit
//go:norace
func report(j *job, leftover bool) {
	do(unix.SYS_GETRUSAGE, ^uintptr(0), uintptr(unsafe.Pointer(&j.usage)), 0, 0)
	do(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&j.now)), 0, 0)
	s := &j.report
	s.UserMicros = j.usage.Utime.Sec*1e6 + j.usage.Utime.Usec
	s.SystemMicros = j.usage.Stime.Sec*1e6 + j.usage.Stime.Usec
	s.MaxRSSKiB = j.usage.Maxrss
	s.EndedAt = j.now.Sec*1e9 + j.now.Nsec
	s.Ended = 1
	if leftover {
		s.HasLeftover = 1
		tell(j, Leftover, StageNone, 0)
	}
}

// tell sends what is known to the worker. If it cannot be sent, the worker is
// gone.
//
//go:noinline
//go:nosplit
//go:norace
func tell(j *job, kind ReportKind, stage Stage, e syscall.Errno) {
	s := &j.report
	s.Kind = kind
	if e != 0 {
		s.Stage, s.Errno = stage, int32(e)
	}
	do(unix.SYS_SENDTO, Socket, uintptr(unsafe.Pointer(s)), unsafe.Sizeof(*s), unix.MSG_NOSIGNAL)
}

//go:noinline
//go:nosplit
//go:norace
func signalAll(sig unix.Signal) {
	do(unix.SYS_KILL, ^uintptr(0), uintptr(sig), 0, 0)
}

//go:noinline
//go:nosplit
//go:norace
func exit(code uintptr) {
	for {
		do(unix.SYS_EXIT_GROUP, code, 0, 0, 0)
	}
}

// do makes a system call whose failure could not be helped, and changes nothing
// that is said or proven.
//
//go:noinline
//go:nosplit
//go:norace
func do(nr, a, b, c, d uintptr) {
	_, _, _ = syscall.RawSyscall6(nr, a, b, c, d, 0, 0) //nolint:errcheck // that is its purpose
}
