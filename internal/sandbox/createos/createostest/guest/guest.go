package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// init takes over a process that was started as a guest: whatever the binary's main
// would do, a test's or the worker's, must not happen in it.
//
//nolint:gochecknoinits // see above
func init() {
	if len(os.Args) != 2 || os.Args[0] != Marker {
		return
	}
	var err error
	switch os.Args[1] {
	case RoleBox:
		err = runBox()
	case RoleTree:
		err = runTree()
	default:
		err = fmt.Errorf("no role %q", os.Args[1])
	}
	if err != nil {
		os.Exit(1) //nolint:forbidigo // this process is the guest's own
	}
	os.Exit(0) //nolint:forbidigo // this process is the guest's own
}

// runBox is pid 1. It returns when the server has gone.
func runBox() error {
	unix.CloseOnExec(Socket)
	catchSignals()
	var setup Setup
	if _, err := receive(&setup); err != nil {
		return err
	}
	unix.Umask(0o022)
	if err := answer(-1, makeRoot(setup)); err != nil {
		return err
	}
	// What orphans its subreaper is reaped here. The kernel ends the goroutine with
	// the process.
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	var reaping sync.WaitGroup
	reaping.Go(func() {
		for range children {
			reap()
		}
	})
	for {
		var order Order
		fds, err := receive(&order)
		if err != nil {
			return err
		}
		if err := answer(obey(order, fds)); err != nil {
			return err
		}
	}
}

// catchSignals keeps signals from inside from ending a guest. They are caught, not
// ignored: a program would inherit that.
func catchSignals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPIPE)
}

func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR || pid == 0 {
			return
		}
	}
}

// obey does what an order says. It returns a descriptor to pass on, or -1.
func obey(order Order, fds []int) (int, error) {
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	switch order.Do {
	case OrderStart:
		return -1, startTree(fds)
	case OrderFreeze:
		return -1, signalAll(unix.SIGSTOP)
	case OrderThaw:
		return -1, signalAll(unix.SIGCONT)
	case OrderOpen:
		return open(order)
	}
	return -1, fmt.Errorf("no order %q", order.Do)
}

// signalAll reaches all but pid 1 (kill(2)).
func signalAll(s unix.Signal) error {
	if err := unix.Kill(-1, s); err != nil && err != unix.ESRCH {
		return fmt.Errorf("signal to all: %w", err)
	}
	return nil
}

func startTree(fds []int) error {
	if len(fds) != 4 {
		return fmt.Errorf("%d descriptors instead of 4", len(fds))
	}
	_, err := forkExec("/proc/self/exe", []string{Marker, RoleTree}, nil, "/", fds, nil)
	return err
}

// receive takes one message and its descriptors.
func receive(message any) ([]int, error) {
	data, control := make([]byte, MaxMessage), make([]byte, unix.CmsgSpace(4*4))
	n, cn, _, _, err := unix.Recvmsg(Socket, data, control, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, cn, _, _, err = unix.Recvmsg(Socket, data, control, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, fmt.Errorf("the server has gone")
	}
	if err := json.Unmarshal(data[:n], message); err != nil {
		return nil, err
	}
	if cn == 0 {
		return nil, nil
	}
	parts, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil || len(parts) != 1 {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	return unix.ParseUnixRights(&parts[0])
}

// answer says what became of a message, and passes a descriptor on if it is one.
func answer(fd int, fault error) error {
	var a Answer
	if fault != nil {
		a.Fault = fault.Error()
		if errno, ok := errors.AsType[syscall.Errno](fault); ok {
			a.Errno = int(errno)
		}
	}
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
		defer unix.Close(fd)
	}
	return unix.Sendmsg(Socket, data, rights, nil, 0)
}

// lookup finds a program in the PATH of env.
func lookup(name string, env []string) (string, error) {
	if name == "" {
		return "", unix.ENOENT
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			path = value
		}
	}
	for dir := range strings.SplitSeq(path, ":") {
		candidate := dir + "/" + name
		if unix.Access(candidate, unix.X_OK) == nil {
			return candidate, nil
		}
	}
	return "", unix.ENOENT
}
