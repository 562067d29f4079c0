package leaseinit

import (
	"bytes"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// slim marks the memory that neither the stub nor the job's process touches, so
// that forking them does not copy it (madvise(2), MADV_DONTFORK): a runtime
// reserves much more than it uses, and each mapping costs a fork some
// microseconds, twice a job. It only makes forks cheaper, so nothing of it can
// fail.
func slim(keep ...unsafe.Pointer) {
	maps := readAll("/proc/self/maps")
	// In a dynamically linked binary the C library's memory may be in use by the
	// kernel (rseq(2)).
	static := !bytes.Contains(maps, []byte("/ld-"))
	for line := range bytes.Lines(maps) {
		start, end, ok := bounds(line)
		perms, named := line[bytes.IndexByte(line, ' ')+1:], bytes.ContainsAny(line, "/[")
		if !ok || len(perms) < 4 || holds(start, end, keep) {
			continue
		}
		unused := bytes.HasPrefix(perms, []byte("---p"))
		private := bytes.HasPrefix(perms, []byte("rw-p")) && static && !named
		if unused || private {
			do(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTFORK, 0)
		}
	}
}

// bounds reads the addresses at the beginning of a line of proc_pid_maps(5).
func bounds(line []byte) (start, end uintptr, ok bool) {
	from, rest, ok := bytes.Cut(line, []byte("-"))
	to, _, ok2 := bytes.Cut(rest, []byte(" "))
	a, err := strconv.ParseUint(string(from), 16, 64)
	b, err2 := strconv.ParseUint(string(to), 16, 64)
	return uintptr(a), uintptr(b), ok && ok2 && err == nil && err2 == nil
}

func holds(start, end uintptr, keep []unsafe.Pointer) bool {
	for _, p := range keep {
		if a := uintptr(p); a >= start && a < end {
			return true
		}
	}
	return false
}

// readAll reads a file of /proc; what cannot be read is empty.
func readAll(path string) []byte {
	fd, err := syscall.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer closeFD(fd)
	var all []byte
	for {
		var b [4096]byte
		n, err := syscall.Read(fd, b[:])
		if err != nil || n <= 0 {
			return all
		}
		all = append(all, b[:n]...)
	}
}
