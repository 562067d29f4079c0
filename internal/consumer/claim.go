package consumer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// beatsPerWait is how many heartbeats fall into one ack wait: three may be lost.
const beatsPerWait = 4

// holding is how far a claim is.
type holding int

const (
	holdNone     holding = iota + 1 // nothing was written
	holdClaiming                    // the claim is on its way
	holdOwned                       // the record is ours
	holdLost                        // somebody else's record stands there
	holdUnknown                     // the claim may stand there
	holdFenced                      // it was ours and lapsed, or was taken over
)

// claim is the ownership of one attempt. It is the run.Gate that the handler
// gets.
type claim struct {
	d       *delivery
	attempt int
	token   string
	// lapse is after how long without an acknowledged renewal the run is ended.
	lapse time.Duration
	// writes are the claim and the renewals that are in flight.
	writes sync.WaitGroup

	mu       sync.Mutex
	hold     holding
	shut     bool // nothing more may be written: the attempt ended, or must
	over     bool // the handler has returned
	opened   bool // the start gate was opened
	last     bool // the publisher was told that the job ends here
	lease    string
	seq      uint64 // of the record that we replace next, 0 for none
	renewals int
	renewed  time.Time // when the last acknowledged write was sent
	renewAt  time.Time
	renewing bool
}

// newClaim makes the claim of an attempt that replaces the record with sequence
// base (0 for none).
func newClaim(d *delivery, attempt int, base uint64) *claim {
	cfg := d.c.cfg
	return &claim{
		d: d, attempt: attempt, token: rand.Text(), seq: base, hold: holdNone,
		lapse: d.ackWait - cfg.Margin - cfg.KillTime,
	}
}

// errGoingBack is why a claim is refused once its worker stops.
var errGoingBack = errors.New("the worker stops, the job goes back to the queue")

// Claim implements run.Gate.
func (cl *claim) Claim(ctx context.Context, lease string) error {
	cl.mu.Lock()
	if cl.shut || cl.hold != holdNone {
		cl.mu.Unlock()
		return errGoingBack
	}
	cl.hold, cl.lease = holdClaiming, lease
	cl.writes.Add(1)
	defer cl.writes.Done()
	rec, expect := cl.record(wire.RunClaimed), cl.seq
	cl.mu.Unlock()

	// The write is not cut short with the preparation: its outcome must be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cl.d.ackWait/beatsPerWait)
	defer cancel()
	sent := time.Now()
	seq, err := cl.d.c.bus.Runs().Update(ctx, cl.d.job.Tenant, cl.d.job.ID, rec, expect)

	cl.mu.Lock()
	defer cl.mu.Unlock()
	switch {
	case err == nil:
		cl.hold = holdOwned
		cl.acknowledged(seq, sent)
		return nil
	case errors.Is(err, bus.ErrConflict):
		cl.hold = holdLost
	default:
		cl.hold = holdUnknown
	}
	return fmt.Errorf("claim the job: %w", err)
}

// Started implements run.Gate.
func (cl *claim) Started() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.opened = true
}

// record is the claim's record. cl.mu is held.
func (cl *claim) record(state wire.RunState) wire.RunRecord {
	return wire.RunRecord{
		V: wire.Version, State: state, Attempt: cl.attempt, Queue: cl.d.job.Queue,
		Worker: cl.d.c.cfg.Worker.ID, Token: cl.token, Lease: cl.lease, Started: cl.opened,
		JobSeq: cl.d.seq, Digest: cl.d.digest, Renewals: cl.renewals,
	}
}

// acknowledged books a write that the leader acknowledged. cl.mu is held.
func (cl *claim) acknowledged(seq uint64, sent time.Time) {
	cl.seq, cl.renewed = seq, sent
	cl.renewAt = sent.Add(cl.d.ackWait / beatsPerWait)
}

// forbid keeps a claim that has not begun from beginning; false means that it has
// begun.
func (cl *claim) forbid() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.hold != holdNone {
		return false
	}
	cl.shut = true
	return true
}

// cancelled notes the publisher's word while the attempt goes on, so that it can
// still be kept: whatever else ends the attempt, it is the last one.
func (cl *claim) cancelled() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.over || cl.hold == holdFenced || cl.hold == holdLost {
		return false
	}
	cl.last = true
	return true
}

// owns says whether the job is ours as far as we know.
func (cl *claim) owns() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.hold == holdOwned
}

// held is what is left of a claim when its attempt has ended.
type held struct {
	hold   holding
	opened bool
	last   bool
	seq    uint64
	lease  string
}

// end stops the renewals and waits for the one that is in flight.
func (cl *claim) end() held {
	cl.mu.Lock()
	cl.shut, cl.over = true, true
	cl.mu.Unlock()
	cl.writes.Wait()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return held{hold: cl.hold, opened: cl.opened, last: cl.last, seq: cl.seq, lease: cl.lease}
}

// tend is called by the keeper: it ends a run whose ownership lapsed and starts
// the renewal that is due.
func (cl *claim) tend(now time.Time) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.shut || cl.hold != holdOwned {
		return
	}
	switch lapsed(now.Sub(cl.renewed), now.Round(0).Sub(cl.renewed.Round(0)), cl.lapse) {
	case lapseSure:
		cl.fence("no renewal was acknowledged in time")
	case lapseMaybe:
		// The clocks disagree: the host slept, or its clock was set. The leader
		// knows whether the job is still ours.
		cl.renew(now, true)
	case lapseNot:
		if !now.Before(cl.renewAt) {
			cl.renew(now, false)
		}
	}
}

// lapse says whether an ownership is over.
type lapse int

const (
	lapseNot lapse = iota + 1
	lapseMaybe
	lapseSure
)

// lapsed compares the time since the last renewal with its limit, on both clocks:
// the monotonic one stands still while a machine sleeps, the wall clock can be
// set.
func lapsed(monotonic, wall, limit time.Duration) lapse {
	switch {
	case monotonic >= limit:
		return lapseSure
	case wall >= limit:
		return lapseMaybe
	}
	return lapseNot
}

// renew starts a renewal unless one is in flight. cl.mu is held.
func (cl *claim) renew(now time.Time, doubt bool) {
	if cl.renewing {
		return
	}
	cl.renewing = true
	cl.renewals++
	rec, expect := cl.record(wire.RunClaimed), cl.seq
	cl.writes.Go(func() { cl.write(rec, expect, now, doubt) })
}

// write sends one renewal.
func (cl *claim) write(rec wire.RunRecord, expect uint64, sent time.Time, doubt bool) {
	d := cl.d
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), d.ackWait/(2*beatsPerWait))
	defer cancel()
	seq, err := d.c.bus.Runs().Update(ctx, d.job.Tenant, d.job.ID, rec, expect)
	conflict, ours := errors.Is(err, bus.ErrConflict), true
	if conflict {
		seq, ours, err = cl.reread(ctx)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.renewing = false
	switch {
	case err == nil && !conflict:
		cl.acknowledged(seq, sent)
	case err == nil && ours:
		// An earlier renewal of ours, whose answer was lost. It renewed the record
		// then, not now: renew again at once.
		cl.seq, cl.renewAt = seq, time.Now()
	case err == nil:
		cl.fence("the job was taken over")
	case doubt:
		cl.fence("it cannot be known whether the job is still ours")
	default:
		d.c.count.missedBeats.Add(1)
		cl.renewAt = time.Now().Add(d.ackWait / (4 * beatsPerWait))
	}
}

// reread looks for our own record at the leader. A record that is gone (somebody
// purged it) is nobody else's: it is ours to create again, against sequence 0.
func (cl *claim) reread(ctx context.Context) (seq uint64, ours bool, err error) {
	s, err := cl.d.c.bus.Runs().Get(ctx, cl.d.job.Tenant, cl.d.job.ID)
	switch {
	case errors.Is(err, bus.ErrNoRecord):
		return 0, true, nil
	case err != nil:
		return 0, false, err
	case s.Record.Token == cl.token && s.Record.State == wire.RunClaimed:
		return s.Seq, true, nil
	}
	return 0, false, nil
}

// fence ends the run: the job may be another's. cl.mu is held.
func (cl *claim) fence(why string) {
	if cl.shut || cl.hold != holdOwned {
		return
	}
	cl.hold = holdFenced
	cl.d.c.count.fenced.Add(1)
	cl.d.c.log.Warn().Str("job", cl.d.key).Int("attempt", cl.attempt).Str("why", why).Msg("run fenced")
	cl.d.cut(run.ErrFenced)
}
