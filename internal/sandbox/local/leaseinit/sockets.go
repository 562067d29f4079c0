package leaseinit

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// busyTries and busyPause, in milliseconds, bound the wait for what the kernel frees in
// its own time.
const busyTries, busyPause = 200, 5

// collectSockets sees that no Unix socket of the ended job is left, and says whether
// that is so. A job can leave sockets that are held only by messages in each other's
// queues (unix(7), SCM_RIGHTS), and in them files of its workspace, its output, or
// memory: they outlive every process. The kernel looks for such rings when somebody
// closes a Unix socket, and breaks them a little later.
func collectSockets() bool {
	for range busyTries {
		if left := unixSockets(); left <= 0 {
			return left == 0
		}
		if pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			closeFD(pair[0])
			closeFD(pair[1])
		}
		_, _ = unix.Poll(nil, busyPause) //nolint:errcheck // a pause
	}
	return false
}

// unixSockets counts the Unix sockets of the lease's network namespace as far as they
// fill one read: lease init's own is the worker's, so there are none. -1 if they
// cannot be seen.
func unixSockets() int {
	fd, err := syscall.Open("/proc/net/unix", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		return 0 // a kernel without them
	}
	if err != nil {
		return -1
	}
	defer closeFD(fd)
	n, err := syscall.Read(fd, scratch[:])
	if err != nil {
		return -1
	}
	lines := -1 // the heading
	for _, c := range scratch[:n] {
		if c == '\n' {
			lines++
		}
	}
	return lines
}

// unmountWorkspace waits for the last files of it, which the kernel closes in its own
// time where they were in a socket.
func unmountWorkspace() syscall.Errno {
	for try := 0; ; try++ {
		_, _, e := syscall.Syscall(unix.SYS_UMOUNT2, text(textWorkspace), unix.UMOUNT_NOFOLLOW, 0)
		if e != unix.EBUSY || try == busyTries {
			return e
		}
		_, _ = unix.Poll(nil, busyPause) //nolint:errcheck // a pause
	}
}
