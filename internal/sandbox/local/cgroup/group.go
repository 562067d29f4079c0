package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// baseName is the group, below the worker's own, that holds all instances.
	baseName = "sallyport"
	// workerLeaf is the leaf into which the worker moves itself where it must.
	workerLeaf = "worker"
	// probeName is no lease: lease ids are 32 hexadecimal digits.
	probeName = "probe"

	// branchTries: losing to one closing instance is rare, to five in a row a fault.
	branchTries = 5

	procsFile       = "cgroup.procs"
	controllersFile = "cgroup.subtree_control"
	killFile        = "cgroup.kill"
	eventsFile      = "cgroup.events"

	initLeaf = "init"
	jobLeaf  = "job"

	// reclaimFloorBytes is above what an ended job leaves by itself (a few hundred
	// KiB of kernel memory), and what a small program's own files take in the cache.
	reclaimFloorBytes = 4 << 20
	// defaultReclaimPercent: freeing costs 0.2 ms and 0.13 ms for each MiB, and
	// the next job may have to read the same programs from the disk again. Page
	// cache gives way under pressure by itself, so that only the peak is at stake.
	defaultReclaimPercent = 25
)

// Config says where the groups of a worker instance go.
type Config struct {
	// Instance is a token [A-Za-z0-9_-]{1,64}, the same after a restart with the
	// same state directory, and used by one process at a time.
	Instance string
	// ReclaimAbovePercent: a leaf that holds more than this part of its memory
	// limit between two jobs (page cache of what the earlier ones read or wrote),
	// and more than 4 MiB, is emptied before the next one. What is held below that
	// stays, and is in the next job's peak. Default 25.
	ReclaimAbovePercent int64
	// FS is the kernel's files; nil means the host's.
	FS FS
}

// Group is a worker instance's base group, in each hierarchy that is of use.
type Group struct {
	fs             FS
	instance       string
	reclaimPercent int64

	// branches are distinct, the v2 one first.
	branches []*branch
	// unified is the v2 branch; memory, pids and cpu are where the limit is
	// enforced; acct measures CPU time where there is no v2 tree. Each may be nil.
	unified, memory, pids, cpu, acct *branch

	features features
	// moved is the leaf that the worker is in because of us; enabled is what we
	// switched on in the group above it.
	moved   string
	enabled []Controller
}

// branch is the instance's directory in one hierarchy.
type branch struct {
	version int
	// anchor is the group in which the base stands, dir the instance's own.
	anchor, dir string
	// controllers are handed down to the leases (v2 only).
	controllers []Controller
}

// features is what the probe group has.
type features struct {
	kill, memsw, swapMax, swappiness, oomGroup, peakReset bool
}

// Open makes the instance's groups and tries each limit in a probe group. It
// never fails: what does not work is in the report. The group is nil when no
// hierarchy can be used at all.
func Open(config Config) (*Group, Report) {
	fsys := config.FS
	if fsys == nil {
		fsys = OS{}
	}
	if !token(config.Instance) {
		return nil, nothing("unknown", fmt.Sprintf("instance %q is not a token of [A-Za-z0-9_-]{1,64}", config.Instance))
	}
	host, err := Detect(fsys)
	if err != nil {
		return nil, nothing("unknown", err.Error(), "mount /proc")
	}
	g := &Group{fs: fsys, instance: config.Instance, reclaimPercent: config.ReclaimAbovePercent}
	if g.reclaimPercent <= 0 {
		g.reclaimPercent = defaultReclaimPercent
	}
	report := Report{Layout: host.Layout()}
	g.openUnified(host, &report)
	for _, c := range []Controller{Memory, Pids, CPU, cpuacct} {
		g.openController(host, c, &report)
	}
	g.probe(&report)
	report.Moved = g.moved
	for _, b := range g.branches {
		report.Dirs = append(report.Dirs, b.dir)
	}
	if len(g.branches) == 0 {
		return nil, report
	}
	return g, report
}

// Enforces says which limits a lease of this group has.
func (g *Group) Enforces() (memory, pids, cpu bool) {
	return g.memory != nil, g.pids != nil, g.cpu != nil
}

// Leases lists the ids of this instance's leases that have groups, whoever made
// them: after a crash these are the dead worker's.
func (g *Group) Leases() ([]string, error) {
	seen := map[string]bool{probeName: true}
	var ids []string
	for _, b := range g.branches {
		names, err := g.fs.Subdirs(b.dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if !seen[name] {
				seen[name] = true
				ids = append(ids, name)
			}
		}
	}
	return ids, nil
}

// Close removes the instance's groups. All leases must have been removed. Where
// the worker had moved itself, it moves back. It retries for as long as ctx
// lives where the kernel says that a group is busy.
func (g *Group) Close(ctx context.Context) error {
	var errs []error
	for _, b := range g.branches {
		if left, err := g.fs.Subdirs(b.dir); err == nil && len(left) > 0 {
			errs = append(errs, fmt.Errorf("%s still has %s", b.dir, strings.Join(left, ", ")))
			continue
		}
		if err := rmdir(ctx, g.fs, b.dir); err != nil {
			errs = append(errs, err)
			continue
		}
		base := path.Dir(b.dir)
		if err := g.fs.Rmdir(base); err != nil {
			// Another instance lives there, or has just removed it.
			continue
		}
		if b == g.unified && g.moved != "" {
			errs = append(errs, g.moveBack(ctx))
		}
	}
	return errors.Join(errs...)
}

// openUnified makes the v2 branch.
func (g *Group) openUnified(host *Host, report *Report) {
	place := host.Unified
	if place.Dir == "" {
		report.Proof = Finding{Why: place.Why, Fix: place.Fix}
		return
	}
	b := &branch{version: 2, anchor: place.Dir, dir: path.Join(place.Dir, baseName, g.instance)}
	for _, c := range []Controller{Memory, Pids, CPU} {
		if at := host.at(c); at.Version == 2 && at.Why == "" {
			if err := g.offer(b, c); err != nil {
				report.at(c).refuse(fmt.Errorf("hand the %s controller down: %w", c, err))
				continue
			}
			b.controllers = append(b.controllers, c)
		}
	}
	if err := g.makeBranch(b); err != nil {
		report.Proof.refuse(err)
		for _, c := range b.controllers {
			report.at(c).refuse(err)
		}
		return
	}
	g.unified, g.branches = b, append(g.branches, b)
}

// openController finds or makes the branch in which c is.
func (g *Group) openController(host *Host, c Controller, report *Report) {
	place := host.at(c)
	if place.Version == 2 || place.Why != "" {
		finding := report.at(c)
		if finding == nil || finding.Why != "" {
			return
		}
		if place.Why != "" {
			finding.Why, finding.Fix = place.Why, place.Fix
			return
		}
		g.use(c, g.unified)
		return
	}
	if c == cpuacct && g.unified != nil {
		return
	}
	dir := path.Join(place.Dir, baseName, g.instance)
	for _, b := range g.branches {
		if b.dir == dir {
			g.use(c, b)
			return
		}
	}
	b := &branch{version: 1, anchor: place.Dir, dir: dir}
	if err := g.makeBranch(b); err != nil {
		if finding := report.at(c); finding != nil {
			finding.refuse(err)
		}
		return
	}
	g.branches = append(g.branches, b)
	g.use(c, b)
}

func (g *Group) use(c Controller, b *branch) {
	switch c {
	case Memory:
		g.memory = b
	case Pids:
		g.pids = b
	case CPU:
		g.cpu = b
	case cpuacct:
		g.acct = b
	}
}

// makeBranch makes the base and the instance's group and hands the controllers
// down to the leases. Another instance that closes may take the base away between
// two of our steps; then they are taken again.
func (g *Group) makeBranch(b *branch) error {
	var err error
	for range branchTries {
		if err = g.tryBranch(b); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (g *Group) tryBranch(b *branch) error {
	for _, dir := range []string{path.Dir(b.dir), b.dir} {
		if err := g.fs.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		for _, c := range b.controllers {
			if err := g.enable(dir, c); err != nil {
				return fmt.Errorf("hand the %s controller down: %w", c, err)
			}
		}
	}
	return nil
}

// offer enables c below the worker's own group. Where processes in that group
// forbid it, the worker steps aside into a leaf.
func (g *Group) offer(b *branch, c Controller) error {
	on, err := g.enabledIn(b.anchor, c)
	if err != nil || on {
		return err
	}
	err = g.enableAlone(b.anchor, c)
	if errors.Is(err, unix.EBUSY) && g.moved == "" {
		if err = g.moveAside(b.anchor); err != nil {
			return err
		}
		if err = g.enableAlone(b.anchor, c); err != nil {
			err = g.returnFrom(b.anchor, err)
		}
	}
	if err == nil {
		g.enabled = append(g.enabled, c)
	}
	return err
}

func (g *Group) enabledIn(dir string, c Controller) (bool, error) {
	data, err := g.fs.ReadFile(path.Join(dir, controllersFile))
	if err != nil {
		return false, err
	}
	return slices.Contains(strings.Fields(string(data)), string(c)), nil
}

func (g *Group) enable(dir string, c Controller) error {
	on, err := g.enabledIn(dir, c)
	if err != nil || on {
		return err
	}
	return g.fs.WriteFile(path.Join(dir, controllersFile), "+"+string(c))
}

// enableAlone enables c below dir only if dir has no processes. The kernel refuses
// that by itself for memory; for pids and cpu it would turn dir into the root of
// threaded groups, and the groups below into ones that can hold no process
// (cgroups(7), "threaded mode"). The real root, which has no events, may have both.
func (g *Group) enableAlone(dir string, c Controller) error {
	if _, err := g.fs.ReadFile(path.Join(dir, eventsFile)); err == nil {
		procs, err := g.fs.ReadFile(path.Join(dir, procsFile))
		if err == nil && len(procs) > 0 {
			return &fs.PathError{Op: "write +" + string(c) + " to", Path: path.Join(dir, controllersFile), Err: unix.EBUSY}
		}
	}
	return g.enable(dir, c)
}

func (g *Group) moveAside(anchor string) error {
	leaf := path.Join(anchor, workerLeaf)
	if err := g.fs.Mkdir(leaf); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a leaf for the worker itself: %w", err)
	}
	// "0" is the writer, with all its threads (cgroups(7)).
	if err := g.fs.WriteFile(path.Join(leaf, procsFile), "0"); err != nil {
		return errors.Join(fmt.Errorf("move the worker into its own leaf: %w", err), g.fs.Rmdir(leaf))
	}
	g.moved = leaf
	return nil
}

// returnFrom undoes moveAside after it did not help, and says who is in the way.
func (g *Group) returnFrom(anchor string, cause error) error {
	if data, err := g.fs.ReadFile(path.Join(anchor, procsFile)); err == nil {
		if pids := strings.Fields(string(data)); len(pids) > 0 {
			cause = fmt.Errorf("%d other processes are in the worker's own group (%s): %w",
				len(pids), strings.Join(pids[:min(len(pids), 5)], ", "), cause)
		}
	}
	leaf := g.moved
	if err := g.fs.WriteFile(path.Join(anchor, procsFile), "0"); err != nil {
		return errors.Join(cause, fmt.Errorf("move the worker back: %w", err))
	}
	g.moved = ""
	if err := g.fs.Rmdir(leaf); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

// moveBack leaves the worker's own group as it was found. Where another instance of
// this process has begun meanwhile to use it, the worker stays in its leaf.
func (g *Group) moveBack(ctx context.Context) error {
	anchor := path.Dir(g.moved)
	for _, c := range g.enabled {
		err := g.fs.WriteFile(path.Join(anchor, controllersFile), "-"+string(c))
		if errors.Is(err, unix.EBUSY) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("take the %s controller back: %w", c, err)
		}
	}
	err := g.fs.WriteFile(path.Join(anchor, procsFile), "0")
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("move the worker back: %w", err)
	}
	return rmdir(ctx, g.fs, g.moved)
}

func (h *Host) at(c Controller) Place {
	switch c {
	case Memory:
		return h.Memory
	case Pids:
		return h.Pids
	case CPU:
		return h.CPU
	case cpuacct:
		return h.cpuacct
	}
	return Place{Why: "unknown controller " + string(c)}
}

// at is nil for what only measures.
func (r *Report) at(c Controller) *Finding {
	switch c {
	case Memory:
		return &r.Memory
	case Pids:
		return &r.Pids
	case CPU:
		return &r.CPU
	case cpuacct:
		return nil
	}
	return nil
}

func (f *Finding) refuse(err error) {
	f.OK, f.By, f.Why, f.Fix = false, "", err.Error(), fixFor(err)
}

// rmdir removes one group. The kernel answers EBUSY for some time after the last
// task of a group has ended. A group that is not there is removed.
func rmdir(ctx context.Context, fsys FS, dir string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := fsys.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		if waitErr := wait(ctx, pause); waitErr != nil {
			return errors.Join(err, waitErr)
		}
	}
}

// wait pauses, or returns the reason for which ctx ended.
func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// token is the form of names that come from outside and end up in a path.
func token(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", r) {
			return false
		}
	}
	return true
}
