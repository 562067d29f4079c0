package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// The values are any that a leaf may have; what counts is that they can be
// written.
const probeLimitBytes = 64 << 20

// probe writes each limit in a group that is made and removed for it. So a limit
// that cannot be written is known at the start, with its reason, and not by the
// first job.
func (g *Group) probe(report *Report) {
	g.branches = slices.DeleteFunc(g.branches, func(b *branch) bool {
		if err := g.probeBranch(b, report); err != nil {
			for _, c := range []Controller{Memory, Pids, CPU, cpuacct} {
				if g.where(c) == b {
					g.use(c, nil)
					if finding := report.at(c); finding != nil {
						finding.refuse(err)
					}
				}
			}
			if g.unified == b {
				g.unified = nil
				report.Proof.refuse(err)
			}
			return true
		}
		return false
	})
	g.reportProof(report)
	g.reportWeaker(report)
}

// probeBranch tries what b is for. An error means that no group can be made there.
func (g *Group) probeBranch(b *branch, report *Report) (err error) {
	dir := path.Join(b.dir, probeName)
	if err := g.fs.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	defer func() {
		if removeErr := g.fs.Rmdir(dir); removeErr != nil {
			err = errors.Join(err, removeErr)
		}
	}()
	for _, c := range []Controller{Memory, Pids, CPU} {
		if g.where(c) != b {
			continue
		}
		file, err := g.probeLimit(b, c, dir)
		if err != nil {
			g.use(c, nil)
			report.at(c).refuse(fmt.Errorf("write a limit: %w", err))
			continue
		}
		*report.at(c) = Finding{OK: true, By: fmt.Sprintf("v%d %s", b.version, path.Join(b.dir, "*", jobLeaf, file))}
	}
	if b.version == 2 {
		if _, err := g.fs.ReadFile(path.Join(dir, eventsFile)); err != nil {
			return err
		}
		g.features.kill = g.writable(path.Join(dir, killFile))
	}
	return nil
}

// probeLimit writes one limit and notes what goes with it.
func (g *Group) probeLimit(b *branch, c Controller, dir string) (file string, err error) {
	names := files(b.version)
	switch c {
	case Memory:
		g.features.oomGroup = b.version == 2 && g.writable(path.Join(dir, memoryOOMGroup))
		g.features.swappiness = b.version == 1 && g.fs.WriteFile(path.Join(dir, memorySwappiness), "0") == nil
		if err := g.fs.WriteFile(path.Join(dir, names.memoryLimit), fmt.Sprint(probeLimitBytes)); err != nil {
			return "", err
		}
		err := g.fs.WriteFile(path.Join(dir, names.swapLimit), names.swapValue(probeLimitBytes))
		g.features.memsw, g.features.swapMax = err == nil && b.version == 1, err == nil && b.version == 2
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		g.features.peakReset = g.resettable(path.Join(dir, names.memoryPeak))
		return names.memoryLimit, nil
	case Pids:
		return pidsMax, g.fs.WriteFile(path.Join(dir, pidsMax), "64")
	case CPU:
		return names.cpuLimit, g.fs.WriteFile(path.Join(dir, names.cpuLimit), names.cpuValue(1))
	case cpuacct:
	}
	return "", fmt.Errorf("controller %s has no limit", c)
}

func (g *Group) where(c Controller) *branch {
	switch c {
	case Memory:
		return g.memory
	case Pids:
		return g.pids
	case CPU:
		return g.cpu
	case cpuacct:
		return g.acct
	}
	return nil
}

func (g *Group) writable(name string) bool {
	file, err := g.fs.Open(name, unix.O_WRONLY)
	return err == nil && file.Close() == nil
}

// resettable: a peak can be set back (v1 always, v2 since Linux 6.12).
func (g *Group) resettable(name string) bool {
	counter, err := g.fs.OpenCounter(name, true)
	if err != nil {
		return false
	}
	err = counter.Reset()
	return counter.Close() == nil && err == nil
}

func (g *Group) reportProof(report *Report) {
	switch {
	case g.unified != nil:
		report.Proof = Finding{OK: true, By: "v2 " + path.Join(g.unified.dir, "*", jobLeaf, eventsFile)}
	case g.pids != nil:
		report.Proof = Finding{OK: true, By: "v1 " + path.Join(g.pids.dir, "*", jobLeaf, pidsCurrent)}
	case len(g.branches) > 0:
		report.Proof = Finding{OK: true, By: "v1 " + path.Join(g.branches[0].dir, "*", jobLeaf, tasksFile)}
	case report.Proof.Why == "":
		report.Proof = Finding{Why: "no hierarchy can be used"}
	}
}

func (g *Group) reportWeaker(report *Report) {
	weaker := func(sentence string) { report.Weaker = append(report.Weaker, sentence) }
	if len(g.branches) > 0 && !g.features.kill {
		weaker("cgroup.kill is missing (it needs a v2 tree, Linux 5.14): a group is killed process by process, after its pids.max was set to 0")
	}
	if g.memory == nil {
		return
	}
	if !g.features.memsw && !g.features.swapMax {
		weaker("swap is not accounted here: where the host has swap, a job can use it beyond its memory limit")
	}
	if g.memory.version == 1 && !g.features.swappiness {
		weaker("memory.swappiness cannot be set to 0: a job's memory may be swapped out")
	}
	if g.memory.version == 2 && !g.features.oomGroup {
		weaker("memory.oom.group is missing (Linux 4.19): out of memory kills one process, not the job")
	}
	if !g.features.peakReset {
		weaker("the memory peak cannot be reset (Linux 6.12): in a lease that is used again it is known only where it rises")
	}
}
