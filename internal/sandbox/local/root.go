package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

// OverlayPrefix begins a root view (sandbox.Spec.Root) that is an overlay: the
// directory that follows is shown as the root, and jobs may write to it, each to
// a file system of its own above it.
const OverlayPrefix = "overlay:"

// view is what a sandbox's root is made of.
type view struct {
	ops     []leaseinit.Op
	overlay bool
	// tree is a detached tree of mounts for OpTree; nil where there is none.
	tree *os.File
}

// close lets go of the tree, which lease init has by then.
func (v *view) close() error {
	if v.tree == nil {
		return nil
	}
	return v.tree.Close()
}

// view makes the root view that root names.
func (b *box) view(root string) (v view, err error) {
	lower, overlay := strings.CutPrefix(root, OverlayPrefix)
	switch {
	case root == "":
		v.ops = hostView()
	case overlay:
		v, err = b.overlayView(lower)
	default:
		v.ops, err = imageView(root)
	}
	return v, err
}

// overlayView shows lower where lease init looks for it. An ordinary user's worker
// binds it; the files that are the user's are the job's inside. As root the files
// that are root's should be the job's: the tree is mounted with such a map of uids.
func (b *box) overlayView(lower string) (view, error) {
	if err := checkLower(lower); err != nil {
		return view{}, err
	}
	v := view{overlay: true, ops: []leaseinit.Op{
		{Kind: leaseinit.OpDir, Path: leaseinit.LowerDir},
		{Kind: leaseinit.OpDir, Path: leaseinit.UpperDir},
		{Kind: leaseinit.OpDir, Path: leaseinit.MergedDir},
	}}
	if !b.provider.host.root {
		v.ops = append(append(v.ops, leaseinit.Op{Kind: leaseinit.OpBind, Path: leaseinit.LowerDir, Arg: lower}), ownDirs()...)
		return v, nil
	}
	var err error
	if v.tree, err = b.provider.mappedTree(lower, b.provider.host.rangeBase+b.slot*rangeSize); err != nil {
		return view{}, err
	}
	v.ops = append(append(v.ops, leaseinit.Op{Kind: leaseinit.OpTree, Path: leaseinit.LowerDir, Arg: lower}), ownDirs()...)
	return v, nil
}

// checkLower refuses a lower directory on which the sandbox's own places would
// stand wrong.
func checkLower(lower string) error {
	info, err := os.Stat(lower)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no directory", lower)
	}
	for _, name := range []string{"dev", "proc", "tmp", "workspace"} {
		info, err := os.Lstat(filepath.Join(lower, name))
		if err == nil && !info.IsDir() {
			return fmt.Errorf("%s is no directory: the sandbox mounts its own there", filepath.Join(lower, name))
		}
	}
	return nil
}

// mappedTree is the file system at dir as a detached mount, read-only, in which
// root's files are those of the job's uid in the range that begins with first, and
// all others, up to 65535, those of the same number there.
func (p *Provider) mappedTree(dir string, first uint32) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open the tree of %s: %w", dir, err)
	}
	tree := os.NewFile(uintptr(fd), dir)
	ns, err := p.uidMap(first)
	if err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Userns_fd: uint64(ns.Fd()),
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	switch {
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("map the uids of %s: %w (its file system cannot: it takes ext4, xfs, btrfs or, since Linux 6.3, tmpfs; put the directory on one, or run the worker as the ordinary user who owns it)", dir, err)
	case errors.Is(err, unix.EPERM):
		err = fmt.Errorf("map the uids of %s: %w (it takes the host's own root, not a container's: run the worker as the ordinary user who owns the directory)", dir, err)
	case err != nil:
		err = fmt.Errorf("map the uids of %s: %w", dir, err)
	}
	if err = errors.Join(err, ns.Close()); err != nil {
		return nil, errors.Join(err, tree.Close())
	}
	return tree, nil
}

// uidMap is a user namespace that is nothing but a map of uids and gids. It takes a
// process to make one: a lease init that gets no set-up, and ends with its socket.
func (p *Provider) uidMap(first uint32) (_ *os.File, err error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	ids := []syscall.SysProcIDMap{
		{ContainerID: 0, HostID: int(first) + jobUID, Size: 1},
		{ContainerID: 1, HostID: int(first) + 1, Size: jobUID - 1},
		{ContainerID: jobUID, HostID: int(first), Size: 1},
		{ContainerID: jobUID + 1, HostID: int(first) + jobUID + 1, Size: rangeSize - jobUID - 1},
	}
	null := p.null.Fd()
	pid, err := p.launcher.family.fork(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", []string{leaseinit.Marker, "uid-map"}, &syscall.ProcAttr{
			Files: []uintptr{null, null, null, theirs.Fd()},
			Sys: &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
			},
		})
	})
	err = errors.Join(err, theirs.Close())
	var ns *os.File
	if pid > 0 {
		var openErr error
		ns, openErr = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		err = errors.Join(err, openErr)
	}
	err = errors.Join(err, ours.close())
	if pid > 0 {
		_, waitErr := syscall.Wait4(pid, nil, 0, nil)
		p.launcher.family.disown(pid)
		err = errors.Join(err, waitErr)
	}
	if err != nil {
		if ns != nil {
			err = errors.Join(err, ns.Close())
		}
		return nil, fmt.Errorf("make a map of uids: %w", err)
	}
	return ns, nil
}
