package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// counterBytes holds the largest file that is read for its counters: a v2
// cpu.stat with every line that kernels print is under 600 bytes.
const counterBytes = 2048

// Usage is what ran in the job leaf since Begin. -1 means not measured.
type Usage struct {
	CPUUser, CPUSystem time.Duration
	// MemoryPeakBytes has page cache and files in memory in it.
	MemoryPeakBytes int64
	// PidsPeak counts tasks.
	PidsPeak int64
	// OOMKills is how many processes the kernel killed for want of memory.
	OOMKills int64
	// PidsMaxHits is how often a fork failed at the limit of tasks.
	PidsMaxHits int64
}

// counters are open files of the job leaf; each may be nil.
type counters struct {
	cpu, acctUsage, acctSystem *gauge
	usage, peak, oom           *gauge
	pids, pidsPeak, pidsEvents *gauge
	events                     *gauge
}

// sample is one look at the counters.
type sample struct {
	user, system          time.Duration
	memoryPeak, pidsPeak  int64
	oomKills, pidsMaxHits int64
}

// gauge is an open counter.
type gauge struct {
	name string
	file Counter
}

func (g *gauge) read(buf []byte) ([]byte, error) {
	n, err := g.file.Read(buf)
	if errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return buf[:n], err
}

// number reads a file with one number.
func (g *gauge) number(buf []byte) (int64, error) {
	data, err := g.read(buf)
	if err != nil {
		return 0, err
	}
	n, ok := number(data)
	if !ok {
		return 0, fmt.Errorf("%s: %q is not a number", g.name, data)
	}
	return n, nil
}

// keyed reads one number of a "key number" file.
func (g *gauge) keyed(buf []byte, key string) (int64, error) {
	data, err := g.read(buf)
	if err != nil {
		return 0, err
	}
	n, ok := keyed(data, key)
	if !ok {
		return 0, fmt.Errorf("%s has no number for %s", g.name, key)
	}
	return n, nil
}

// Begin is called right before a run, while nothing runs in the leaf: it sets the
// peaks back and notes the counters. What an earlier job left in memory is freed
// first where it is much, which may take up to a second.
func (l *Lease) Begin(ctx context.Context) error {
	if err := l.reclaimLeftovers(ctx); err != nil {
		return err
	}
	if l.group.features.peakReset && l.counters.peak != nil {
		if err := l.counters.peak.file.Reset(); err != nil {
			return fmt.Errorf("reset memory peak: %w", err)
		}
	}
	start, err := l.sample()
	if err != nil {
		return err
	}
	l.start = start
	return nil
}

// Usage is what was used since Begin. It may be called at any time after.
func (l *Lease) Usage() (Usage, error) {
	now, err := l.sample()
	if err != nil {
		return Usage{}, err
	}
	u := Usage{
		CPUUser:         -1,
		CPUSystem:       -1,
		MemoryPeakBytes: now.memoryPeak,
		PidsPeak:        risen(l.start.pidsPeak, now.pidsPeak),
		OOMKills:        since(l.start.oomKills, now.oomKills),
		PidsMaxHits:     since(l.start.pidsMaxHits, now.pidsMaxHits),
	}
	if !l.group.features.peakReset {
		u.MemoryPeakBytes = risen(l.start.memoryPeak, now.memoryPeak)
	}
	if now.user >= 0 {
		// The kernel splits its exact total by samples, and may move some of it.
		u.CPUUser, u.CPUSystem = max(0, now.user-l.start.user), max(0, now.system-l.start.system)
	}
	return u, nil
}

// CPUTime is the processor time since Begin, -1 where it is not measured: one
// read, for who watches a limit.
func (l *Lease) CPUTime() (time.Duration, error) {
	user, system, err := l.cpuTime()
	if err != nil || user < 0 {
		return -1, err
	}
	return user + system - l.start.user - l.start.system, nil
}

// since is the difference of two counters that only rise.
func since(start, now int64) int64 {
	if start < 0 || now < start {
		return -1
	}
	return now - start
}

// risen is a peak that cannot be reset: it belongs to this run only if it is
// higher than it was before.
func risen(start, now int64) int64 {
	if now <= start {
		return -1
	}
	return now
}

func (l *Lease) sample() (sample, error) {
	s := sample{memoryPeak: -1, pidsPeak: -1, oomKills: -1, pidsMaxHits: -1}
	var err error
	if s.user, s.system, err = l.cpuTime(); err != nil {
		return s, err
	}
	if c := l.counters.peak; c != nil {
		if s.memoryPeak, err = c.number(l.buf[:]); err != nil {
			return s, err
		}
	}
	if c := l.counters.oom; c != nil {
		if s.oomKills, err = c.keyed(l.buf[:], "oom_kill"); err != nil {
			return s, err
		}
	}
	if c := l.counters.pidsPeak; c != nil {
		if s.pidsPeak, err = c.number(l.buf[:]); err != nil {
			return s, err
		}
	}
	if c := l.counters.pidsEvents; c != nil {
		if s.pidsMaxHits, err = c.keyed(l.buf[:], "max"); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (l *Lease) cpuTime() (user, system time.Duration, err error) {
	switch c := l.counters; {
	case c.cpu != nil:
		data, err := c.cpu.read(l.buf[:])
		if err != nil {
			return -1, -1, err
		}
		userUS, ok := keyed(data, "user_usec")
		systemUS, ok2 := keyed(data, "system_usec")
		if !ok || !ok2 {
			return -1, -1, fmt.Errorf("%s has no user_usec or system_usec", c.cpu.name)
		}
		return time.Duration(userUS) * time.Microsecond, time.Duration(systemUS) * time.Microsecond, nil
	case c.acctUsage != nil:
		total, err := c.acctUsage.number(l.buf[:])
		if err != nil {
			return -1, -1, err
		}
		var inKernel int64
		if c.acctSystem != nil {
			if inKernel, err = c.acctSystem.number(l.buf[:]); err != nil {
				return -1, -1, err
			}
		}
		inKernel = min(inKernel, total)
		return time.Duration(total - inKernel), time.Duration(inKernel), nil
	}
	return -1, -1, nil
}

// leftoverTime is how long Begin waits for the kernel to free what it frees in its own
// time: tasks that have ended, the mounts and the System V segments of a namespace that
// is gone. Some tens of milliseconds, as a rule; a job is not refused for more.
const leftoverTime = time.Second

func (l *Lease) reclaimLeftovers(ctx context.Context) error {
	if l.counters.usage == nil || l.applied.MemoryBytes == 0 {
		return nil
	}
	much := max(reclaimFloorBytes, l.applied.MemoryBytes/100*l.group.reclaimPercent)
	usage, err := l.counters.usage.number(l.buf[:])
	if err != nil || usage <= much {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leftoverTime)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if err := l.reclaim(); err != nil {
			return err
		}
		usage, err := l.counters.usage.number(l.buf[:])
		if err != nil || usage <= much || wait(ctx, pause) != nil {
			return err
		}
	}
}

// reclaim frees what the ended jobs of this lease left in memory. What cannot be
// freed (files in memory that are still there) stays.
func (l *Lease) reclaim() error {
	b := l.group.memory
	name, value := memoryForceEmpty, "0"
	if b.version == 2 {
		usage, err := l.counters.usage.number(l.buf[:])
		if err != nil {
			return err
		}
		name, value = memoryReclaim, strconv.FormatInt(usage, 10)
	}
	err := l.write(b, name, value)
	// EAGAIN: less was freed than asked for. ENOENT: memory.reclaim is from Linux
	// 5.19. EBUSY: something runs in the leaf.
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// openCounters opens what the kernel has of the counters.
func (l *Lease) openCounters() error {
	c, g := &l.counters, l.group
	type item struct {
		to         **gauge
		branch     *branch
		name       string
		resettable bool
	}
	items := []item{
		{to: &c.events, branch: g.unified, name: eventsFile},
		{to: &c.cpu, branch: g.unified, name: cpuStat},
		{to: &c.pids, branch: g.pids, name: pidsCurrent},
		{to: &c.pidsPeak, branch: g.pids, name: pidsPeak},
		{to: &c.pidsEvents, branch: g.pids, name: pidsEvents},
		{to: &c.acctUsage, branch: g.acct, name: acctUsage},
		{to: &c.acctSystem, branch: g.acct, name: acctSystem},
	}
	if g.memory != nil {
		names := files(g.memory.version)
		items = append(items,
			item{to: &c.usage, branch: g.memory, name: names.memoryUsage},
			item{to: &c.peak, branch: g.memory, name: names.memoryPeak, resettable: g.features.peakReset},
			item{to: &c.oom, branch: g.memory, name: names.oomEvents})
	}
	for _, it := range items {
		if it.branch == nil {
			continue
		}
		counter, err := g.fs.OpenCounter(l.job(it.branch, it.name), it.resettable)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		*it.to = &gauge{name: l.job(it.branch, it.name), file: counter}
	}
	return nil
}

func (c *counters) close() error {
	var errs []error
	for _, g := range []*gauge{
		c.cpu, c.acctUsage, c.acctSystem, c.usage, c.peak, c.oom, c.pids, c.pidsPeak, c.pidsEvents, c.events,
	} {
		if g == nil {
			continue
		}
		if err := g.file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
