package local

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// pipeBytes is what a new pipe takes without a reader (pipe(7)).
	pipeBytes = 64 << 10
	// inputBytes is the size of the pieces in which input is copied.
	inputBytes = 64 << 10
)

// input feeds a run's standard input.
type input struct {
	source io.Reader
	// file is the pipe; nil when there is nothing to copy.
	file *os.File
}

// newInput makes the standard input for source and returns the job's end, too. What
// fits into the pipe is written at once.
func newInput(source io.Reader) (*input, *os.File, error) {
	size := -1
	if s, ok := source.(interface{ Len() int }); ok {
		size = s.Len()
	}
	if source == nil || size == 0 {
		file, err := emptyInput()
		return &input{}, file, err
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make an input pipe: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[0]), "input")
	if size > pipeBytes {
		// Best effort: the more fits, the fewer turns.
		_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, floodPipe) //nolint:errcheck // see above
	}
	ours, err := pollable(fds[1], "input")
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	in := &input{source: source, file: ours}
	if size > 0 && size <= pipeBytes && size <= room(fds[1]) {
		if err := in.copy(); err != nil {
			return nil, nil, errors.Join(err, theirs.Close())
		}
		in.file = nil
	}
	return in, theirs, nil
}

// emptyInput is an input that ends at once. Each run opens its own: flags, owner and
// locks belong to the open file, and would outlive the run in a shared one.
func emptyInput() (*os.File, error) {
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open an empty input: %w", err)
	}
	return os.NewFile(uintptr(fd), "empty input"), nil
}

// room is what the empty pipe fd takes. The kernel makes pipes of a page or two for
// a user who has many (pipe(7), /proc/sys/fs/pipe-user-pages-soft), and as an
// ordinary user the worker shares that number with its jobs.
func room(fd int) int {
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return 0
	}
	return size
}

// pending says whether there is something to copy.
func (in *input) pending() bool { return in.file != nil }

// copy copies the source and closes the pipe. A reader that goes away is no error,
// nor is the end of the run.
func (in *input) copy() error {
	_, err := io.CopyBuffer(onlyWriter{in.file}, onlyReader{in.source}, make([]byte, inputBytes))
	if errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) {
		err = nil
	}
	return errors.Join(err, in.close())
}

// close ends a copy that waits for the job.
func (in *input) close() error {
	if in.file == nil {
		return nil
	}
	err := in.file.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// onlyWriter and onlyReader hide what io.CopyBuffer would use to copy without its
// buffer, in pieces of any size.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)
