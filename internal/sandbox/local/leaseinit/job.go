package leaseinit

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	mountFlags = unix.MS_NOSUID | unix.MS_NODEV
	procFlags  = mountFlags | unix.MS_NOEXEC
)

// masked are files of /proc that no job needs, hidden under /dev/null; readonly
// are trees of it that no job may write to. The user namespace already forbids
// all of it: this is the second wall.
var (
	masked   = [...]string{"/proc/kcore\x00", "/proc/keys\x00", "/proc/timer_list\x00", "/proc/sysrq-trigger\x00", "/proc/kmsg\x00"}
	readonly = [...]string{"/proc/sys\x00", "/proc/bus\x00", "/proc/fs\x00", "/proc/irq\x00"}
)

// Texts for system calls.
const (
	textProc     = "/proc\x00"
	textProcFS   = "proc\x00"
	textTmpfs    = "tmpfs\x00"
	textTmp      = "/tmp\x00"
	textShm      = "/dev/shm\x00"
	textNull     = "/dev/null\x00"
	textOOMScore = "/proc/self/oom_score_adj\x00"
	textThousand = "1000"
	textZero     = "0\x00"
	textPressure = "/proc/pressure\x00"
	// textWorkspace is where lease init itself mounts.
	textWorkspace = "/workspace\x00"
)

// Memory that system calls read when a program is played.
var (
	capHeader    = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	noCaps       [2]unix.CapUserData
	emptyMask    uint64
	defaultAct   [4]uint64
	rlimitValues [16][2]uint64
)

// plan writes the stub's and the child's programs for a job whose encoded form
// begins at base, and turns its offsets into pointers.
func (l *lease) plan(j *job, h *jobHeader, base uintptr) {
	at := func(off uint32) uintptr { return base + uintptr(off) }
	for _, table := range []uint32{h.argv, h.env, h.candidates} {
		for p := at(table); ; p += 8 {
			word := (*uint64)(pointer(p))
			if *word == 0 {
				break
			}
			*word += uint64(base)
		}
	}
	j.argv, j.env, j.candidates = at(h.argv), at(h.env), pointer(at(h.candidates))
	l.planStub(&j.stub, at(h.tmp), at(h.shm), at(h.workspace))
	l.planChild(j, h, at)
}

func (l *lease) planStub(p *program, tmp, shm, workspace uintptr) {
	p.clear()
	p.add(StageProc, unix.SYS_MOUNT, text(textProcFS), text(textProc), text(textProcFS), procFlags, 0)
	for i := range masked {
		p.add(StageMask, unix.SYS_MOUNT, text(textNull), text(masked[i]), 0, unix.MS_BIND, 0).tolerate = unix.ENOENT
	}
	for i := range readonly {
		dir := text(readonly[i])
		p.add(StageMask, unix.SYS_MOUNT, dir, dir, 0, unix.MS_BIND|unix.MS_REC, 0).tolerate = unix.ENOENT
		// What is not there is not a mount point either: EINVAL.
		p.add(StageMask, unix.SYS_MOUNT, 0, dir, 0, unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|procFlags, 0).tolerate = unix.ENOENT
	}
	// Writing there has the kernel watch the host for whoever writes (psi.rst). What hides
	// it is empty and read-only: the root's own directory, before it is mounted over.
	p.add(StageMask, unix.SYS_MOUNT, text(textTmp), text(textPressure), 0, unix.MS_BIND, 0).tolerate = unix.ENOENT
	p.add(StageTmp, unix.SYS_MOUNT, text(textTmpfs), text(textTmp), text(textTmpfs), mountFlags, tmp)
	p.add(StageTmp, unix.SYS_MOUNT, text(textTmpfs), text(textShm), text(textTmpfs), mountFlags|unix.MS_NOEXEC, shm)
	l.planOverlay(p, workspace)
}

func (l *lease) planChild(j *job, h *jobHeader, at func(uint32) uintptr) {
	p := &j.child
	p.clear()
	// The stub stays outside: it lives in lease init's memory, and the kernel ends
	// all who share the memory of a process that it kills for want of memory.
	for _, fd := range l.groups {
		p.add(StageCgroup, unix.SYS_WRITE, uintptr(fd), text(textZero), 1)
	}
	p.add(StageSession, unix.SYS_SETSID)
	for i, fd := range j.passed {
		p.add(StageDescriptors, unix.SYS_DUP3, fd, uintptr(i), 0)
	}
	// An undumpable process may not write its own score. Nobody else lives in the
	// pid namespace yet, and the stub is made undumpable again before anybody does.
	p.add(StageOOMScore, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)
	p.add(StageOOMScore, unix.SYS_OPENAT, atCwd, text(textOOMScore), unix.O_WRONLY|unix.O_CLOEXEC, 0).keep = true
	p.add(StageOOMScore, unix.SYS_WRITE, 0, uintptr(unsafe.Pointer(unsafe.StringData(textThousand))), uintptr(len(textThousand))).kept = true
	p.add(StageOOMScore, unix.SYS_CLOSE).kept = true
	l.planRlimits(p, h, at)
	if l.setup.Switch {
		uid := uintptr(l.setup.JobUID)
		p.add(StageUser, unix.SYS_SETGROUPS, 0, 0)
		p.add(StageUser, unix.SYS_SETRESGID, uid, uid, uid)
		p.add(StageUser, unix.SYS_SETRESUID, uid, uid, uid)
	}
	p.add(StagePrivileges, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0)
	p.add(StageCapabilities, unix.SYS_CAPSET, uintptr(unsafe.Pointer(&capHeader)), uintptr(unsafe.Pointer(&noCaps)))
	for _, sig := range restored {
		p.add(StageSignals, unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&defaultAct)), 0, 8)
	}
	p.add(StageCwd, unix.SYS_CHDIR, at(h.cwd))
	p.add(StageDescriptors, unix.SYS_CLOSE_RANGE, 3, uintptr(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC)
	// From here on it may not mount or make namespaces.
	if theJob.filter.prog.Len > 0 {
		p.add(StageFilter, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&theJob.filter.prog)))
	}
	p.add(StageSignals, unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&emptyMask)), 0, 8)
}

func (l *lease) planRlimits(p *program, h *jobHeader, at func(uint32) uintptr) {
	n := 0
	add := func(resource, value uint64) {
		rlimitValues[n] = [2]uint64{value, value}
		p.add(StageRlimit, unix.SYS_PRLIMIT64, 0, uintptr(resource), uintptr(unsafe.Pointer(&rlimitValues[n])), 0)
		n++
	}
	if h.processes > 0 {
		value := h.processes
		if !l.setup.Switch {
			// The one uid is shared with the stub and with lease init's threads.
			value += 1 + uint64(entries("/proc/self/task"))
		}
		add(unix.RLIMIT_NPROC, value)
	}
	for i := uint32(0); i < h.nrlimits; i++ {
		pair := (*[2]uint64)(pointer(at(h.rlimits) + uintptr(i)*16))
		add(pair[0], pair[1])
	}
}

// pointer makes a pointer of an address outside the heap: of theJob's message,
// which lies in a static array or a mapping.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// entries counts the entries of dir whose names are numbers; -1 if it cannot be
// read.
func entries(dir string) int {
	fd, err := syscall.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer closeFD(fd)
	count := 0
	for {
		n, err := syscall.ReadDirent(fd, scratch[:])
		if err != nil {
			return -1
		}
		if n == 0 {
			return count
		}
		for b := scratch[:n]; len(b) > 0; {
			d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
			if c := d.Name[0]; c >= '0' && c <= '9' {
				count++
			}
			b = b[d.Reclen:]
		}
	}
}

// scratch is read into.
var scratch [8192]byte
