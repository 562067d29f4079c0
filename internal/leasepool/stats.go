package leasepool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Stats is the pool at one moment.
type Stats struct {
	Capacity int
	// The leases that hold capacity, by where they stand. Their sum never exceeds
	// Capacity, except where a provider made a sandbox after it had been proven
	// that there was none.
	Creating, Abandoned, Confirming, Idle, Reserved, InUse, Resetting, Destroying, Poisoned, Quarantined int
	// Warm counts the idle leases that have served nobody.
	Warm int
	// Unclosed leases are gone while the ledger does not say so yet; they hold no
	// capacity. No sandbox that outlives the worker is made while there are 64 of
	// them, or four times Capacity where that is more.
	Unclosed int
	// Waiters are waiting for a lease now.
	Waiters int
	Totals  Totals
}

// Totals count since the start of the pool.
type Totals struct {
	// Created counts create calls; Gone those of them whose sandbox is proven gone
	// or was surely never made. The difference holds capacity.
	Created, Gone uint64
	// CreateErrors counts create calls that brought no sandbox that may be used in
	// time.
	CreateErrors uint64
	// Acquired counts leases handed out; Reused those that had served before.
	Acquired, Reused uint64
	// Waits counts callers that could not be served at once, Timeouts those that
	// were not served at all.
	Waits, Timeouts uint64
	// Evicted, Expired and Lost count idle leases that made room, were too old, or
	// ended by themselves.
	Evicted, Expired, Lost uint64
	// Quarantined counts leases that came into doubt, Reaped those of them that
	// the reaper proved gone.
	Quarantined, Reaped uint64
	// Stuck counts calls to a provider that did not return in time.
	Stuck uint64
}

// String says what holds the capacity.
func (s Stats) String() string {
	parts := []string{}
	for _, held := range []struct {
		count int
		state sandbox.LeaseState
	}{
		{s.InUse, sandbox.LeaseInUse},
		{s.Reserved, sandbox.LeaseReserved},
		{s.Creating, sandbox.LeaseCreating},
		{s.Confirming, sandbox.LeaseConfirming},
		{s.Abandoned, sandbox.LeaseAbandoned},
		{s.Idle, sandbox.LeaseIdle},
		{s.Resetting, sandbox.LeaseResetting},
		{s.Destroying, sandbox.LeaseDestroying},
		{s.Poisoned, sandbox.LeasePoisoned},
		{s.Quarantined, sandbox.LeaseQuarantined},
	} {
		if held.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", held.count, strings.ReplaceAll(held.state.String(), "_", " ")))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, "none held")
	}
	return fmt.Sprintf("capacity %d: %s", s.Capacity, strings.Join(parts, ", "))
}

// Stats returns what the pool looks like now.
func (p *Pool) Stats() Stats {
	defer p.lock()()
	return p.books.stats()
}

func (b *books) stats() Stats {
	s := Stats{
		Capacity:    b.cfg.Capacity,
		Creating:    b.states[sandbox.LeaseCreating],
		Abandoned:   b.states[sandbox.LeaseAbandoned],
		Confirming:  b.states[sandbox.LeaseConfirming],
		Reserved:    b.states[sandbox.LeaseReserved],
		Unclosed:    len(b.unclosed),
		Idle:        b.states[sandbox.LeaseIdle],
		InUse:       b.states[sandbox.LeaseInUse],
		Resetting:   b.states[sandbox.LeaseResetting],
		Destroying:  b.states[sandbox.LeaseDestroying],
		Poisoned:    b.states[sandbox.LeasePoisoned],
		Quarantined: b.states[sandbox.LeaseQuarantined],
		Waiters:     len(b.waiters),
		Totals:      b.totals,
	}
	for _, p := range b.profiles {
		s.Warm += len(b.idle[key{p, ""}])
	}
	return s
}

// Info is one lease in the books.
type Info struct {
	ID       string
	Profile  string
	Provider string
	// Tenant is empty for a lease that has served nobody.
	Tenant string
	State  sandbox.LeaseState
	// Uses counts the jobs that it was handed out for.
	Uses int
	// Born is when it was asked for, Since when it entered its state.
	Born, Since time.Time
}

// Leases lists every lease that holds capacity, the oldest first.
func (p *Pool) Leases() []Info {
	defer p.lock()()
	infos := make([]Info, 0, len(p.books.leases))
	for _, e := range p.books.leases {
		infos = append(infos, Info{
			ID: e.id, Profile: e.profile.Name, Provider: e.profile.provider, Tenant: e.tenant,
			State: e.state, Uses: e.uses, Born: e.born, Since: e.since,
		})
	}
	slices.SortFunc(infos, func(a, b Info) int {
		if c := a.Born.Compare(b.Born); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return infos
}
