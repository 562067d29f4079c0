package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrGone says that a lease's groups were removed while they were in use.
var ErrGone = errors.New("the control group is gone")

// Lease is the groups of one lease.
type Lease struct {
	group *Group
	id    string
	nest  nest

	initDir  *os.File
	jobDir   *os.File
	jobFiles []*os.File
	counters counters

	// applied is what is written in the limit files; doubtful says that it may
	// not be, and everything has to be written again.
	applied  Limits
	doubtful atomic.Bool
	// spent: see Spent.
	spent atomic.Bool
	start sample
	buf   [counterBytes]byte
}

// NewLease makes the groups of a lease, id being a token that is never used
// again, and writes max, the largest limits that any of its jobs will have. After
// an error nothing is left, unless the error says so.
func (g *Group) NewLease(id string, maximum Limits) (*Lease, error) {
	if !token(id) || id == probeName {
		return nil, fmt.Errorf("lease id %q is not a token of [A-Za-z0-9_-]{1,64}", id)
	}
	l := &Lease{group: g, id: id, nest: nest{fs: g.fs, kernelKill: g.features.kill}}
	l.doubtful.Store(true)
	if err := l.make(); err != nil {
		return nil, errors.Join(fmt.Errorf("make control groups: %w", err), l.nest.removeUnused(), l.close())
	}
	if err := l.openFiles(); err != nil {
		return nil, errors.Join(fmt.Errorf("open control groups: %w", err), l.nest.removeUnused(), l.close())
	}
	if err := l.SetLimits(maximum); err != nil {
		return nil, errors.Join(err, l.nest.removeUnused(), l.close())
	}
	return l, nil
}

// LeaseDirs are the groups that the lease id has or will have: what Adopt needs to
// find them after a crash, wherever that was.
func (g *Group) LeaseDirs(id string) []string {
	dirs := make([]string, 0, len(g.branches))
	for _, b := range g.branches {
		dirs = append(dirs, path.Join(b.dir, id))
	}
	return dirs
}

// Dirs are the lease's groups, one for each hierarchy.
func (l *Lease) Dirs() []string { return l.nest.dirs() }

// InitFD is the v2 group for lease init, an open directory for
// CLONE_INTO_CGROUP; nil where there is no v2 tree. The lease keeps it open.
func (l *Lease) InitFD() *os.File { return l.initDir }

// AttachInit puts lease init into the v1 groups. The caller has not reaped it yet,
// so that the pid is surely its own. It does nothing where there is v2 alone.
func (l *Lease) AttachInit(pid int) error {
	for _, top := range l.nest.tops {
		if top.version != 1 {
			continue
		}
		if err := l.group.fs.WriteFile(path.Join(top.dir, procsFile), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("attach lease init: %w", err)
		}
	}
	return nil
}

// JobDir is the v2 leaf of jobs, an open directory for CLONE_INTO_CGROUP; nil where
// there is no v2 tree. Who is to clone into it needs the right to: see Admit.
func (l *Lease) JobDir() *os.File { return l.jobDir }

// Admit lets the user uid put its processes from lease init's v2 group into the
// job's: for a birth there, other than for a move, the kernel asks for the rights of
// the one who clones (cgroups(7)). It takes no more than that: uid sees no cgroup
// file system.
func (l *Lease) Admit(uid int) error {
	b := l.group.unified
	if b == nil {
		return nil
	}
	for _, dir := range []string{path.Join(b.dir, l.id), path.Join(b.dir, l.id, jobLeaf)} {
		if err := l.group.fs.Chown(path.Join(dir, procsFile), uid); err != nil {
			return fmt.Errorf("admit lease init: %w", err)
		}
	}
	return nil
}

// JobFiles are open files, one for each hierarchy and v2's first, into which the job's first
// process writes "0" to enter its leaf. They were opened with the worker's rights,
// and the kernel asks for those of the opener (cgroups(7)): the writer needs none.
// The lease keeps them open.
func (l *Lease) JobFiles() []*os.File { return l.jobFiles }

// Remove removes the lease's groups. The kernel refuses that while a task is in
// one of them, so a nil error proves that nothing of the lease is left. Busy
// groups are tried again until ctx ends. It is idempotent.
func (l *Lease) Remove(ctx context.Context) error {
	if err := l.nest.remove(ctx); err != nil {
		return err
	}
	return l.close()
}

// make makes the directories and what never changes in them.
func (l *Lease) make() error {
	for _, b := range l.group.branches {
		top := leaf{version: b.version, dir: path.Join(b.dir, l.id)}
		if err := l.group.fs.Mkdir(top.dir); err != nil {
			return err
		}
		l.nest.tops = append(l.nest.tops, top)
		for _, c := range b.controllers {
			if err := l.group.fs.WriteFile(path.Join(top.dir, controllersFile), "+"+string(c)); err != nil {
				return err
			}
		}
		names := []string{jobLeaf}
		if b.version == 2 {
			names = append(names, initLeaf)
		}
		for _, name := range names {
			below := leaf{version: b.version, dir: path.Join(top.dir, name)}
			if err := l.group.fs.Mkdir(below.dir); err != nil {
				return err
			}
			l.nest.leaves = append(l.nest.leaves, below)
		}
	}
	return l.makeMemory()
}

func (l *Lease) makeMemory() error {
	has := l.group.features
	if has.swappiness {
		if err := l.write(l.group.memory, memorySwappiness, "0"); err != nil {
			return err
		}
	}
	if has.oomGroup {
		return l.write(l.group.memory, memoryOOMGroup, "1")
	}
	return nil
}

// openFiles opens what is used for every job.
func (l *Lease) openFiles() error {
	for _, b := range l.group.branches {
		file, err := l.group.fs.Open(l.job(b, files(b.version).attach), unix.O_WRONLY)
		if err != nil {
			return err
		}
		if b.version == 2 {
			l.jobFiles = append([]*os.File{file}, l.jobFiles...)
			continue
		}
		l.jobFiles = append(l.jobFiles, file)
	}
	if b := l.group.unified; b != nil {
		job, err := l.group.fs.Open(path.Join(b.dir, l.id, jobLeaf), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		l.jobDir = job
		dir, err := l.group.fs.Open(path.Join(b.dir, l.id, initLeaf), unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		l.initDir = dir
	}
	return l.openCounters()
}

func (l *Lease) close() error {
	errs := []error{l.counters.close()}
	for _, file := range append(l.jobFiles, l.initDir, l.jobDir) {
		if file == nil {
			continue
		}
		if err := file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			errs = append(errs, fmt.Errorf("control group file: %w", err))
		}
	}
	return errors.Join(errs...)
}

// job is the name of a file in the job leaf.
func (l *Lease) job(b *branch, name string) string {
	return path.Join(b.dir, l.id, jobLeaf, name)
}

func (l *Lease) write(b *branch, name, value string) error {
	return l.group.fs.WriteFile(l.job(b, name), value)
}
