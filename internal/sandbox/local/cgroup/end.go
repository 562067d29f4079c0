package cgroup

import (
	"context"
	"errors"
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
	for _, c := range l.counters.tasks {
		list, err := c.read(buf[:])
		if err != nil {
			return false, "", fmt.Errorf("look into control group: %w", err)
		}
		empty = empty && len(list) == 0
		seen = append(seen, fmt.Sprintf("%s empty: %t", c.name, len(list) == 0))
	}
	if len(seen) == 0 {
		return false, "", errors.New("look into control group: it has no file that tells")
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
	return l.nest.kill(jobs)
}

// Kill kills everything in the lease, lease init included, with SIGKILL. It does
// not wait for the end: Remove does. Groups that are gone have nothing to kill.
func (l *Lease) Kill() error {
	l.doubtful.Store(true)
	return l.nest.killAll()
}
