package wire

import (
	"maps"
	"slices"
)

// Admit says what a valid request gets: its profile, by name or by default, and
// its effective limits. It refuses what the profiles do not offer, and what the
// format has and this version does not do: that is refused, never ignored.
// Gateways ask before a request is queued, workers before it is run.
func Admit[P any](r *Request, profiles map[string]P, of func(P) Profile, byDefault string) (P, Limits, *Invalid) {
	var none P
	if bad := unsupported(r); bad != nil {
		return none, Limits{}, bad
	}
	name := r.Profile
	if name == "" {
		name = byDefault
	}
	found, ok := profiles[name]
	if !ok {
		return none, Limits{}, invalid(ReasonProfile, "profile", "no profile %s here; there are %v", quoted(name), slices.Sorted(maps.Keys(profiles)))
	}
	p := of(found)
	if p.Reuse == ReuseNever && r.Lease.Reuse == ReuseTenant {
		return none, Limits{}, invalid(ReasonField, "lease.reuse", "profile %s never reuses a lease; leave it out or say %q", quoted(p.Name), ReuseNever)
	}
	limits, bad := p.Resolve(r)
	if m := limits.MemoryBytes; bad == nil && m != nil && *m < leastMemory {
		bad = invalid(ReasonField, "limits.memory_bytes", "must be at least %d bytes, not %d: less does not hold what starts a program", leastMemory, *m)
	}
	return found, limits, bad
}

// leastMemory holds what starts a program, with the longest arguments and
// environment (measured: below 2 MiB). With less, the start fails before the
// program is executed, on every worker and for ever.
const leastMemory = 4 << 20

// unsupported names the first field that this version does not act on.
func unsupported(r *Request) *Invalid {
	for _, f := range []struct {
		set   bool
		field string
	}{
		{r.NotBefore != nil, "not_before"},
		{r.Priority != nil, "priority"},
	} {
		if f.set {
			return invalid(ReasonUnsupported, f.field, "not offered by this version; leave it out")
		}
	}
	return nil
}
