package leaseinit

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastCapability bounds the capabilities that are dropped; the kernel refuses
// numbers above its own last one, which is no error.
const lastCapability = 63

// build makes the root and changes into it.
func (l *lease) build() {
	base := l.setup.Base
	l.must(StagePrivate, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), "/")
	l.must(StageRoot, unix.Mount("tmpfs", base, "tmpfs", mountFlags, "size=2m,nr_inodes=1024,mode=755"), base)
	for _, op := range l.setup.View {
		l.apply(op, base+op.Path)
	}
	l.must(StageProc, unix.Mount("proc", base+"/proc", "proc", procFlags, ""), "/proc")
	var st unix.Stat_t
	l.must(StageRoot, unix.Stat(base, &st), base)
	l.root = st.Dev
	ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	l.must(StageRoot, unix.MountSetattr(unix.AT_FDCWD, base, 0, &ro), base)
	l.must(StagePivot, unix.Chdir(base), base)
	l.must(StagePivot, unix.PivotRoot(".", "."), base)
	l.must(StagePivot, unix.Unmount(".", unix.MNT_DETACH), "old root")
	l.must(StagePivot, unix.Chdir("/"), "/")
	l.tryOverlay()
}

func (l *lease) apply(op Op, path string) {
	switch op.Kind {
	case OpDir:
		l.must(StageView, unix.Mkdir(path, 0o755), op.Path)
	case OpDirSticky:
		l.must(StageView, unix.Mkdir(path, 0o755), op.Path)
		l.must(StageView, unix.Chmod(path, 0o1777), op.Path)
	case OpFile:
		l.must(StageView, writeFile(path, op.Arg, unix.O_CREAT|unix.O_EXCL), op.Path)
	case OpCopy:
		l.must(StageView, copyFile(path, op.Arg), op.Path)
	case OpLink:
		l.must(StageView, unix.Symlink(op.Arg, path), op.Path)
	case OpBind:
		l.must(StageView, unix.Mount(op.Arg, path, "", unix.MS_BIND|unix.MS_REC, ""), op.Arg)
		ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		l.must(StageView, unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &ro), op.Arg)
	case OpDevice:
		l.must(StageDevice, writeFile(path, "", unix.O_CREAT|unix.O_EXCL), op.Path)
		l.must(StageDevice, unix.Mount(op.Arg, path, "", unix.MS_BIND, ""), op.Arg)
		// Read-only is the node, with its times, not the device.
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC}
		l.must(StageDevice, unix.MountSetattr(unix.AT_FDCWD, path, 0, &attr), op.Arg)
	case OpTree:
		l.attach(path, op.Arg)
	default:
		l.die(StageProtocol, unix.EBADMSG, op.Path)
	}
}

func writeFile(path, content string, flags int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|flags, 0o644)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if content == "" {
		return nil
	}
	_, err = unix.Write(fd, []byte(content))
	return err
}

// copyFile copies without making garbage.
func copyFile(path, source string) error {
	from, err := unix.Open(source, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(from)
	to, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer closeFD(to)
	for {
		n, err := unix.Read(from, scratch[:])
		if err != nil || n == 0 {
			return err
		}
		if _, err := unix.Write(to, scratch[:n]); err != nil {
			return err
		}
	}
}

// lock gives up what only building needs, for itself and all that it forks.
func (l *lease) lock() {
	l.must(StageUserNamespaces, writeFile("/proc/sys/user/max_user_namespaces", "0", 0), "")
	l.limitWatches()
	l.settle()
	l.must(StageHostname, unix.Sethostname([]byte(l.setup.Hostname)), "")
	// The worker's session keyring stays outside. A kernel without keyrings has
	// none to leave.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if err != nil && err != unix.ENOSYS {
		l.die(StagePrivileges, errno(err), "session keyring")
	}
	for c := uintptr(0); c <= lastCapability; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			l.die(StagePrivileges, errno(err), "bounding set")
		}
	}
	l.must(StagePrivileges, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
	l.must(StagePrivileges, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
	l.keepJobFilter()
	l.filter()
}

// settle replaces what the worker may have been started with and jobs are not to
// inherit.
func (l *lease) settle() {
	// At 1 the kernel neither writes a core dump nor starts a program of the host's that
	// takes one; at 0 it starts it (core(5)). A worker that may have none keeps its 0.
	core := unix.Rlimit{Cur: 1, Max: 1}
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &core, nil); err == unix.EPERM {
		core = unix.Rlimit{}
		l.must(StageRlimit, unix.Prlimit(0, unix.RLIMIT_CORE, &core, nil), "core dumps")
	} else {
		l.must(StageRlimit, err, "core dumps")
	}
	var none, files unix.Rlimit
	l.must(StageRlimit, unix.Prlimit(0, unix.RLIMIT_RTPRIO, &none, nil), "real-time priority")
	l.must(StageRlimit, unix.Prlimit(0, unix.RLIMIT_NICE, &none, nil), "niceness")
	// Lease init sends descriptors, for which its user needs room (unix(7)).
	l.must(StageRlimit, unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &files), "open files")
	files.Cur = files.Max
	l.must(StageRlimit, unix.Prlimit(0, unix.RLIMIT_NOFILE, &files, nil), "open files")
	if _, _, e := syscall.RawSyscall(unix.SYS_PERSONALITY, 0, 0, 0); e != 0 {
		l.die(StagePrivileges, e, "personality")
	}
}

// limitWatches keeps inotify instances and watches for the host and other leases: the
// kernel counts them as those of the worker's user, too, who has 128 instances unless
// told otherwise (inotify(7)).
func (l *lease) limitWatches() {
	for _, limit := range []struct{ file, value string }{
		{"/proc/sys/user/max_inotify_instances", "16"}, {"/proc/sys/user/max_inotify_watches", "8192"},
	} {
		if err := writeFile(limit.file, limit.value, 0); !errors.Is(err, unix.ENOENT) { // a kernel without inotify
			l.must(StageUserNamespaces, err, limit.file)
		}
	}
}

// keepJobFilter puts the filter of jobs where stubs find it.
func (l *lease) keepJobFilter() {
	f := &theJob.filter
	b := unsafe.Slice((*byte)(unsafe.Pointer(&f.instructions)), unsafe.Sizeof(f.instructions))
	if len(l.setup.JobFilter) > len(b) {
		l.die(StageFilter, unix.E2BIG, "filter of jobs")
	}
	copy(b, l.setup.JobFilter)
	f.prog = unix.SockFprog{
		Len: uint16(len(l.setup.JobFilter) / int(unsafe.Sizeof(f.instructions[0]))), Filter: &f.instructions[0],
	}
}

// filter loads the system-call filter for this thread and all that it forks. The
// runtime's other threads fork nothing.
func (l *lease) filter() {
	n := len(l.setup.Filter) / int(unsafe.Sizeof(unix.SockFilter{}))
	if n == 0 {
		return
	}
	filter := make([]unix.SockFilter, n)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&filter[0])), n*int(unsafe.Sizeof(filter[0]))), l.setup.Filter)
	prog := unix.SockFprog{Len: uint16(n), Filter: &filter[0]}
	_, _, e := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		// 524 (ENOTSUPP, of the kernel's own) says that net.core.bpf_jit_limit is
		// used up.
		l.die(StageFilter, e, "")
	}
}
