package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn is the worker's end of the socket to a lease init. Messages keep their
// borders (SOCK_SEQPACKET) and may carry descriptors. Closing it ends calls that
// wait.
type conn struct {
	file *os.File
	raw  syscall.RawConn
}

// socketPair makes a conn and the other end, which is blocking.
func socketPair() (*conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "lease init's socket")
	ours, err := pollable(fds[0], "socket to lease init")
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	raw, err := ours.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	return &conn{file: ours, raw: raw}, theirs, nil
}

// pollable makes a file of fd that waits in the runtime's poller instead of in a
// thread. It takes fd over.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// send sends one message.
func (c *conn) send(msg []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var err error
	waitErr := c.raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), msg, rights, nil, unix.MSG_NOSIGNAL)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	return errors.Join(waitErr, err)
}

// receive waits for one message, and returns its length and the one descriptor
// that it may have, else -1. The other end's end is io.EOF.
func (c *conn) receive(buf []byte) (n, passed int, err error) {
	var oob [64]byte
	var oobn int
	waitErr := c.raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, err = unix.Recvmsg(int(fd), buf, oob[:], unix.MSG_CMSG_CLOEXEC)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if err := errors.Join(waitErr, err); err != nil {
		return 0, -1, err
	}
	if n == 0 {
		return 0, -1, io.EOF
	}
	if oobn == 0 {
		return n, -1, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return 0, -1, errors.Join(errors.New("control message from lease init makes no sense"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, -1, errors.Join(errors.New("descriptors from lease init make no sense"), err)
	}
	return n, fds[0], nil
}

func (c *conn) close() error { return c.file.Close() }
