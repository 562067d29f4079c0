package leaseinit

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// init takes over a process that was started as lease init. This must happen in
// an init function: main would come after the initialisation of everything that
// the binary has.
func init() {
	if marked() {
		run()
	}
}

// marked says whether this process was started as lease init. Package os, which
// has the arguments, is initialised too late.
func marked() bool {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer closeFD(fd)
	var b [len(Marker) + 1]byte
	n, err := syscall.Read(fd, b[:])
	return err == nil && n == len(b) && string(b[:]) == Marker+"\x00"
}

// lease is lease init's state. It runs on the process's first thread only, to
// which the runtime binds init functions.
type lease struct {
	setup Setup
	// groups are the cgroup files that take a stub in.
	groups []int
	// tree is the detached tree of mounts, where there is one.
	tree int
	// seq is the job whose workspace is mounted; 0 means none.
	seq uint32
	// root is the device of the root, by which a mount point is told.
	root uint64
}

// maxPassed bounds the descriptors of one message: three and a memory file, or the
// control groups of a set-up.
const maxPassed = 16

// What messages are received into and sent from.
var (
	inbox    [MaxInline / 8]uint64
	outbox   Report
	received [maxPassed]int
	control  struct {
		header unix.Cmsghdr
		fds    [maxPassed]int32
	}
)

// run is lease init. It never returns.
func run() {
	l := &lease{}
	quieten()
	// What the worker itself inherited without close-on-exec must not come in. It
	// is not closed here: package inits that ran before this one (nats-server's
	// has a timer) may have made the runtime's poller, and a runtime that finds
	// its poller closed ends the process.
	l.must(StageDescriptors, unix.CloseRange(Socket+1, ^uint(0)>>33, unix.CLOSE_RANGE_CLOEXEC), "")
	unix.CloseOnExec(Socket)
	l.must(StagePrivileges, unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0), "")
	// The worker sends Setup only after it has put this process in its place. If
	// it died before the death signal was set, this receive ends instead.
	msg, fds := receive()
	setup, ok := decodeSetup(msg)
	if !ok {
		l.die(StageProtocol, unix.EBADMSG, "set-up")
	}
	l.setup = setup
	l.takeFiles(fds)
	l.build()
	l.lock()
	send(&Report{Kind: Ready}, -1, "")
	for {
		msg, fds := receive()
		if len(msg) < 4 {
			l.die(StageProtocol, unix.EBADMSG, "message")
		}
		switch *(*uint32)(unsafe.Pointer(&msg[0])) {
		case kindJob:
			l.job(msg, fds)
		case kindJobFile:
			l.jobFile(msg, fds)
		case kindReset:
			l.reset()
		default:
			l.die(StageProtocol, unix.EBADMSG, "message")
		}
	}
}

// quieten makes signals harmless: ignored are those that a service manager or a
// terminal sends to all of a group, default are all others. A thread of the runtime
// may otherwise end the process for them, or the job's process run one of the
// runtime's handlers in memory that it shares.
func quieten() {
	deflt, ignore := [4]uint64{0}, [4]uint64{1}
	for sig := uintptr(1); sig <= 64; sig++ {
		do(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&deflt)), 0, 8)
	}
	for _, sig := range restored {
		do(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&ignore)), 0, 8)
	}
	unix.Umask(0o022)
}

// job runs one job to the end of its stub. msg is the encoded job, in memory that
// stays until then.
func (l *lease) job(msg []byte, fds []int) {
	defer closeAll(fds)
	if len(msg) < headerSize || len(fds) < 3 {
		l.die(StageProtocol, unix.EBADMSG, "job")
	}
	base := uintptr(unsafe.Pointer(&msg[0]))
	h := (*jobHeader)(unsafe.Pointer(&msg[0]))
	if int(h.size) != len(msg) || h.seq == 0 || l.seq != 0 {
		l.die(StageProtocol, unix.EBADMSG, "job")
	}
	seq := h.seq
	theJob.report = Report{Seq: seq}
	if err := l.mountWorkspace(base + uintptr(h.workspace)); err != 0 {
		send(&Report{Kind: Refused, Seq: seq, Stage: StageWorkspace, Errno: int32(err)}, -1, "")
		return
	}
	l.seq = seq
	theJob.passed = [3]uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])}
	l.plan(&theJob, h, base)
	var pidfd int32 = -1
	var all, old uint64 = ^uint64(0), 0
	do(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8)
	pid, e := forkStub(&pidfd)
	do(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8)
	if e != 0 {
		send(&Report{Kind: Refused, Seq: seq, Stage: StageFork, Errno: int32(e)}, -1, "")
		return
	}
	send(&Report{Kind: Forked, Seq: seq}, int(pidfd), "")
	closeAll(fds)
	l.await(seq, int(pid), int(pidfd))
	closeFD(int(pidfd))
}

// jobFile runs a job whose encoded form is in a memory file.
func (l *lease) jobFile(msg []byte, fds []int) {
	if len(msg) != 8 || len(fds) != 4 {
		l.die(StageProtocol, unix.EBADMSG, "job file")
	}
	size := int(*(*uint32)(unsafe.Pointer(&msg[4])))
	b, err := unix.Mmap(fds[3], 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		l.die(StageMap, errno(err), "")
	}
	l.job(b, fds)
	if err := unix.Munmap(b); err != nil {
		l.die(StageMap, errno(err), "")
	}
}

// await waits for the stub's end and reports it. The end of the socket, which is
// the worker's, ends lease init at once.
func (l *lease) await(seq uint32, pid, pidfd int) {
	poll := [2]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: Socket, Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(poll[:], -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			l.die(StageFork, errno(err), "poll")
		}
		if poll[1].Revents != 0 {
			// Nothing is sent during a job, so this can only be the end.
			unix.Exit(0)
		}
		break
	}
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			l.die(StageFork, errno(err), "wait")
		}
	}
	r := theJob.report
	r.Kind, r.Seq, r.StubStatus = Reaped, seq, int32(status)
	send(&r, -1, "")
}

// mountWorkspace mounts a fresh workspace. options is the address of a C string.
func (l *lease) mountWorkspace(options uintptr) syscall.Errno {
	_, _, e := syscall.Syscall6(unix.SYS_MOUNT, text(textTmpfs), text(textWorkspace), text(textTmpfs), mountFlags, options, 0)
	return e
}

// reset takes the last job's workspace away and looks that nothing else is left.
func (l *lease) reset() {
	r := Report{Kind: WasReset, Seq: l.seq}
	if l.seq != 0 {
		if !collectSockets() {
			r.Kind, r.Stage, r.Errno = NotReset, StageSockets, int32(unix.EBUSY)
		}
		if e := unmountWorkspace(); e != 0 {
			r.Kind, r.Stage, r.Errno = NotReset, StageUnmount, int32(e)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat("/workspace", &st); err != nil || st.Dev != l.root {
		r.Kind, r.Stage, r.Errno = NotReset, StageUnmount, int32(unix.EBUSY)
	}
	// Lease init's /proc shows the processes of all namespaces below. Its only
	// children were stubs.
	if entries("/proc") != 1 {
		r.Kind, r.Stage, r.Errno = NotReset, StageProcesses, int32(unix.EBUSY)
	}
	if r.Kind == WasReset {
		l.seq = 0
	}
	send(&r, -1, "")
}

// receive returns the next message and its descriptors. Both are valid until the
// next call. The end of the socket ends the process. Like send, it makes no
// garbage: a lease that is idle should be small, whatever it has done.
func receive() ([]byte, []int) {
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&inbox)), Len: MaxInline}
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: (*byte)(unsafe.Pointer(&control)), Controllen: uint64(unsafe.Sizeof(control))}
	for {
		n, _, e := syscall.Syscall(unix.SYS_RECVMSG, Socket, uintptr(unsafe.Pointer(&msg)), unix.MSG_CMSG_CLOEXEC)
		if e == unix.EINTR {
			continue
		}
		if e != 0 || n == 0 {
			unix.Exit(0)
		}
		if msg.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			unix.Exit(1)
		}
		return unsafe.Slice((*byte)(unsafe.Pointer(&inbox)), MaxInline)[:n], passed(msg.Controllen)
	}
}

// passed reads the descriptors out of size bytes of control.
func passed(size uint64) []int {
	if size < uint64(unix.SizeofCmsghdr) {
		return nil
	}
	if control.header.Level != unix.SOL_SOCKET || control.header.Type != unix.SCM_RIGHTS {
		unix.Exit(1)
	}
	n := (int(control.header.Len) - unix.SizeofCmsghdr) / 4
	for i := range n {
		received[i] = int(control.fds[i])
	}
	return received[:n]
}

// send sends a report, with a descriptor if it is not negative. If the worker is
// gone, there is nobody to live for.
func send(r *Report, fd int, about string) {
	outbox = *r
	iov := [2]unix.Iovec{{Base: (*byte)(unsafe.Pointer(&outbox)), Len: uint64(ReportSize)}}
	msg := unix.Msghdr{Iov: &iov[0], Iovlen: 1}
	if about != "" {
		iov[1] = unix.Iovec{Base: unsafe.StringData(about), Len: uint64(len(about))}
		msg.Iovlen = 2
	}
	if fd >= 0 {
		control.header = unix.Cmsghdr{Len: uint64(unix.CmsgLen(4)), Level: unix.SOL_SOCKET, Type: unix.SCM_RIGHTS}
		control.fds[0] = int32(fd)
		msg.Control, msg.Controllen = (*byte)(unsafe.Pointer(&control)), uint64(unix.CmsgSpace(4))
	}
	for {
		_, _, e := syscall.Syscall(unix.SYS_SENDMSG, Socket, uintptr(unsafe.Pointer(&msg)), unix.MSG_NOSIGNAL)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			unix.Exit(0)
		}
		return
	}
}

func (l *lease) must(stage Stage, err error, about string) {
	if err != nil {
		l.die(stage, errno(err), about)
	}
}

// die reports and ends lease init, and with it all that it has begun.
func (l *lease) die(stage Stage, e syscall.Errno, about string) {
	send(&Report{Kind: Fatal, Stage: stage, Errno: int32(e)}, -1, about)
	unix.Exit(1)
}

func errno(err error) syscall.Errno {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return unix.EINVAL
}

func closeAll(fds []int) {
	for i, fd := range fds {
		if fd >= 0 {
			closeFD(fd)
		}
		fds[i] = -1
	}
}

func closeFD(fd int) { do(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0) }
