package local

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pidfd is a process that cannot be mistaken for another (pidfd_open(2)).
type pidfd struct {
	mu sync.Mutex
	fd int // -1 once closed
}

func newPidfd(fd int) *pidfd { return &pidfd{fd: fd} }

// signal sends sig. A process that has ended takes no more: os.ErrProcessDone.
func (p *pidfd) signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return os.ErrProcessDone
	}
	err := unix.PidfdSendSignal(p.fd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// ended says whether the process has ended, with all its threads. For pid 1 of a
// pid namespace that means that the namespace is empty: the kernel ends everybody
// else first and waits for them (zap_pid_ns_processes).
func (p *pidfd) ended() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return false, os.ErrClosed
	}
	poll := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if err != unix.EINTR {
			return n == 1 && poll[0].Revents&unix.POLLIN != 0, err
		}
	}
}

func (p *pidfd) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd < 0 {
		return nil
	}
	fd := p.fd
	p.fd = -1
	return unix.Close(fd)
}
