package seccomp

import "golang.org/x/sys/unix"

// NativeArch is the processor mode whose calls the filter knows, an AUDIT_ARCH
// constant of the kernel.
const NativeArch uint32 = unix.AUDIT_ARCH_X86_64

// native are the older forms of calls that this processor has, too.
func native() []uint32 {
	return []uint32{
		unix.SYS_OPEN, unix.SYS_CREAT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_ACCESS,
		unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_MKNOD,
		unix.SYS_LINK, unix.SYS_UNLINK, unix.SYS_SYMLINK, unix.SYS_READLINK, unix.SYS_RENAME, unix.SYS_UTIME,
		unix.SYS_UTIMES, unix.SYS_FUTIMESAT, unix.SYS_GETDENTS, unix.SYS_DUP2, unix.SYS_PIPE, unix.SYS_POLL,
		unix.SYS_SELECT, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD, unix.SYS_SIGNALFD,
		unix.SYS_INOTIFY_INIT, unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_GETPGRP, unix.SYS_PAUSE, unix.SYS_ALARM,
		unix.SYS_TIME, unix.SYS_ARCH_PRCTL, unix.SYS_MAP_SHADOW_STACK,
	}
}
