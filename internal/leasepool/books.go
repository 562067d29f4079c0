package leasepool

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// lookEvery is how often idle leases are looked at: for their age, and for
// whether they are still there.
const lookEvery = time.Second

// lateAfter is how long after the end of its context a provider's call may still
// return before it counts as stuck.
const lateAfter = time.Second

// books say where every lease stands. They are guarded by the pool's mutex, call
// nothing outside, and put what is to be done outside on todo.
type books struct {
	cfg      Config
	profiles []*profile
	byName   map[string]*profile

	// leases are all that hold capacity: everything that is not proven gone.
	leases map[string]*entry
	// idle holds the idle leases of each key, the most recently used one last.
	idle map[key][]*entry
	// resetting counts the leases of each key that will soon be idle.
	resetting map[key]int
	states    [sandbox.LeaseGone + 1]int
	waiters   []*waiter // who waits longest first
	// unclosed are leases that are gone while their entry in the ledger does not say
	// so yet.
	unclosed map[string]*entry

	todo []task
	// running counts the tasks that were started and have not ended.
	running int
	// due is when the next deadline may pass.
	due time.Time
	// wake asks for a turn of Run.
	wake   bool
	closed bool
	totals Totals
}

// profile is one configured profile and what became of its create calls.
type profile struct {
	Profile
	provider string
	host     string
	// ledger says that its leases stand in the ledger.
	ledger bool
	bounds bounds
	// creating counts its leases that will soon be idle for the first time.
	creating int
	// failed is the last create error, nil after a success; no warm spare is made
	// before retryAt.
	failed  error
	retryAt time.Time
	backoff *backoff.ExponentialBackOff
}

// key is what a lease may be handed out for: a profile, and a tenant once it has
// served one.
type key struct {
	profile *profile
	tenant  string
}

// entry is one lease in the books.
type entry struct {
	id      string
	profile *profile
	state   sandbox.LeaseState
	// handle is completed by the create call's answer.
	handle sandbox.Handle
	box    sandbox.Sandbox // nil until it was made
	lost   <-chan struct{}
	tenant string
	uses   int
	fresh  bool
	born   time.Time
	since  time.Time // when it entered its state
	// deadline is when the outside call of its state counts as stuck; zero where
	// there is none.
	deadline time.Time
	doubt    Record
	settled  chan struct{}
	// intended says that it may stand in the ledger.
	intended bool
	// proof that it is gone; set before it is.
	proof sandbox.Proof
}

func (e *entry) key() key { return key{e.profile, e.tenant} }

// task is work outside the books for one lease.
type task struct {
	action sandbox.LeaseAction // zero: create
	entry  *entry
}

func newBooks(cfg Config) *books {
	b := &books{
		cfg: cfg, byName: map[string]*profile{}, leases: map[string]*entry{},
		idle: map[key][]*entry{}, resetting: map[key]int{}, unclosed: map[string]*entry{},
	}
	for _, p := range cfg.Profiles {
		can := p.Provider.Capabilities()
		kept := &profile{
			Profile: p, provider: p.Provider.Name(), host: can.Host, ledger: can.OutlivesWorker, bounds: cfg.boundsFor(can.Patience),
			backoff: &backoff.ExponentialBackOff{
				InitialInterval: 250 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
			},
		}
		b.profiles = append(b.profiles, kept)
		b.byName[p.Name] = kept
	}
	return b
}

// step takes a lease along one arrow. An arrow that does not exist means that
// the books are wrong, and then nothing that they say can be trusted.
func (b *books) step(e *entry, event sandbox.LeaseEvent, now time.Time) {
	t, err := sandbox.Next(e.state, event)
	if err != nil {
		panic(fmt.Sprintf("leasepool: lease %s: %v", e.id, err))
	}
	if t.To != t.From {
		b.leave(e)
		e.state, e.since = t.To, now
		b.enter(e, now)
	}
	for _, action := range t.Actions {
		b.act(e, action, event, now)
	}
	b.wake = b.wake || b.closed
}

func (b *books) leave(e *entry) {
	b.states[e.state]--
	switch e.state {
	case sandbox.LeaseCreating, sandbox.LeaseConfirming:
		e.profile.creating--
	case sandbox.LeaseIdle:
		k := e.key()
		b.idle[k] = slices.DeleteFunc(b.idle[k], func(other *entry) bool { return other == e })
		if len(b.idle[k]) == 0 {
			delete(b.idle, k)
		}
	case sandbox.LeaseResetting:
		if b.resetting[e.key()]--; b.resetting[e.key()] == 0 {
			delete(b.resetting, e.key())
		}
	case sandbox.LeaseAbandoned, sandbox.LeaseReserved, sandbox.LeaseInUse, sandbox.LeaseDestroying,
		sandbox.LeasePoisoned, sandbox.LeaseQuarantined, sandbox.LeaseGone:
	}
}

func (b *books) enter(e *entry, now time.Time) {
	b.states[e.state]++
	e.deadline = time.Time{}
	switch e.state {
	case sandbox.LeaseCreating:
		e.profile.creating++
		e.deadline = now.Add(e.profile.bounds.create + lateAfter)
	case sandbox.LeaseConfirming:
		e.profile.creating++
		e.deadline = e.born.Add(e.profile.bounds.create + lateAfter)
	case sandbox.LeaseAbandoned:
		e.deadline = now.Add(e.profile.bounds.create)
	case sandbox.LeaseIdle:
		b.idle[e.key()] = append(b.idle[e.key()], e)
		if b.closed {
			b.lookAt(now)
		}
		b.lookAt(now.Add(lookEvery))
	case sandbox.LeaseReserved:
		e.deadline = now.Add(b.cfg.LedgerTimeout + lateAfter)
	case sandbox.LeaseResetting:
		b.resetting[e.key()]++
		e.deadline = now.Add(e.profile.bounds.reset + lateAfter)
	case sandbox.LeaseDestroying:
		e.deadline = now.Add(e.profile.bounds.allDestroys(b.cfg.DestroyTries) + lateAfter)
	case sandbox.LeaseInUse, sandbox.LeasePoisoned, sandbox.LeaseQuarantined, sandbox.LeaseGone:
	}
	if !e.deadline.IsZero() {
		b.lookAt(e.deadline)
	}
}

func (b *books) act(e *entry, action sandbox.LeaseAction, event sandbox.LeaseEvent, now time.Time) {
	switch action {
	case sandbox.ActionConfirm:
		if !e.profile.ledger {
			b.confirmed(e, now)
			return
		}
		b.do(action, e)
	case sandbox.ActionReset, sandbox.ActionDestroy:
		b.do(action, e)
	case sandbox.ActionQuarantine:
		b.totals.Quarantined++
		e.settled = make(chan struct{})
		b.explain(e, event, now)
		b.do(action, e)
	case sandbox.ActionSettle:
		close(e.settled)
	case sandbox.ActionGiveBack:
		delete(b.leases, e.id)
		b.totals.Gone++
	case sandbox.ActionTakeBack:
		b.leases[e.id] = e
		b.totals.Gone--
	case sandbox.ActionClose:
		if e.intended {
			b.unclosed[e.id] = e
			b.do(action, e)
		}
	}
}

// explain completes the record of a lease that has just come into doubt.
func (b *books) explain(e *entry, event sandbox.LeaseEvent, now time.Time) {
	q := &e.doubt
	q.Handle, q.FirstSeen = e.handle, now
	if q.Tenant == "" {
		q.Tenant = e.tenant
	}
	if q.Reason == "" {
		q.Reason = reasonOf(e, event)
	}
	if q.Message == "" {
		q.Message = event.String()
	}
	q.Message = bounded(q.Message)
}

func reasonOf(e *entry, event sandbox.LeaseEvent) QuarantineReason {
	switch {
	case event == sandbox.EventAmbiguousStart:
		return QuarantineAmbiguousStart
	case event == sandbox.EventOwnerGone:
		return QuarantineOwnerGone
	case event == sandbox.EventResetFailed:
		return QuarantineResetFailed
	case e.box == nil:
		return QuarantineAmbiguousMake
	case event == sandbox.EventDestroyUnproven:
		return QuarantineDestroyFailed
	}
	return QuarantineUnproven
}

func (b *books) do(action sandbox.LeaseAction, e *entry) {
	b.todo = append(b.todo, task{action, e})
	b.wake = true
}

func (b *books) lookAt(t time.Time) {
	if b.due.IsZero() || t.Before(b.due) {
		b.due, b.wake = t, true
	}
}

// create starts a create call for nobody in particular.
func (b *books) create(p *profile, now time.Time) {
	id := newID()
	e := &entry{
		id: id, profile: p, state: sandbox.LeaseCreating, born: now, since: now,
		handle: sandbox.Handle{Provider: p.provider, Lease: id, Host: p.host},
	}
	b.leases[id] = e
	b.totals.Created++
	b.enter(e, now)
	b.do(0, e)
}

// newID is 128 random bits.
func newID() string {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never returns an error
	return hex.EncodeToString(bits[:])
}

// release decides about a lease that its holder gives back.
func (b *books) release(e *entry, v Verdict, now time.Time) Released {
	event := b.judge(e, v, now)
	if e.state == sandbox.LeaseInUse { // else its record is on its way already
		e.doubt = Record{Tenant: v.Tenant, Job: v.Job, Evidence: v.Proof.Evidence}
		if event == sandbox.EventUnproven || event == sandbox.EventAmbiguousStart {
			e.doubt.Reason, e.doubt.Message = v.Doubt, v.Message
		}
	}
	b.step(e, event, now)
	switch e.state {
	case sandbox.LeaseResetting:
		return Released{Disposition: Reusable}
	case sandbox.LeaseDestroying:
		return Released{Disposition: Destroyed}
	case sandbox.LeaseCreating, sandbox.LeaseAbandoned, sandbox.LeaseConfirming, sandbox.LeaseIdle,
		sandbox.LeaseReserved, sandbox.LeaseInUse, sandbox.LeasePoisoned, sandbox.LeaseQuarantined, sandbox.LeaseGone:
	}
	return Released{Disposition: Quarantined, Settled: e.settled}
}

// judge turns a verdict into an event: doubt first, then wear.
func (b *books) judge(e *entry, v Verdict, now time.Time) sandbox.LeaseEvent {
	switch {
	case v.Doubt == QuarantineAmbiguousStart:
		return sandbox.EventAmbiguousStart
	case v.Doubt != "" || !v.Proof.Proven:
		return sandbox.EventUnproven
	case v.Fresh || e.fresh || b.closed || closedNow(e.lost) ||
		e.uses >= e.profile.MaxUses || now.Sub(e.born) >= e.profile.MaxAge:
		return sandbox.EventUsedUp
	}
	return sandbox.EventReleased
}

// created notes a sandbox that was made, in time or late.
func (b *books) created(e *entry, box sandbox.Sandbox, handle sandbox.Handle, lost <-chan struct{}, now time.Time) {
	e.box, e.handle, e.lost = box, handle, lost
	e.renewDoubt(now)
	b.step(e, sandbox.EventCreated, now)
}

// renewDoubt makes the record of a lease whose create call is answered late one of a
// doubt that begins now: the record that is on its way may have been written and ended
// already, by who did not find it yet.
func (e *entry) renewDoubt(now time.Time) {
	if e.state == sandbox.LeasePoisoned {
		e.doubt.Handle, e.doubt.FirstSeen = e.handle, now
	}
}

// confirmed notes that a new sandbox may be used.
func (b *books) confirmed(e *entry, now time.Time) {
	if e.state == sandbox.LeaseConfirming {
		e.profile.failed, e.profile.retryAt = nil, time.Time{}
		e.profile.backoff.Reset()
	}
	b.step(e, sandbox.EventConfirmed, now)
}

// notCreated notes a create call without a sandbox, or with one that may not be
// used, and tells who waited for it.
func (b *books) notCreated(e *entry, event sandbox.LeaseEvent, err error, now time.Time) {
	inTime := e.state == sandbox.LeaseCreating || e.state == sandbox.LeaseConfirming
	if e.doubt.Message == "" {
		e.doubt.Message = err.Error()
	}
	if event == sandbox.EventCreateRefused {
		e.proof = neverMade(err)
	}
	if event == sandbox.EventCreateAmbiguous {
		e.renewDoubt(now)
	}
	b.step(e, event, now)
	if !inTime {
		return
	}
	p := e.profile
	if p.failed = err; !now.Before(p.retryAt) { // many that fail at once are one failure
		p.retryAt = now.Add(p.backoff.NextBackOff())
	}
	b.totals.CreateErrors++
	for i, w := range b.waiters {
		if w.profile == p && w.creating {
			b.waiters = slices.Delete(b.waiters, i, i+1)
			w.served <- grant{err: err}
			return
		}
	}
}

func neverMade(err error) sandbox.Proof {
	return sandbox.Proof{Proven: true, Evidence: []sandbox.Evidence{{Kind: sandbox.EvidenceNeverMade, Detail: bounded(err.Error())}}}
}

// retire takes an idle lease out of use if it is gone or too old, and says
// whether it did.
func (b *books) retire(e *entry, now time.Time) bool {
	switch {
	case closedNow(e.lost):
		b.totals.Lost++
		b.step(e, sandbox.EventLost, now)
	case b.closed:
		b.step(e, sandbox.EventRetired, now)
	case now.Sub(e.born) >= e.profile.MaxAge,
		now.Sub(e.since) >= e.profile.IdleTTL && !b.spare(e):
		b.totals.Expired++
		b.step(e, sandbox.EventRetired, now)
	default:
		return false
	}
	return true
}

// spare says that an idle lease is one of the warm ones of its profile.
func (b *books) spare(e *entry) bool {
	return e.tenant == "" && len(b.idle[e.key()]) <= e.profile.Warm
}

func closedNow(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// look handles everything whose time has come, and returns the leases whose
// outside call is stuck.
func (b *books) look(now time.Time) []*entry {
	if now.Before(b.due) {
		return nil
	}
	b.due = time.Time{}
	var stuck []*entry
	for _, e := range b.leases {
		if e.state == sandbox.LeaseIdle && !b.retire(e, now) {
			b.lookAt(now.Add(lookEvery))
		}
		if e.deadline.IsZero() {
			continue
		}
		if now.Before(e.deadline) {
			b.lookAt(e.deadline)
			continue
		}
		b.totals.Stuck++
		stuck = append(stuck, e)
		b.overdue(e, now)
	}
	return stuck
}

// overdue gives up on an outside call that does not return.
func (b *books) overdue(e *entry, now time.Time) {
	switch e.state {
	case sandbox.LeaseCreating:
		b.notCreated(e, sandbox.EventCreateAbandoned,
			sandbox.Errorf(sandbox.Ambiguous, "create", "no answer within %s", e.profile.bounds.create), now)
	case sandbox.LeaseAbandoned:
		b.step(e, sandbox.EventCreateUnanswered, now)
	case sandbox.LeaseConfirming:
		b.notCreated(e, sandbox.EventUnconfirmed,
			sandbox.Errorf(sandbox.Unavailable, "confirm", "the ledger did not answer within %s", e.profile.bounds.create), now)
	case sandbox.LeaseReserved:
		e.doubt.Message = "the ledger did not answer in time"
		b.step(e, sandbox.EventUnconfirmed, now)
	case sandbox.LeaseResetting:
		e.doubt.Message = "the reset did not end in time"
		b.step(e, sandbox.EventResetFailed, now)
	case sandbox.LeaseDestroying:
		e.doubt.Message = "the destroy did not end in time"
		b.step(e, sandbox.EventDestroyUnproven, now)
	case sandbox.LeaseIdle, sandbox.LeaseInUse, sandbox.LeasePoisoned, sandbox.LeaseQuarantined, sandbox.LeaseGone:
	}
}

// close ends the handing out: nobody is served any more, what is idle goes.
func (b *books) close(now time.Time) {
	b.closed, b.wake = true, true
	for _, w := range b.waiters {
		w.served <- grant{err: ErrClosed}
	}
	b.waiters = nil
	for _, e := range b.leases {
		if e.state == sandbox.LeaseIdle {
			b.retire(e, now)
		}
	}
}

// doubtAll quarantines everything that is not proven gone, at the end of the
// time for a shutdown.
func (b *books) doubtAll(now time.Time) {
	for _, e := range b.leases {
		for !e.deadline.IsZero() {
			b.overdue(e, now)
		}
		if e.state == sandbox.LeaseInUse {
			e.doubt.Message = "the worker stopped before its holder gave it back"
			b.step(e, sandbox.EventOwnerGone, now)
		}
	}
}

// disown drops what stands in the ledger.
func (b *books) disown(now time.Time) {
	for _, e := range b.leases {
		if e.profile.ledger {
			e.fresh = true // of a lease in use: it serves nobody afterwards
			b.step(e, sandbox.EventDisowned, now)
		}
	}
}

// handedOver says that nothing is left to do: every lease is gone, or the
// reaper's.
func (b *books) handedOver() bool {
	return b.closed && b.running == 0 && len(b.todo) == 0 && len(b.leases) == b.states[sandbox.LeaseQuarantined]
}

// bounds are the times of a profile's calls, longer where its provider is far away.
type bounds struct{ acquire, create, reset, destroy time.Duration }

func (c Config) boundsFor(p sandbox.Patience) bounds {
	return bounds{
		acquire: max(c.AcquireTimeout, p.Create), create: max(c.CreateTimeout, p.Create),
		reset: max(c.ResetTimeout, p.Reset), destroy: max(c.DestroyTimeout, p.Destroy),
	}
}

// allDestroys is the time that so many tries to destroy may take.
func (b bounds) allDestroys(tries int) time.Duration {
	return time.Duration(tries) * (b.destroy + 2*destroyPause)
}
