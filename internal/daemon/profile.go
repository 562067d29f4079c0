package daemon

import (
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/executor"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// wireLimits puts configured limits into a request's form; zero is absent.
func wireLimits(l config.Limits) wire.Limits {
	some := func(n int64) *int64 {
		if n == 0 {
			return nil
		}
		return &n
	}
	return wire.Limits{
		WallMS: some(l.Wall.Milliseconds()), GraceMS: some(l.Grace.Milliseconds()), CPUMS: some(l.CPU.Milliseconds()),
		MemoryBytes: some(l.MemoryBytes), OutputBytes: some(l.OutputBytes), DiskBytes: some(l.DiskBytes),
		Inodes: some(l.Inodes), Pids: some(l.Pids), OpenFiles: some(l.OpenFiles), CPUShare: some(l.CPUShare),
	}
}

func wireProfile(p config.Profile) wire.Profile {
	return wire.Profile{
		Name: p.Name, Provider: p.Provider, Reuse: wire.Reuse(p.Reuse),
		Default: wireLimits(p.Default), Max: wireLimits(p.Max),
	}
}

// wireProfiles are all profiles as a gateway, which knows no host, sees them.
func wireProfiles(cfg *config.Config) map[string]wire.Profile {
	profiles := make(map[string]wire.Profile, len(cfg.Profiles))
	for name, p := range cfg.Profiles {
		profiles[name] = wireProfile(p)
	}
	return profiles
}

// sandboxLimits are the maxima under which a profile's sandboxes are made. What
// the provider cannot limit is left out.
func sandboxLimits(l config.Limits, can sandbox.Enforced) sandbox.Limits {
	only := func(ok bool, n int64) int64 {
		if !ok {
			return 0
		}
		return n
	}
	limits := sandbox.Limits{
		MemoryBytes: only(can.Memory, l.MemoryBytes), Pids: only(can.Pids, l.Pids), DiskBytes: only(can.Disk, l.DiskBytes),
		Inodes: only(can.Inodes, l.Inodes), OpenFiles: only(can.OpenFiles, l.OpenFiles), CPUShare: only(can.CPUShare, l.CPUShare),
	}
	if can.CPU {
		limits.CPU = l.CPU
	}
	return limits
}

// poolProfile is p as the lease pool makes sandboxes from it.
func poolProfile(p config.Profile, provider sandbox.Provider) leasepool.Profile {
	can := provider.Capabilities()
	return leasepool.Profile{
		Name: p.Name, Provider: provider,
		Spec:        sandbox.Spec{Profile: p.Name, Root: p.Root, Shape: p.Shape, Limits: sandboxLimits(p.Max, can.Enforces)},
		ReuseTenant: p.Reuse == string(wire.ReuseTenant) && can.Reset,
		Warm:        p.Warm, MaxUses: p.MaxUses, MaxAge: p.MaxAge, IdleTTL: p.IdleTTL,
	}
}

// executorProfile is p as the executor offers it. A default that the provider
// cannot enforce is taken away, so that a request that names no such limit runs;
// one that names it is refused. requireIsolation has already refused where that is
// more than the operator accepts.
func executorProfile(p config.Profile, caps sandbox.Capabilities, log zerolog.Logger) executor.Profile {
	out := executor.Profile{Profile: wireProfile(p), Capabilities: caps}
	d := &out.Default
	for _, f := range []struct {
		name string
		can  bool
		at   **int64
	}{
		{"cpu_ms", caps.Enforces.CPU, &d.CPUMS},
		{"memory_bytes", caps.Enforces.Memory, &d.MemoryBytes},
		{"pids", caps.Enforces.Pids, &d.Pids},
		{"disk_bytes", caps.Enforces.Disk, &d.DiskBytes},
		{"inodes", caps.Enforces.Inodes, &d.Inodes},
		{"open_files", caps.Enforces.OpenFiles, &d.OpenFiles},
		{"cpu_share", caps.Enforces.CPUShare, &d.CPUShare},
	} {
		if *f.at != nil && !f.can {
			*f.at = nil
			log.Warn().Str("profile", p.Name).Str("limit", f.name).Str("why", caps.Unenforced[f.name]).
				Msg("this host cannot enforce the profile's default limit, jobs run without it")
		}
	}
	return out
}
