package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// FS is the file interface of the kernel's control groups, as far as it is
// needed here. Names are absolute. Errors are those of the system calls: they
// match errors.Is with a syscall.Errno and with the fs.Err… values.
type FS interface {
	ReadFile(name string) ([]byte, error)
	// WriteFile writes value into an existing file with one write(2), which is
	// what makes it one command to the kernel. It never creates a file.
	WriteFile(name, value string) error
	// Mkdir makes one group with mode 0755.
	Mkdir(name string) error
	// Rmdir removes one empty group.
	Rmdir(name string) error
	// Chown gives a group's file to a user.
	Chown(name string, uid int) error
	// Subdirs lists the names of the groups directly below name.
	Subdirs(name string) ([]string, error)
	// Open opens a group's directory, or one of its files for writing, to be
	// handed to another process.
	Open(name string, flag int) (*os.File, error)
	// OpenCounter opens a file that is read again and again. With resettable it
	// is opened for writing too.
	OpenCounter(name string, resettable bool) (Counter, error)
}

// Counter is an open file whose content the kernel makes anew for every read.
// Its methods are safe for concurrent use; after Close they return
// fs.ErrClosed.
type Counter interface {
	// Read reads from the start with one pread(2).
	Read(p []byte) (int, error)
	// Reset writes to the file, which sets a peak back to the present value:
	// memory.peak for this open file alone, memory.max_usage_in_bytes for all.
	Reset() error
	Close() error
}

// OS is the kernel's own FS.
type OS struct{}

// ReadFile implements FS.
func (OS) ReadFile(name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cgroup file: %w", err)
	}
	return data, nil
}

// WriteFile implements FS.
func (OS) WriteFile(name, value string) error {
	fd, err := open(name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = ignoringEINTR(func() (int, error) { return unix.Write(fd, []byte(value)) })
	if err != nil {
		err = &fs.PathError{Op: "write " + value + " to", Path: name, Err: err}
	}
	if closeErr := unix.Close(fd); closeErr != nil {
		err = errors.Join(err, &fs.PathError{Op: "close", Path: name, Err: closeErr})
	}
	return err
}

// Mkdir implements FS.
func (OS) Mkdir(name string) error {
	if err := unix.Mkdir(name, 0o755); err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

// Rmdir implements FS.
func (OS) Rmdir(name string) error {
	if err := unix.Rmdir(name); err != nil {
		return &fs.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

// Chown implements FS.
func (OS) Chown(name string, uid int) error {
	if err := unix.Chown(name, uid, -1); err != nil {
		return &fs.PathError{Op: "chown", Path: name, Err: err}
	}
	return nil
}

// Subdirs implements FS.
func (OS) Subdirs(name string) ([]string, error) {
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Open implements FS.
func (OS) Open(name string, flag int) (*os.File, error) {
	fd, err := open(name, flag)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// OpenCounter implements FS.
func (o OS) OpenCounter(name string, resettable bool) (Counter, error) {
	flag := unix.O_RDONLY
	if resettable {
		flag = unix.O_RDWR
	}
	file, err := o.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &osCounter{file: file}, nil
}

// osCounter reads with one pread: os.File.ReadAt would ask the kernel a second
// time, for the end of the file.
type osCounter struct {
	file *os.File
}

func (c *osCounter) Read(p []byte) (int, error) {
	return c.do("read", func(fd int) (int, error) { return unix.Pread(fd, p, 0) })
}

func (c *osCounter) Reset() error {
	_, err := c.do("reset", func(fd int) (int, error) { return unix.Pwrite(fd, []byte("0"), 0) })
	return err
}

func (c *osCounter) Close() error {
	if err := c.file.Close(); err != nil {
		return fmt.Errorf("counter: %w", err)
	}
	return nil
}

// do runs op while the descriptor is held open, whatever Close does meanwhile.
func (c *osCounter) do(name string, op func(fd int) (int, error)) (int, error) {
	conn, err := c.file.SyscallConn()
	if err != nil {
		return 0, &fs.PathError{Op: name, Path: c.file.Name(), Err: err}
	}
	var n int
	var opErr error
	if err := conn.Control(func(fd uintptr) {
		n, opErr = ignoringEINTR(func() (int, error) { return op(int(fd)) })
	}); err != nil {
		// Control fails for no other reason.
		return 0, &fs.PathError{Op: name, Path: c.file.Name(), Err: fs.ErrClosed}
	}
	if opErr != nil {
		return 0, &fs.PathError{Op: name, Path: c.file.Name(), Err: opErr}
	}
	return n, nil
}

// open opens a group's file in blocking mode: kept out of the runtime's poller,
// which a group's notifications would wake for nothing.
func open(name string, flag int) (int, error) {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(name, flag|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// ignoringEINTR repeats a call that a signal interrupted; the Go runtime sends
// itself signals all the time.
func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
