package cgroup

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"
	"time"
)

// Empty says whether no task is left in the job leaf: the v2 tree says "populated
// 0" and no task is counted or listed. The detail is for the evidence. An error is
// doubt, not an answer.
func (l *Lease) Empty() (empty bool, detail string, err error) {
	var buf [256]byte
	var seen []string
	empty = true
	if c := l.counters.events; c != nil {
		populated, err := c.keyed(buf[:], "populated")
		if err != nil {
			return false, "", fmt.Errorf("look into control group: %w", err)
		}
		empty = empty && populated == 0
		seen = append(seen, fmt.Sprintf("populated %d", populated))
	}
	if c := l.counters.pids; c != nil {
		tasks, err := c.number(buf[:])
		if err != nil {
			return false, "", fmt.Errorf("look into control group: %w", err)
		}
		empty = empty && tasks == 0
		seen = append(seen, fmt.Sprintf("pids %d", tasks))
	}
	if len(seen) == 0 {
		return l.nothingListed()
	}
	return empty, strings.Join(seen, ", "), nil
}

// nothingListed looks into the lists of tasks, where the kernel has nothing better.
// They are opened anew for every look: the kernel keeps the list of an open v1 file
// for up to a second (kernel/cgroup/cgroup-v1.c, pidlists), and an old list proves
// nothing.
func (l *Lease) nothingListed() (empty bool, detail string, err error) {
	var seen []string
	empty = true
	for _, leaf := range l.nest.leaves {
		list, err := l.nest.fs.ReadFile(path.Join(leaf.dir, tasksFile))
		if gone(err) {
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		if err != nil {
			return false, "", fmt.Errorf("look into control group: %w", err)
		}
		tasks := bytes.Count(list, []byte("\n"))
		empty = empty && tasks == 0
		seen = append(seen, fmt.Sprintf("%s %d", path.Join(leaf.dir, tasksFile), tasks))
	}
	return empty, strings.Join(seen, ", "), nil
}

// WaitEmpty waits until Empty says yes, or ctx ends. It returns what it saw last.
func (l *Lease) WaitEmpty(ctx context.Context) (detail string, err error) {
	return waitEmpty(ctx, l.Empty)
}

func waitEmpty(ctx context.Context, look func() (bool, string, error)) (string, error) {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		empty, detail, err := look()
		if err != nil || empty {
			return detail, err
		}
		if err := wait(ctx, pause); err != nil {
			return detail, fmt.Errorf("control group is not empty (%s): %w", detail, err)
		}
	}
}

// KillJob kills everything in the job leaf with SIGKILL. It does not wait for the
// end. A leaf that is gone has nothing to kill. Afterwards the limits count as
// unknown.
func (l *Lease) KillJob() error {
	l.doubtful.Store(true)
	var jobs []leaf
	for _, leaf := range l.nest.leaves {
		if path.Base(leaf.dir) == jobLeaf {
			jobs = append(jobs, leaf)
		}
	}
	// Where forks can be stopped, not by cgroup.kill: the kernel counts the kills of a
	// group (since Linux 6.15), and kills at once whoever is born into one
	// (CLONE_INTO_CGROUP) from a group with another count.
	if l.group.pids != nil {
		return l.nest.killEach(jobs)
	}
	l.spent.Store(true)
	return l.nest.kill(jobs)
}

// Spent says that KillJob has used the kernel's own kill, after which no process can
// be born into the job leaf.
func (l *Lease) Spent() bool { return l.spent.Load() }

// Kill kills everything in the lease, lease init included, with SIGKILL. It does
// not wait for the end: Remove does. Groups that are gone have nothing to kill.
func (l *Lease) Kill() error {
	l.doubtful.Store(true)
	return l.nest.killAll()
}
