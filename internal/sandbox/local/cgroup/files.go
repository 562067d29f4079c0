package cgroup

import (
	"math"
	"strconv"
)

// Files that are there in one generation only, or called the same in both.
const (
	pidsMax     = "pids.max"
	pidsCurrent = "pids.current"
	pidsEvents  = "pids.events"
	pidsPeak    = "pids.peak"

	memoryOOMGroup   = "memory.oom.group"
	memorySwappiness = "memory.swappiness"
	memoryForceEmpty = "memory.force_empty"
	memoryReclaim    = "memory.reclaim"

	cpuStat    = "cpu.stat"
	cpuPeriod  = "cpu.cfs_period_us"
	acctUsage  = "cpuacct.usage"
	acctSystem = "cpuacct.usage_sys"

	// tasksFile takes a thread where cgroup.procs takes a process. Who writes into
	// it has one thread, and the kernel needs no lock over the whole process for it.
	tasksFile = "tasks"
)

// periodUS is the kernel's default CPU period.
const periodUS = 100_000

// generation has the names that differ.
type generation struct {
	memoryLimit, swapLimit, memoryUsage, memoryPeak, oomEvents, cpuLimit string
	attach                                                               string
	unlimited                                                            string
	version                                                              int
}

// files are the names of cgroup v1 (Documentation/admin-guide/cgroup-v1) and v2
// (admin-guide/cgroup-v2).
func files(version int) generation {
	if version == 1 {
		return generation{
			memoryLimit: "memory.limit_in_bytes", swapLimit: "memory.memsw.limit_in_bytes",
			memoryUsage: "memory.usage_in_bytes", memoryPeak: "memory.max_usage_in_bytes",
			oomEvents: "memory.oom_control", cpuLimit: "cpu.cfs_quota_us",
			attach: tasksFile, unlimited: "-1", version: 1,
		}
	}
	return generation{
		memoryLimit: "memory.max", swapLimit: "memory.swap.max",
		memoryUsage: "memory.current", memoryPeak: "memory.peak",
		oomEvents: "memory.events", cpuLimit: "cpu.max",
		attach: procsFile, unlimited: "max", version: 2,
	}
}

// value is a limit as it is written; 0 means none.
func (n generation) value(limit int64) string {
	if limit == 0 {
		return n.unlimited
	}
	return strconv.FormatInt(limit, 10)
}

// swapValue keeps a job out of the swap: v1 limits memory and swap together, v2
// swap alone.
func (n generation) swapValue(memoryBytes int64) string {
	if n.version == 1 || memoryBytes == 0 {
		return n.value(memoryBytes)
	}
	return "0"
}

// cpuValue is a share in percent of one core.
func (n generation) cpuValue(percent int64) string {
	quota := n.unlimited
	if percent != 0 {
		quota = strconv.FormatInt(percent*(periodUS/100), 10)
	}
	if n.version == 1 {
		return quota
	}
	return quota + " " + strconv.Itoa(periodUS)
}

// maxCPUShare keeps the quota inside the kernel's arithmetic (max_cfs_runtime).
const maxCPUShare = math.MaxInt32 / (periodUS / 100)
