package wire

// Ceilings of the limits. Milliseconds stay so small that they can be counted in
// nanoseconds; all of them stay below 2^53, which every JSON reader keeps exact.
const (
	maxWallMS  = 7 * 24 * 3600 * 1000 // seven days
	maxGraceMS = 3600 * 1000          // one hour
	maxCores   = 1024
	maxBytes   = 1 << 44 // 16 TiB
	maxOutput  = 1 << 40 // 1 TiB
	maxPids    = 1 << 22 // PID_MAX_LIMIT, proc_sys_kernel(5)
	maxInodes  = 1 << 32
	maxOpen    = 1 << 20 // the kernel's default of fs.nr_open, proc_sys_fs(5)
)

// limitField is one field of Limits: where it stands and what it may be.
type limitField struct {
	name    string
	unit    string // what the number counts, for messages
	ceiling int64
	of      func(*Limits) **int64
}

// limitFields are all fields of Limits; a test holds the list complete.
func limitFields() []limitField {
	return []limitField{
		{"wall_ms", "milliseconds", maxWallMS, func(l *Limits) **int64 { return &l.WallMS }},
		{"cpu_ms", "milliseconds", maxWallMS * maxCores, func(l *Limits) **int64 { return &l.CPUMS }},
		{"memory_bytes", "bytes", maxBytes, func(l *Limits) **int64 { return &l.MemoryBytes }},
		{"pids", "processes and threads", maxPids, func(l *Limits) **int64 { return &l.Pids }},
		{"output_bytes", "bytes", maxOutput, func(l *Limits) **int64 { return &l.OutputBytes }},
		{"disk_bytes", "bytes", maxBytes, func(l *Limits) **int64 { return &l.DiskBytes }},
		{"inodes", "files", maxInodes, func(l *Limits) **int64 { return &l.Inodes }},
		{"open_files", "files", maxOpen, func(l *Limits) **int64 { return &l.OpenFiles }},
		{"cpu_share", "percent of one core", maxCores * 100, func(l *Limits) **int64 { return &l.CPUShare }},
		{"grace_ms", "milliseconds", maxGraceMS, func(l *Limits) **int64 { return &l.GraceMS }},
	}
}

// Validate checks every field that is set against 1 and the format's ceiling.
// The field of the answer begins with prefix, for instance "limits".
func (l Limits) Validate(prefix string) *Invalid {
	for _, f := range limitFields() {
		value := *f.of(&l)
		if value == nil {
			continue
		}
		if bad := wholeNumber(member(prefix, f.name), f.unit, *value, 1, f.ceiling); bad != nil {
			return bad
		}
	}
	return nil
}

// Profile is what the wire needs to know of an operator's profile: the rule by
// which a request's limits are completed and bounded.
type Profile struct {
	Name     string
	Provider string
	// Reuse is the rule where a request names none.
	Reuse Reuse
	// Default is taken where a request says nothing, Max bounds what it says. A
	// nil field of Max leaves the format's ceiling.
	Default, Max Limits
}

// Resolve returns the limits under which r runs: for each field the request's
// value, else the profile's default. One above the profile's maximum is refused
// with the field's name, never lowered: a program that gets less than it asked
// for fails in ways that nobody connects with its limits. The answer shares no
// memory with r or p.
func (p Profile) Resolve(r *Request) (Limits, *Invalid) {
	var resolved Limits
	for _, f := range limitFields() {
		asked, fallback, most := *f.of(&r.Limits), *f.of(&p.Default), *f.of(&p.Max)
		value := asked
		if value == nil {
			value = fallback
		}
		if value == nil {
			continue
		}
		field := member("limits", f.name)
		if bad := wholeNumber(field, f.unit, *value, 1, f.ceiling); bad != nil {
			return Limits{}, bad
		}
		if most != nil && *value > *most {
			return Limits{}, invalid(ReasonTooBig, field, "must be at most %d %s in the profile %s, not %d", *most, f.unit, quoted(p.Name), *value)
		}
		resolvedValue := *value
		*f.of(&resolved) = &resolvedValue
	}
	return resolved, nil
}

// wholeNumber checks a bound. Below it the field is wrong; above it is too big.
func wholeNumber(field, unit string, value, least, most int64) *Invalid {
	if value < least {
		return invalid(ReasonField, field, "must be %s, not %d", wholeNumberText(unit, least, most), value)
	}
	if value > most {
		return invalid(ReasonTooBig, field, "must be %s, not %d", wholeNumberText(unit, least, most), value)
	}
	return nil
}
