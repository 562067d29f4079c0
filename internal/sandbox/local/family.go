package local

import (
	"sync"

	"golang.org/x/sys/unix"
)

// family are the children that a provider has made and not yet waited for. Whoever
// waits for any child of this process, as pid 1 of a container must, has to know
// them: their exit status belongs to the provider.
type family struct {
	mu   sync.Mutex
	pids map[int]bool
}

// fork makes a child. Nobody sees it before it is known.
func (f *family) fork(fork func() (int, error)) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pid, err := fork()
	if err == nil {
		f.pids[pid] = true
	}
	return pid, err
}

// disown leaves a child to whoever waits for all.
func (f *family) disown(pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pids, pid)
}

// wait takes the exit status of the child pid, of which pidfd is a descriptor, and
// says whether it has ended.
func (f *family) wait(pid, pidfd int) (ended bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var info unix.Siginfo
	for {
		err = unix.Waitid(unix.P_PIDFD, pidfd, &info, unix.WEXITED|unix.WNOHANG, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EAGAIN {
		return false, nil
	}
	// With WNOHANG, a process that lives leaves the structure as it was.
	if err == nil && info.Signo == 0 {
		return false, nil
	}
	delete(f.pids, pid)
	return true, err
}

// Children calls do while no child of this provider is made or waited for. owns
// says whether a pid is one of them; do must not wait for it.
func (p *Provider) Children(do func(owns func(pid int) bool)) {
	f := &p.launcher.family
	f.mu.Lock()
	defer f.mu.Unlock()
	do(func(pid int) bool { return f.pids[pid] })
}
