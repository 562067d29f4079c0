package leasepool

import (
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// waiter is one Acquire that could not be served at once.
type waiter struct {
	want    Want
	profile *profile
	// served takes the one answer; it has room for it.
	served chan grant
	// creating says that, as things stand, a create call is made for it.
	creating bool
}

type grant struct {
	lease *Lease
	err   error
}

// balance gives what is there to who waits longest, starts what is missing, and
// makes warm spares of what is left.
func (b *books) balance(now time.Time) {
	if b.closed {
		return
	}
	if len(b.waiters) == 0 {
		b.refill(nil, now)
		return
	}
	creates, resets := map[*profile]int{}, map[key]int{} // what earlier waiters count on
	room := b.states[sandbox.LeaseDestroying]            // soon free
	var waiting []*waiter
	for _, w := range b.waiters {
		w.creating = false
		if e := b.take(w.want, w.profile, now); e != nil {
			w.served <- grant{lease: b.hand(e, w.want, now)}
			continue
		}
		waiting = append(waiting, w)
		k := key{w.profile, w.want.Tenant}
		switch {
		case !w.want.Fresh && resets[k] < b.resetting[k]:
			resets[k]++
		case creates[w.profile] < w.profile.creating:
			creates[w.profile]++
			w.creating = true
		case len(b.leases) < b.cfg.Capacity:
			b.create(w.profile, now)
			creates[w.profile]++
			w.creating = true
		case room > 0:
			room--
		default:
			// The room of what is evicted here is its own: room stays as it is.
			b.evict(now)
		}
	}
	b.waiters = waiting
	b.refill(creates, now)
}

// refill makes warm spares of the room that is left: there is none while
// somebody waits for room.
func (b *books) refill(claimed map[*profile]int, now time.Time) {
	for _, p := range b.profiles {
		spare := len(b.idle[key{p, ""}]) + p.creating - claimed[p]
		for ; spare < p.Warm && len(b.leases) < b.cfg.Capacity; spare++ {
			if now.Before(p.retryAt) {
				b.lookAt(p.retryAt)
				break
			}
			b.create(p, now)
		}
	}
}

// take finds an idle lease for want, the most recently used one first. What it
// finds too old or gone is retired.
func (b *books) take(want Want, p *profile, now time.Time) *entry {
	if !want.Fresh && p.ReuseTenant {
		if e := b.newest(key{p, want.Tenant}, now); e != nil {
			return e
		}
	}
	return b.newest(key{p, ""}, now)
}

func (b *books) newest(k key, now time.Time) *entry {
	for n := len(b.idle[k]); n > 0; n = len(b.idle[k]) {
		e := b.idle[k][n-1]
		if !b.retire(e, now) {
			return e
		}
	}
	return nil
}

// hand chooses the holder of an idle lease. One that stands in the ledger is only
// reserved for it.
func (b *books) hand(e *entry, want Want, now time.Time) *Lease {
	if e.tenant != "" && e.tenant != want.Tenant {
		panic("leasepool: lease " + e.id + " belongs to another tenant")
	}
	if e.uses == 0 {
		b.wake = b.wake || e.profile.Warm > 0
	}
	l := &Lease{id: e.id, profile: e.profile.Name, provider: e.profile.provider, box: e.box, use: e.uses + 1, entry: e}
	b.step(e, sandbox.EventAcquired, now)
	if !e.profile.ledger {
		b.marked(e, want, now)
	}
	return l
}

// marked makes the holder of a reserved lease, and says whether it may have it:
// it may have been dropped in the meantime.
func (b *books) marked(e *entry, want Want, now time.Time) bool {
	b.step(e, sandbox.EventMarked, now)
	if e.state != sandbox.LeaseInUse {
		return false
	}
	b.totals.Acquired++
	if e.uses > 0 {
		b.totals.Reused++
	}
	e.tenant, e.fresh = want.Tenant, want.Fresh || !e.profile.ReuseTenant
	e.uses++
	e.doubt = Record{Tenant: want.Tenant}
	return true
}

// evict retires the lease that was idle for longest to make room: one that is
// bound to a tenant, or, where there is none, a warm spare.
func (b *books) evict(now time.Time) {
	var oldest *entry
	for _, idle := range b.idle {
		e := idle[0]
		if oldest == nil || before(e, oldest) {
			oldest = e
		}
	}
	if oldest != nil {
		b.totals.Evicted++
		b.step(oldest, sandbox.EventRetired, now)
	}
}

// before orders idle leases for eviction.
func before(a, b *entry) bool {
	if spareA, spareB := a.tenant == "", b.tenant == ""; spareA != spareB {
		return spareB
	}
	return a.since.Before(b.since)
}
