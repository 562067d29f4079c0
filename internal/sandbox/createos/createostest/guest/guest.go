package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"

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
	if err := answer(makeRoot(setup)); err != nil {
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

func obey(order Order, fds []int) error {
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	switch order.Do {
	case OrderStart:
		return startTree(fds)
	case OrderFreeze:
		return signalAll(unix.SIGSTOP)
	case OrderThaw:
		return signalAll(unix.SIGCONT)
	}
	return fmt.Errorf("no order %q", order.Do)
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

// makeRoot mounts what belongs into the root and changes into it.
func makeRoot(s Setup) error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount(s.Root, s.Root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	for _, dir := range s.Binds {
		if err := unix.Mount(dir, s.Root+dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
		if err := unix.MountSetattr(unix.AT_FDCWD, s.Root+dir, unix.AT_RECURSIVE, &readOnly); err != nil {
			return fmt.Errorf("bind %s read-only: %w", dir, err)
		}
	}
	for _, node := range s.Devices {
		if err := unix.Mount(node, s.Root+node, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("device %s: %w", node, err)
		}
	}
	if err := unix.Mount("proc", s.Root+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	if err := unix.Chdir(s.Root); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	return unix.Sethostname([]byte("createos"))
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

func answer(fault error) error {
	var a Answer
	if fault != nil {
		a.Fault = fault.Error()
	}
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return unix.Sendmsg(Socket, data, nil, nil, 0)
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
