package leaseinit

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// job is one job's state. Lease init fills it before it forks the stub; the stub
// and the job's process work on their copies. There is only one (theJob), outside
// the heap, so that its address is good in all three.
type job struct {
	stub, child program
	// passed are the job's standard descriptors.
	passed [3]uintptr
	// candidates, argv and env are tables of C strings, ended by 0.
	candidates unsafe.Pointer
	argv, env  uintptr
	// shared is a page that the stub and lease init have in common.
	shared *Report

	// From here on it is the stub's and the child's scratch space.
	pipe    [2]int32
	failure failure
	info    [16]uint64
	usage   syscall.Rusage
	status  int32
	now     unix.Timespec
	none    uint64
}

// failure is what the job's process tells the stub when it could not execute the
// program.
type failure struct {
	stage, candidate uint32
	errno            int32
}

var theJob job

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

// forkStub forks the stub in new pid, mount and ipc namespaces and returns its
// pid; *pidfd gets a descriptor for it. All signals must be blocked. The filter
// wants secret.
//
//go:noinline
//go:nosplit
//go:norace
func forkStub(j *job, pidfd *int32, secret uintptr) (uintptr, syscall.Errno) {
	const flags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_PIDFD | uintptr(unix.SIGCHLD)
	pid, _, e := syscall.RawSyscall6(unix.SYS_CLONE, flags, 0, uintptr(unsafe.Pointer(pidfd)), 0, 0, secret)
	if e != 0 || pid != 0 {
		return pid, e
	}
	stub(j)
	return 0, 0
}

// stub is pid 1 of the job's namespaces. It never returns.
//
//go:noinline
//go:nosplit
//go:norace
func stub(j *job) {
	if stage, e := j.stub.play(); e != 0 {
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
			j.shared.Status = j.status
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
	if _, _, e := syscall.RawSyscall(unix.SYS_PIPE2, uintptr(unsafe.Pointer(&j.pipe)), unix.O_CLOEXEC, 0); e != 0 {
		tell(j, Unready, StageFork, e)
		exit(1)
	}
	pid, _, e := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if e != 0 {
		tell(j, Unready, StageFork, e)
		exit(1)
	}
	if pid == 0 {
		child(j)
	}
	do(unix.SYS_CLOSE, uintptr(j.pipe[1]), 0, 0, 0)
	for i := range uintptr(3) {
		fd := *(*uintptr)(unsafe.Add(unsafe.Pointer(&j.passed), i*unsafe.Sizeof(i)))
		do(unix.SYS_CLOSE, fd, 0, 0, 0)
	}
	// The pipe ends with nothing in it when the program is executed, and when the
	// process dies before; then it was a signal that killed it, which is told as
	// such.
	n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(j.pipe[0]), uintptr(unsafe.Pointer(&j.failure)), unsafe.Sizeof(j.failure))
	do(unix.SYS_CLOSE, uintptr(j.pipe[0]), 0, 0, 0)
	if e == 0 && n == 0 {
		j.shared.Started = 1
		return pid
	}
	j.shared.Stage = Stage(j.failure.stage)
	j.shared.Errno = j.failure.errno
	j.shared.Candidate = j.failure.candidate
	return pid
}

// child becomes the program. It never returns.
//
//go:noinline
//go:nosplit
//go:norace
func child(j *job) {
	if stage, e := j.child.play(); e != 0 {
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
	do(unix.SYS_WRITE, uintptr(j.pipe[1]), uintptr(unsafe.Pointer(&j.failure)), unsafe.Sizeof(j.failure), 0)
	exit(127)
}

// await waits for SIGCHLD or a signal from outside. What processes of the job
// send has their pid; what comes from an outer namespace has none.
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
		sender := *(*int32)(unsafe.Add(unsafe.Pointer(&j.info), 16))
		if sig := unix.Signal(r); sig == unix.SIGCHLD || sender == 0 {
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

// drain waits for all children that have ended and says whether one lives.
//
//go:noinline
//go:nosplit
//go:norace
func drain(j *job) bool {
	for {
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
}

// report says how the leader ended.
//
//go:noinline
//go:nosplit
//go:norace
func report(j *job, leftover bool) {
	do(unix.SYS_GETRUSAGE, ^uintptr(0), uintptr(unsafe.Pointer(&j.usage)), 0, 0)
	do(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&j.now)), 0, 0)
	s := j.shared
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
	s := j.shared
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
