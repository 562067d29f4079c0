package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// orphanInterval is how often pid 1 looks for orphans that have ended.
const orphanInterval = 250 * time.Millisecond

// mostOrphans bounds one look; what is left waits for the next.
const mostOrphans = 4096

// orphans is the part that pid 1 of a container needs: processes whose parents have
// ended become its children (pid_namespaces(7)), and stay as zombies until it waits
// for them. Jobs leave none, but what is executed in the container from outside may.
// boxes is nil where there are no sandboxes.
func orphans(boxes *sandboxes) []part {
	if os.Getpid() != 1 {
		return nil
	}
	// A child that is the provider's own is left to it.
	children := func(do func(owns func(pid int) bool)) { do(func(int) bool { return false }) }
	if boxes != nil && boxes.local != nil {
		children = boxes.local.Children
	}
	return []part{{"orphans", func(ctx context.Context) error { return reapOrphans(ctx, children) }}}
}

func reapOrphans(ctx context.Context, children func(do func(owns func(pid int) bool))) error {
	tick := time.NewTicker(orphanInterval)
	defer tick.Stop()
	for {
		var err error
		children(func(owns func(pid int) bool) { err = reapEnded(owns) })
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// reapEnded takes the exit status of children that have ended, up to the first that
// somebody else waits for: it will be gone at the next look.
func reapEnded(owns func(pid int) bool) error {
	for range mostOrphans {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ECHILD) || err == nil && info.Signo == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for orphans: %w", err)
		}
		pid := sender(&info)
		if pid <= 0 || owns(pid) {
			return nil
		}
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECHILD) {
			return fmt.Errorf("wait for orphan %d: %w", pid, err)
		}
	}
	return nil
}

// sender is si_pid (sigaction(2)), which follows three numbers of 32 bits and, as
// the first of a union that has pointers, is aligned like one.
func sender(info *unix.Siginfo) int {
	const align = unsafe.Sizeof(uintptr(0))
	const offset = (3*4 + align - 1) / align * align
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
