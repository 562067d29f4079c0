package local

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The way to a name in the workspace: below it, over no link, into no other file
// system (openat2(2)). What a job may have made there is never trusted.
const resolveInside = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openTries bounds the repetitions of an openat2 that the kernel asks for (EAGAIN)
// because something on the host was renamed meanwhile.
const openTries = 64

// workspaceDir is the root of the workspace, seen from the worker.
type workspaceDir struct {
	fd       int
	dev      uint64
	uid, gid int
}

// inWorkspace runs f with the workspace, as the job's user. Nothing in the
// workspace is open after it, nor whenever this process forks: what a fork has
// until it executes its program would keep lease init from unmounting the
// workspace, and a program that somebody has open for writing cannot be executed
// (execve(2), ETXTBSY). So nobody forks meanwhile, and f must be short.
func (b *box) inWorkspace(f func(w *workspaceDir) error) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	w, err := b.openWorkspace()
	if err != nil {
		return err
	}
	defer unix.Close(w.fd)
	return w.asJob(func() error { return f(w) })
}

// openWorkspace reaches into lease init's mount namespace. Its pid is not anybody
// else's as long as it was not waited for, which the signal 0 proves afterwards.
func (b *box) openWorkspace() (*workspaceDir, error) {
	root := "/proc/" + strconv.Itoa(b.record.Pid) + "/root"
	fd, err := unix.Open(root+workspace, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	w := &workspaceDir{fd: fd, uid: b.provider.host.uid, gid: b.provider.host.gid}
	if b.provider.host.root {
		w.uid = int(b.provider.host.rangeBase+b.slot*rangeSize) + jobUID
		w.gid = w.uid
	}
	err = w.check(root)
	if err == nil {
		err = b.initFD.signal(0)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	return w, nil
}

// check makes sure that it is the mounted workspace, and not the directory below.
func (w *workspaceDir) check(root string) error {
	var own, base unix.Stat_t
	if err := errors.Join(unix.Fstat(w.fd, &own), unix.Stat(root, &base)); err != nil {
		return err
	}
	if own.Dev == base.Dev {
		return errors.New("no workspace is mounted")
	}
	w.dev = own.Dev
	return nil
}

// open opens a name below dir. It waits for nobody and takes no terminal, whatever
// stands there.
func open(dir int, name string, flags uint64, mode uint64) (int, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NOCTTY | unix.O_NONBLOCK
	}
	how := unix.OpenHow{Flags: flags, Mode: mode, Resolve: resolveInside}
	for try := 1; ; try++ {
		fd, err := unix.Openat2(dir, name, &how)
		if err != unix.EAGAIN && err != unix.EINTR || try == openTries {
			return fd, err
		}
	}
}

// asJob runs f with the job's user for everything that has to do with files: what
// f makes is the job's own, and f reaches nothing that the job could not. An
// ordinary user's jobs are its own already.
func (w *workspaceDir) asJob(f func() error) error {
	if w.uid == os.Geteuid() {
		return f()
	}
	// A thread that could not be given its own user back is not given back either:
	// it ends with its goroutine.
	runtime.LockOSThread()
	errs := []error{switchFS(w.uid, w.gid)}
	if errs[0] == nil {
		errs = append(errs, f())
	}
	if err := switchFS(os.Geteuid(), os.Getegid()); err != nil {
		return errors.Join(append(errs, err)...)
	}
	runtime.UnlockOSThread()
	return errors.Join(errs...)
}

// switchFS sets this thread's user and group for file systems (setfsuid(2)), which
// reports no error: asking for an id that does not exist tells the present one.
func switchFS(uid, gid int) error {
	const ask = -1
	for _, id := range []struct {
		set  func(int) (int, error)
		to   int
		what string
	}{{unix.SetfsgidRetGid, gid, "group"}, {unix.SetfsuidRetUid, uid, "user"}} {
		if _, err := id.set(id.to); err != nil {
			return fmt.Errorf("change the %s for files: %w", id.what, err)
		}
		if now, err := id.set(ask); err != nil || now != id.to {
			return fmt.Errorf("change the %s for files to %d: it is %d: %w", id.what, id.to, now, errors.Join(err, unix.EPERM))
		}
	}
	return nil
}

// inDir calls f with the directory that name is in.
func (w *workspaceDir) inDir(name string, f func(dir int, base string) error) error {
	parent, base := path.Split(name)
	if parent == "" {
		return f(w.fd, base)
	}
	dir, err := open(w.fd, path.Clean(parent), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return f(dir, base)
}
