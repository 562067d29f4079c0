package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	membershipFile = "/proc/self/cgroup"
	mountinfoFile  = "/proc/self/mountinfo"
)

// Controller names one kind of limit.
type Controller string

// The controllers that are used here.
const (
	Memory Controller = "memory"
	Pids   Controller = "pids"
	CPU    Controller = "cpu"
	// cpuacct only measures, and only where there is no v2 tree to measure with.
	cpuacct Controller = "cpuacct"
)

// Place is where a hierarchy can be used by this process.
type Place struct {
	// Version is 1 or 2; 0 means that there is no such hierarchy on this host.
	Version int
	// Dir is the group below which ours are made: the worker's own, or the group
	// above it when the worker sits alone in a leaf that is called "worker".
	// Empty when it cannot be reached.
	Dir string
	// Own is the worker's own group.
	Own string
	// Why says, for a person, why it cannot be used; empty when nothing that can
	// be read speaks against it.
	Why string
	// Fix are ways out, one a line.
	Fix []string
}

// Host is what the kernel offers to this process.
type Host struct {
	// Unified is the v2 tree, with or without controllers.
	Unified Place
	// Memory, Pids and CPU say where each controller is.
	Memory, Pids, CPU Place

	cpuacct Place
}

// Layout is "v2", "v1", "hybrid" (both trees are there) or "none".
func (h *Host) Layout() string {
	one := h.Memory.Version == 1 || h.Pids.Version == 1 || h.CPU.Version == 1
	switch two := h.Unified.Version == 2; {
	case one && two:
		return "hybrid"
	case one:
		return "v1"
	case two:
		return "v2"
	}
	return "none"
}

// Detect reads where this process is and what is mounted. It changes nothing. An
// error means that /proc could not be read or understood; a host without control
// groups is not an error.
func Detect(fsys FS) (*Host, error) {
	data, err := fsys.ReadFile(membershipFile)
	if err != nil {
		return nil, err
	}
	members, err := ParseMemberships(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", membershipFile, err)
	}
	if data, err = fsys.ReadFile(mountinfoFile); err != nil {
		return nil, err
	}
	mounts, err := ParseMountinfo(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mountinfoFile, err)
	}
	h := &Host{Unified: unifiedPlace(fsys, members, mounts)}
	h.Memory = controllerPlace(fsys, Memory, h.Unified, members, mounts)
	h.Pids = controllerPlace(fsys, Pids, h.Unified, members, mounts)
	h.CPU = controllerPlace(fsys, CPU, h.Unified, members, mounts)
	h.cpuacct = controllerPlace(fsys, cpuacct, h.Unified, members, mounts)
	return h, nil
}

func unifiedPlace(fsys FS, members []Membership, mounts []Mount) Place {
	for _, m := range members {
		if m.Hierarchy != 0 {
			continue
		}
		var trees []Mount
		for _, mount := range mounts {
			if mount.Type == "cgroup2" {
				trees = append(trees, mount)
			}
		}
		place := locate(2, "the v2 tree", m, trees)
		if place.Dir != "" {
			place.Dir = delegatedParent(fsys, place.Dir, trees)
		}
		return place
	}
	return Place{Why: "the kernel has no cgroup v2", Fix: []string{fixMount}}
}

// controllerPlace finds a controller. A controller is in one hierarchy at a time:
// the v1 one that names it in the membership file, else the v2 tree.
func controllerPlace(fsys FS, c Controller, unified Place, members []Membership, mounts []Mount) Place {
	for _, m := range members {
		if !slices.Contains(m.Controllers, string(c)) {
			continue
		}
		var own []Mount
		for _, mount := range mounts {
			if mount.Type == "cgroup" && slices.Contains(mount.Options, string(c)) {
				own = append(own, mount)
			}
		}
		return locate(1, "the "+string(c)+" hierarchy (v1)", m, own)
	}
	if unified.Version == 0 || unified.Why != "" {
		place := unified
		if place.Version == 0 {
			place.Why = "no hierarchy has the " + string(c) + " controller: " + unified.Why
		}
		return place
	}
	place := unified
	data, err := fsys.ReadFile(path.Join(place.Dir, "cgroup.controllers"))
	switch {
	case err != nil:
		place.Why, place.Fix = "its controllers cannot be read: "+err.Error(), []string{fixRoot}
	case !slices.Contains(strings.Fields(string(data)), string(c)):
		place.Version = 2
		place.Why = fmt.Sprintf("the %s controller is not offered to %s (see cgroup.controllers there)", c, place.Dir)
		place.Fix = fixDelegate(c)
	}
	return place
}

// locate maps a membership to a directory that this process can see.
func locate(version int, what string, m Membership, mounts []Mount) Place {
	place := Place{Version: version}
	if len(mounts) == 0 {
		place.Why, place.Fix = what+" is not mounted here", []string{fixMount}
		return place
	}
	if m.Deleted {
		place.Why = "the worker's own group " + m.Path + " was removed in " + what
		place.Fix = []string{"start the worker again, in a group that stays"}
		return place
	}
	place.Why = fmt.Sprintf("the worker's own group %s is not below any mount of %s", m.Path, what)
	place.Fix = []string{fixMount, "in a container: run it with its own cgroup namespace (--cgroupns=private)"}
	for i, mount := range mounts {
		below, ok := relative(mount.Root, m.Path)
		if !ok || hidden(mount, mounts[i+1:]) {
			continue
		}
		dir := path.Join(mount.Point, below)
		if mount.ReadOnly {
			if place.Dir == "" {
				place.Own, place.Why, place.Fix = dir, mount.Point+" is mounted read-only", []string{fixReadOnly}
			}
			continue
		}
		return Place{Version: version, Dir: dir, Own: dir}
	}
	return place
}

// relative is the part of name below root, when root is above it or the same.
func relative(root, name string) (string, bool) {
	if strings.HasPrefix(name, "/..") || strings.HasPrefix(root, "/..") {
		return "", false
	}
	if root == "/" {
		return name, true
	}
	rest, ok := strings.CutPrefix(name, root)
	return rest, ok && (rest == "" || strings.HasPrefix(rest, "/"))
}

// hidden says that a later mount covers this one.
func hidden(mount Mount, later []Mount) bool {
	for _, other := range later {
		if other.Point == mount.Point {
			return true
		}
	}
	return false
}

// delegatedParent is the group above own when a service manager (systemd's
// DelegateSubgroup=worker) or an earlier start of ours put the worker into a
// leaf of its own; else own. Nothing but a leaf of that name makes us leave our
// own group: above it are other people's limits.
func delegatedParent(fsys FS, own string, mounts []Mount) string {
	if path.Base(own) != workerLeaf {
		return own
	}
	for _, mount := range mounts {
		if mount.Point == own {
			return own
		}
	}
	parent := path.Dir(own)
	procs, err := fsys.ReadFile(path.Join(parent, procsFile))
	if err != nil || len(procs) > 0 {
		return own
	}
	return parent
}

// The texts say what a person can do.
const (
	fixMount    = "mount the kernel's control groups: mount -t cgroup2 none /sys/fs/cgroup"
	fixReadOnly = "in a container: run it with --privileged, or with --cgroupns=private and /sys/fs/cgroup mounted read-write; else: mount -o remount,rw"
	fixRoot     = "run the worker as root"
	fixScope    = "systemd-run --user --scope -p Delegate=yes -- COMMAND"
	fixService  = "set Delegate=yes in the worker's systemd service"
	fixAlone    = "start the worker alone in its control group: as a systemd service with Delegate=yes, or as the container's only process"
)

func fixDelegate(c Controller) []string {
	return []string{
		fixService + " (or Delegate=" + string(c) + ")",
		fixScope,
		"as an ordinary user: let systemd delegate it: [Service] Delegate=cpu memory pids in user@.service.d/delegate.conf",
		"by hand: echo +" + string(c) + " > cgroup.subtree_control in each group above",
	}
}

// fixFor are the ways out of an error of the system.
func fixFor(err error) []string {
	switch {
	case errors.Is(err, unix.EROFS):
		return []string{fixReadOnly}
	case errors.Is(err, fs.ErrPermission):
		return []string{fixRoot, fixScope, fixService}
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EOPNOTSUPP): // others are there, threaded or not
		return []string{fixAlone}
	}
	return nil
}
