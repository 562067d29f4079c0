package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// killRounds bounds the killing process by process. With pids.max 0 nothing
	// can be born any more, and two rounds do.
	killRounds = 100
	// killBatch bounds the descriptors that one round holds.
	killBatch = 64
)

// nest is the directories of one lease, and how they are emptied and removed.
type nest struct {
	fs FS
	// kernelKill says that the v2 tree has cgroup.kill.
	kernelKill bool
	// tops are the lease's own groups, leaves what is in them.
	tops, leaves []leaf
}

// leaf is one directory.
type leaf struct {
	version int
	dir     string
}

func (n *nest) dirs() []string {
	dirs := make([]string, 0, len(n.tops))
	for _, top := range n.tops {
		dirs = append(dirs, top.dir)
	}
	return dirs
}

// remove removes the leaves, then what they stand in.
func (n *nest) remove(ctx context.Context) error {
	var errs []error
	for _, leaf := range slices.Concat(n.leaves, n.tops) {
		errs = append(errs, rmdir(ctx, n.fs, leaf.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove control groups: %w", err)
	}
	return nil
}

// removeUnused takes a half-made lease away. Nothing has run in it, so it cannot
// be busy.
func (n *nest) removeUnused() error {
	var errs []error
	for _, leaf := range slices.Concat(n.leaves, n.tops) {
		if err := n.fs.Rmdir(leaf.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (n *nest) killAll() error { return n.kill(slices.Concat(n.tops, n.leaves)) }

// kill ends what is in dirs. The v2 tree has everything that any v1 group has, and
// the kernel's own kill leaves nobody out who is being born; it reaches the groups
// below too.
func (n *nest) kill(dirs []leaf) error {
	viaKernel := false
	for _, dir := range dirs {
		if dir.version != 2 || !n.kernelKill {
			continue
		}
		err := n.fs.WriteFile(path.Join(dir.dir, killFile), "1")
		if err != nil && !gone(err) {
			return fmt.Errorf("kill control group: %w", err)
		}
		viaKernel = true
	}
	if viaKernel {
		return nil
	}
	return n.killEach(dirs)
}

// killEach ends what is in dirs without the kernel's own kill.
func (n *nest) killEach(dirs []leaf) error {
	if err := n.stopForks(dirs); err != nil {
		return err
	}
	return n.killListed(dirs)
}

// stopForks sets pids.max to 0 where there is one, so that the list of processes
// can only get shorter.
func (n *nest) stopForks(dirs []leaf) error {
	for _, dir := range dirs {
		err := n.fs.WriteFile(path.Join(dir.dir, pidsMax), "0")
		if err != nil && !gone(err) {
			return fmt.Errorf("stop forks in control group: %w", err)
		}
	}
	return nil
}

// killListed signals every process that is listed until no new one turns up.
func (n *nest) killListed(dirs []leaf) error {
	signalled := map[int]bool{}
	for range killRounds {
		fresh := 0
		for _, dir := range dirs {
			pids, err := n.list(dir.dir)
			if err != nil {
				return fmt.Errorf("kill control group: %w", err)
			}
			for _, pid := range pids {
				if !signalled[pid] {
					fresh++
					signalled[pid] = true
				}
			}
			for batch := range slices.Chunk(pids, killBatch) {
				if err := n.signal(dir.dir, batch); err != nil {
					return fmt.Errorf("kill control group: %w", err)
				}
			}
		}
		if fresh == 0 {
			return nil
		}
	}
	return fmt.Errorf("kill control group: new processes turned up in %d rounds", killRounds)
}

// signal kills processes that are surely in dir: a pid is pinned by a pidfd first
// and looked up in the list again after, so that a number which went to somebody
// else meanwhile harms nobody.
func (n *nest) signal(dir string, pids []int) (err error) {
	pinned := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range pinned {
			err = errors.Join(err, unix.Close(fd))
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("pidfd of %d: %w", pid, err)
		}
		pinned[pid] = fd
	}
	still, err := n.list(dir)
	if err != nil {
		return err
	}
	for _, pid := range still {
		fd, ok := pinned[pid]
		if !ok {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	return nil
}

// list is the processes in a group; none in one that is gone. Processes of a pid
// namespace that this one cannot see are listed as 0 and left out.
func (n *nest) list(dir string) ([]int, error) {
	data, err := n.fs.ReadFile(path.Join(dir, procsFile))
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for word := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a pid", dir, word)
		}
		if pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// gone says that the group does not exist (any more).
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
