package cgroup

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Limits are a leaf's limits. Zero means none.
type Limits struct {
	// MemoryBytes is the memory of the whole leaf: of its processes, of files in
	// memory that they made, and of the kernel on their behalf. Rounded down to
	// whole pages by the kernel. Swap is not allowed on top, where it is accounted.
	MemoryBytes int64
	// Pids is the number of tasks (processes and threads).
	Pids int64
	// CPUShare is in percent of one core, averaged over 100 ms; 250 is two and a
	// half cores.
	CPUShare int64
}

// UnenforcedError says that a limit was asked for that this host cannot enforce.
type UnenforcedError struct {
	Controller Controller
}

func (e *UnenforcedError) Error() string {
	return "the " + string(e.Controller) + " limit cannot be enforced on this host"
}

// SetLimits writes the limits of the next run into the job leaf. It is called
// while nothing runs there. What is already written is not written again. An
// error means that the limits are not what was asked for, and the next call
// writes all of them.
func (l *Lease) SetLimits(want Limits) error {
	if err := l.check(want); err != nil {
		return err
	}
	all := l.doubtful.Swap(true)
	if all || want.MemoryBytes != l.applied.MemoryBytes {
		if err := l.setMemory(want.MemoryBytes, all); err != nil {
			return fmt.Errorf("set memory limit: %w", err)
		}
	}
	if b := l.group.pids; b != nil && (all || want.Pids != l.applied.Pids) {
		if err := l.write(b, pidsMax, files(2).value(want.Pids)); err != nil {
			return fmt.Errorf("set pids limit: %w", err)
		}
	}
	if all || want.CPUShare != l.applied.CPUShare {
		if err := l.setCPU(want.CPUShare, all); err != nil {
			return fmt.Errorf("set cpu limit: %w", err)
		}
	}
	l.applied = want
	l.doubtful.Store(false)
	return nil
}

func (l *Lease) check(want Limits) error {
	if want.MemoryBytes < 0 || want.Pids < 0 || want.CPUShare < 0 || want.CPUShare > maxCPUShare {
		return fmt.Errorf("limits %+v are out of range", want)
	}
	for _, limit := range []struct {
		value      int64
		branch     *branch
		controller Controller
	}{{want.MemoryBytes, l.group.memory, Memory}, {want.Pids, l.group.pids, Pids}, {want.CPUShare, l.group.cpu, CPU}} {
		if limit.value > 0 && limit.branch == nil {
			return &UnenforcedError{Controller: limit.controller}
		}
	}
	return nil
}

// setMemory keeps v1's rule at every moment: the limit of memory alone is never
// above that of memory and swap together.
func (l *Lease) setMemory(want int64, all bool) error {
	b := l.group.memory
	if b == nil {
		return nil
	}
	names, before := files(b.version), l.applied.MemoryBytes
	limit := func() error { return l.shrink(names.memoryLimit, names.value(want)) }
	swap := func() error {
		if !l.group.features.memsw && !l.group.features.swapMax {
			return nil
		}
		return l.shrink(names.swapLimit, names.swapValue(want))
	}
	raises := want == 0 || (before != 0 && want > before)
	switch {
	case all && l.group.features.memsw:
		if err := l.write(b, names.swapLimit, names.unlimited); err != nil {
			return err
		}
	case raises && b.version == 1:
		limit, swap = swap, limit
	}
	if err := limit(); err != nil {
		return err
	}
	if err := swap(); err != nil {
		return err
	}
	return l.verifyMemory(want)
}

// shrink writes a limit. Below the present usage v1 answers EBUSY when it could
// not free enough by itself: an earlier job's page cache is then dropped first.
func (l *Lease) shrink(name, value string) error {
	err := l.write(l.group.memory, name, value)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if reclaimErr := l.reclaim(); reclaimErr != nil {
		return errors.Join(err, reclaimErr)
	}
	return l.write(l.group.memory, name, value)
}

// verifyMemory catches what v2 does not refuse: a limit below what is in use and
// cannot be freed, under which the next process would be killed at once.
func (l *Lease) verifyMemory(want int64) error {
	if l.group.memory.version == 1 || want == 0 {
		return nil
	}
	usage, err := l.counters.usage.number(l.buf[:])
	if err != nil {
		return err
	}
	if usage <= want {
		return nil
	}
	if err := l.reclaim(); err != nil {
		return err
	}
	if usage, err = l.counters.usage.number(l.buf[:]); err != nil {
		return err
	}
	if usage > want {
		return fmt.Errorf("%d bytes are in use before the start and cannot be freed: %w", usage, unix.EBUSY)
	}
	return nil
}

func (l *Lease) setCPU(want int64, all bool) error {
	b := l.group.cpu
	if b == nil {
		return nil
	}
	names := files(b.version)
	if all && b.version == 1 {
		if err := l.write(b, cpuPeriod, fmt.Sprint(periodUS)); err != nil {
			return err
		}
	}
	err := l.write(b, names.cpuLimit, names.cpuValue(want))
	if b.version == 1 && errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("a group above has a smaller cpu quota: %w", err)
	}
	return err
}

// Unthrottle lifts the CPU limit of the job leaf until the next SetLimits, for
// processes that are killed: they need CPU time to end, and before Linux 6.18 they had
// to wait for their share of it in the kernel, too. A group that is gone has none.
func (l *Lease) Unthrottle() error {
	b := l.group.cpu
	if b == nil || l.applied.CPUShare == 0 {
		return nil
	}
	l.doubtful.Store(true)
	names := files(b.version)
	err := l.write(b, names.cpuLimit, names.cpuValue(0))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
