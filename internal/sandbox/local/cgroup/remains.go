package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Remains is what is left of a lease whose worker is gone.
type Remains struct {
	nest nest
}

// Adopt finds the groups of the lease id: those below this instance's base, and
// those in dirs, which Lease.Dirs had said (a worker that was started again may
// be in another group than the one that died). No groups at all is no error.
func (g *Group) Adopt(id string, dirs []string) (*Remains, error) {
	if !token(id) {
		return nil, fmt.Errorf("lease id %q is not a token of [A-Za-z0-9_-]{1,64}", id)
	}
	r := &Remains{nest: nest{fs: g.fs, kernelKill: g.features.kill}}
	var candidates []string
	for _, b := range g.branches {
		candidates = append(candidates, path.Join(b.dir, id))
	}
	for _, dir := range dirs {
		if !ours(dir, id) {
			return nil, fmt.Errorf("%s is not a group of lease %s", dir, id)
		}
		if !slices.Contains(candidates, dir) {
			candidates = append(candidates, dir)
		}
	}
	for _, dir := range candidates {
		if err := r.add(dir); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// RemoveInstance removes the base of a dead instance that stood beside this one's,
// and what its probe left. One that still has leases stays as it is.
func (g *Group) RemoveInstance(ctx context.Context, instance string) error {
	if !token(instance) || instance == g.instance {
		return fmt.Errorf("instance %q is not a dead one's token", instance)
	}
	var errs []error
	for _, b := range g.branches {
		dir := path.Join(path.Dir(b.dir), instance)
		below, err := g.fs.Subdirs(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && slices.Contains(below, probeName) {
			err = rmdir(ctx, g.fs, path.Join(dir, probeName))
			below = slices.DeleteFunc(below, func(name string) bool { return name == probeName })
		}
		if err == nil && len(below) == 0 {
			err = rmdir(ctx, g.fs, dir)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ours: a path comes from a state file, and whatever it names is killed.
func ours(dir, id string) bool {
	rest, ok := strings.CutSuffix(dir, "/"+id)
	return ok && path.IsAbs(dir) && path.Clean(dir) == dir && path.Base(path.Dir(rest)) == baseName
}

func (r *Remains) add(dir string) error {
	below, err := r.nest.fs.Subdirs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	version := 2
	if _, err := r.nest.fs.ReadFile(path.Join(dir, eventsFile)); err != nil {
		version = 1
	}
	r.nest.tops = append(r.nest.tops, leaf{version: version, dir: dir})
	for _, name := range below {
		r.nest.leaves = append(r.nest.leaves, leaf{version: version, dir: path.Join(dir, name)})
	}
	return nil
}

// Dirs are the groups that are left.
func (r *Remains) Dirs() []string { return r.nest.dirs() }

// Kill is Lease.Kill.
func (r *Remains) Kill() error { return r.nest.killAll() }

// Empty says whether no process is left in any of the groups. A zombie that
// nobody reaped is not left in a v2 group; a v1 group lists it.
func (r *Remains) Empty() (empty bool, detail string, err error) {
	for _, leaf := range slices.Concat(r.nest.tops, r.nest.leaves) {
		if leaf.version == 2 {
			data, err := r.nest.fs.ReadFile(path.Join(leaf.dir, eventsFile))
			if gone(err) {
				continue
			}
			if err != nil {
				return false, "", err
			}
			if populated, ok := keyed(data, "populated"); !ok || populated != 0 {
				return false, leaf.dir + " is populated", nil
			}
			continue
		}
		data, err := r.nest.fs.ReadFile(path.Join(leaf.dir, procsFile))
		if err != nil && !gone(err) {
			return false, "", err
		}
		if len(data) > 0 {
			return false, leaf.dir + " has processes", nil
		}
	}
	return true, fmt.Sprintf("%d groups, no process", len(r.nest.tops)+len(r.nest.leaves)), nil
}

// WaitEmpty waits until Empty says yes, or ctx ends.
func (r *Remains) WaitEmpty(ctx context.Context) (detail string, err error) {
	return waitEmpty(ctx, r.Empty)
}

// Remove is Lease.Remove.
func (r *Remains) Remove(ctx context.Context) error { return r.nest.remove(ctx) }
