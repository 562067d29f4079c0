package executor

import (
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// unenforceable is the name of the first limit that is set and that the provider
// cannot enforce, with the reason. A limit that is accepted is enforced.
func unenforceable(l wire.Limits, c sandbox.Capabilities) (field, why string) {
	for _, f := range []struct {
		value    *int64
		enforced bool
		name     string
	}{
		{l.CPUMS, c.Enforces.CPU, "cpu_ms"},
		{l.MemoryBytes, c.Enforces.Memory, "memory_bytes"},
		{l.Pids, c.Enforces.Pids, "pids"},
		{l.DiskBytes, c.Enforces.Disk, "disk_bytes"},
		{l.Inodes, c.Enforces.Inodes, "inodes"},
		{l.OpenFiles, c.Enforces.OpenFiles, "open_files"},
		{l.CPUShare, c.Enforces.CPUShare, "cpu_share"},
	} {
		if f.value != nil && !f.enforced {
			why := c.Unenforced[f.name]
			if why == "" {
				why = "the provider does not offer it"
			}
			return f.name, why
		}
	}
	return "", ""
}

// providerLimits are the limits that the provider enforces.
func providerLimits(l wire.Limits) sandbox.Limits {
	return sandbox.Limits{
		CPU:         time.Duration(value(l.CPUMS)) * time.Millisecond,
		MemoryBytes: value(l.MemoryBytes),
		Pids:        value(l.Pids),
		DiskBytes:   value(l.DiskBytes),
		Inodes:      value(l.Inodes),
		OpenFiles:   value(l.OpenFiles),
		CPUShare:    value(l.CPUShare),
	}
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// The limits that are the executor's own, for a profile without a default: no
// job is ever unlimited.
const (
	fallbackWall   = time.Minute
	fallbackGrace  = 2 * time.Second
	fallbackOutput = 16 << 20
)

func (at *attempt) wall() time.Duration  { return millisOr(at.limits.WallMS, fallbackWall) }
func (at *attempt) grace() time.Duration { return millisOr(at.limits.GraceMS, fallbackGrace) }

func (at *attempt) outputLimit() int64 {
	if at.limits.OutputBytes == nil {
		return fallbackOutput
	}
	return *at.limits.OutputBytes
}

func millisOr(ms *int64, d time.Duration) time.Duration {
	if ms == nil {
		return d
	}
	return time.Duration(*ms) * time.Millisecond
}

func millis(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}
