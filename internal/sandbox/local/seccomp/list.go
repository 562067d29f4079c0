package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// missing are calls that programs try first and do without: to them the kernel
// looks older than it is. The C library starts threads with clone3, whose
// arguments a filter cannot see, and falls back to clone. io_uring does what it is
// told out of a filter's sight. Of the requests that io_setup reserves the host has one
// number for all (/proc/sys/fs/aio-max-nr).
func missing() []string {
	return []string{
		"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "listmount", "statmount", "memfd_secret",
		"listns", "io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents",
	}
}

// allowed are the calls that jobs may make, those of them that a processor has. Not
// among them, and so refused: everything about mounts, namespaces, modules, other
// processes' memory and descriptors, keys, tracing, performance counters, bpf,
// userfaultfd, file handles, quotas, clocks, swap, and the machine as a whole. The
// list is that of moby's default profile for a container without capabilities; a
// test names and explains each difference.
func allowed() []string {
	return []string{
		// Files by descriptor.
		"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2",
		"lseek", "close", "close_range", "dup", "dup3", "flock", "fsync", "fdatasync", "sync_file_range",
		"ftruncate", "fallocate", "fadvise64", "readahead", "copy_file_range", "sendfile",
		"splice", "tee", "vmsplice", "cachestat", "fstat", "fstatfs", "fchmod", "fchown", "fchdir", "getdents64",
		// Files by name.
		"openat", "openat2", "statx", "newfstatat", "statfs", "truncate", "faccessat", "faccessat2", "fchmodat", "fchmodat2",
		"fchownat", "mkdirat", "mknodat", "unlinkat", "renameat", "renameat2", "linkat", "symlinkat", "readlinkat",
		"utimensat", "chdir", "getcwd", "umask", "getxattr", "lgetxattr", "fgetxattr", "setxattr", "lsetxattr",
		"fsetxattr", "listxattr", "llistxattr", "flistxattr", "removexattr", "lremovexattr", "fremovexattr",
		"getxattrat", "setxattrat", "listxattrat", "removexattrat", "inotify_init1", "inotify_add_watch",
		"inotify_rm_watch",
		// Pipes, events, waiting.
		"pipe2", "eventfd2", "signalfd4", "timerfd_create", "timerfd_settime", "timerfd_gettime", "epoll_create1",
		"epoll_ctl", "epoll_pwait", "epoll_pwait2", "ppoll", "pselect6",
		// Memory.
		"brk", "munmap", "mremap", "mprotect", "madvise", "msync", "mincore", "mlock", "mlock2", "munlock",
		"mlockall", "munlockall", "membarrier", "pkey_alloc", "pkey_free", "pkey_mprotect", "mseal",
		"remap_file_pages",
		// Processes and threads. clone is decided by its flags.
		"execve", "execveat", "exit", "exit_group", "wait4", "waitid", "getpid", "getppid", "gettid", "getpgid",
		"setpgid", "getsid", "setsid", "set_tid_address", "set_robust_list", "get_robust_list", "rseq", "futex",
		"futex_waitv", "futex_wait", "futex_wake", "futex_requeue", "prctl", "getrlimit",
		"getrusage", "times", "getpriority", "setpriority", "ioprio_get", "ioprio_set", "sched_yield",
		"sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setparam", "sched_getscheduler",
		"sched_setscheduler", "sched_getattr", "sched_setattr", "sched_get_priority_max", "sched_get_priority_min",
		"sched_rr_get_interval", "getcpu", "restart_syscall", "pidfd_open", "pidfd_send_signal", "seccomp",
		"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
		// Signals.
		"kill", "tkill", "tgkill", "rt_sigaction", "rt_sigprocmask", "rt_sigpending", "rt_sigsuspend",
		"rt_sigtimedwait", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "rt_sigreturn", "sigaltstack",
		// Identity. Without capabilities, nothing can be gained.
		"getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "setuid", "setgid",
		"setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid", "capget", "capset",
		// Time.
		"clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "getitimer", "setitimer",
		"timer_create", "timer_settime", "timer_gettime", "timer_getoverrun", "timer_delete",
		// Sockets. Some of them are decided by their arguments.
		"bind", "listen", "accept", "accept4", "connect", "getsockname", "getpeername", "getsockopt",
		"sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg", "shutdown",
		// System V and POSIX interprocess communication, in a namespace of the job's.
		"shmat", "shmdt", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd",
		"msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
		// The machine, to look at.
		"uname", "sysinfo", "getrandom",
		// The older forms of calls that amd64 has, too.
		"open", "creat", "stat", "lstat", "access", "chmod", "chown", "lchown", "mkdir", "rmdir",
		"mknod", "link", "unlink", "symlink", "readlink", "rename", "utime", "utimes", "futimesat", "getdents",
		"dup2", "pipe", "poll", "select", "epoll_create", "epoll_wait", "eventfd", "signalfd", "inotify_init",
		"fork", "vfork", "getpgrp", "pause", "alarm", "time", "arch_prctl", "map_shadow_stack",
	}
}

// pretended are calls that do nothing and say that they did. All that a job can write
// to is in memory; to write back what the host's other file systems hold would only
// burden the host, and keep the caller, beyond the reach of signals, as long as that
// takes.
func pretended() []string { return []string{"sync", "syncfs"} }

// decided are the calls that depend on an argument.
func decided() []decision {
	return []decision{
		// Huge pages are of a pool that the host has one of, and no limit of memory counts them.
		{"mmap", without(3, unix.MAP_HUGETLB)},
		{"memfd_create", without(1, unix.MFD_HUGETLB)},
		{"shmget", without(2, shmHuge)},
		// Who opens a file that has a lease waits for its holder (fcntl(2)): a job that has the
		// user of the files that it is shown could keep everybody from them.
		{"fcntl", compareArg(1, allow, eperm, unix.F_SETLEASE, setDelegation)},
		// Input that a terminal would take for its user's, and a console's selection.
		{"ioctl", compareArg(1, allow, eperm, unix.TIOCSTI, unix.TIOCLINUX)},
		{"socket", sockets()},
		{"socketpair", only(0, efamily, unix.AF_UNIX)},
		// Filters of sockets are compiled into memory of which the host has one amount for
		// all, the filters of other leases included.
		{"setsockopt", when(1, unix.SOL_SOCKET, compareArg(2, allow, eperm,
			unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF))},
		{"personality", only(0, eperm, personalities()...)},
		{"prlimit64", when(1, unix.RLIMIT_CORE, unlessNull(2))},
		{"setrlimit", compareArg(0, allow, done, unix.RLIMIT_CORE)},
	}
}

const (
	// shmHuge is SHM_HUGETLB (shmget(2)).
	shmHuge = 0o4000
	// setDelegation is F_SETDELEG (linux/fcntl.h), since Linux 6.19.
	setDelegation = 1024 + 16
)

// sockets allows those of ordinary programs, by family, type and protocol: for every
// other the kernel would load the module that has it, whoever asks. AF_NETLINK is not
// among them: what waits in such sockets is memory that no control group counts, some
// 200 KiB for each descriptor. The type SOCK_PACKET would lead to another family.
func sockets() []unix.SockFilter {
	const typeMask = 0xf // SOCK_TYPE_MASK of the kernel; above are SOCK_NONBLOCK and SOCK_CLOEXEC
	body := check(0, efamily, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6)
	kind := check(1, eprotocol, unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET)
	kind = slices.Insert(kind, 1, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: typeMask})
	body = append(body, kind...)
	body = append(body, check(2, eprotocol, 0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6)...)
	return append(body, ret(allow))
}

// personalities are those of ordinary programs (personality(2)): Linux, with the
// address layout not randomised, the uname of 2.6, both, and the question.
func personalities() []uint32 {
	const addrNoRandomize, uname26, question = 0x0040000, 0x0020000, 0xffffffff
	return []uint32{0, addrNoRandomize, uname26, uname26 | addrNoRandomize, question}
}
