package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// maxTurns bounds how often a delivery looks at its record again because a write
// met another writer. Each turn means that somebody made progress; one that loses
// this often comes back with the next delivery.
const maxTurns = 5

// deliver works on one message until nothing is left to do for it here.
func (c *Consumer) deliver(work context.Context, queue string, m *nats.Msg, md *nats.MsgMetadata) {
	c.count.delivered.Add(1)
	if md.NumDelivered > 1 {
		c.count.redelivered.Add(1)
	}
	d := c.read(work, queue, m, md)
	if other, ok := c.enter(d); !ok {
		d.end()
		// The same message once more: whoever works on it keeps it alive and ends
		// it, an answer for this delivery would be one for that one too.
		if other.seq != d.seq {
			d.giveBack(work, c.retryDelay(d))
		}
		return
	}
	defer c.leave(d)
	if c.stopping.Load() {
		d.giveBack(work, 0)
		return
	}
	if !d.named() {
		c.bury(work, d)
		return
	}
	c.work(work, d)
}

// work looks at the record and acts on what it says, again where it changed
// meanwhile.
func (c *Consumer) work(ctx context.Context, d *delivery) {
	aged := d.queued > c.cfg.ResultRetention-c.cfg.RetentionMargin
	// The first delivery of a young message has no record, as a rule: creating it
	// is the proof, and a read before would cost each job a round trip.
	known := d.delivered > 1 || aged
	for range maxTurns {
		var stored *bus.Stored
		if known {
			var err error
			if stored, err = c.record(ctx, d); err != nil {
				c.log.Warn().Err(err).Str("job", d.key).Msg("run record not read, job given back")
				break
			}
		}
		known = true
		if !c.act(ctx, d, c.resolve(ctx, d, stored, aged), stored) {
			return
		}
	}
	d.giveBack(ctx, c.retryDelay(d))
}

// record reads the record from the leader, nil when there is none.
func (c *Consumer) record(ctx context.Context, d *delivery) (*bus.Stored, error) {
	ctx, cancel := context.WithTimeout(ctx, d.ackWait/beatsPerWait)
	defer cancel()
	stored, err := c.bus.Runs().Get(ctx, d.job.Tenant, d.job.ID)
	if errors.Is(err, bus.ErrNoRecord) {
		return nil, nil
	}
	return stored, err
}

// resolve decides, and asks the owner of a claim where the decision needs it.
func (c *Consumer) resolve(ctx context.Context, d *delivery, stored *bus.Stored, aged bool) decision {
	f := facts{
		seq: d.seq, digest: d.digest, invalid: d.invalid, aged: aged, attempts: 1,
		patience: d.ackWait + c.cfg.Margin,
	}
	if r := d.request; r != nil {
		f.late = r.Deadline != nil && time.Now().After(*r.Deadline)
		f.ifLost, f.attempts = r.Retry.IfLost, r.MaxAttempts()
	}
	var owner sight
	if stored != nil && stored.Record.State == wire.RunClaimed {
		var ok bool
		if owner.age, ok = c.age(ctx, d, stored); !ok {
			return decision{step: stepWait, delay: c.retryDelay(d)}
		}
	}
	next := decide(f, stored, owner)
	if next.step != stepProbe {
		return next
	}
	if !c.silent(ctx, d, stored.Record) {
		return decision{step: stepWait, delay: c.retryDelay(d)}
	}
	owner.silent = true
	return decide(f, stored, owner)
}

// age is how long ago the record was written, by the leader's clock.
func (c *Consumer) age(ctx context.Context, d *delivery, stored *bus.Stored) (time.Duration, bool) {
	ctx, cancel := context.WithTimeout(ctx, d.ackWait/beatsPerWait)
	defer cancel()
	now, err := c.bus.ServerTime(ctx)
	if err != nil {
		c.log.Warn().Err(err).Str("job", d.key).Msg("the server's clock is not known, job given back")
		return 0, false
	}
	return now.Sub(stored.Time), true
}

// act does what was decided. True means: look at the record again.
func (c *Consumer) act(ctx context.Context, d *delivery, next decision, stored *bus.Stored) (again bool) {
	switch next.step {
	case stepRun:
		return c.attempt(ctx, d, next.attempt, next.base)
	case stepEnd:
		return c.conclude(ctx, d, final{result: c.verdict(d, next), expect: next.base, dead: d.invalid})
	case stepClose:
		return c.closeOther(ctx, d, next, stored)
	case stepRepeat:
		c.repeat(ctx, d, stored.Record)
	case stepRefuse:
		c.refuse(ctx, d)
	case stepWait:
		// A claim that may lapse soon is looked at then, others from time to time.
		d.giveBack(ctx, jitter(min(next.delay, d.ackWait/beatsPerWait))+time.Millisecond)
	case stepLeave:
		c.noteVersion(d)
		d.giveBack(ctx, jitter(c.cfg.LongDelay))
	case stepProbe: // resolved before
	}
	return false
}

// noteVersion says once for each version that somebody sends it.
func (c *Consumer) noteVersion(d *delivery) {
	what := "a newer run record"
	if d.future() {
		what = d.invalid.Message
	}
	c.mu.Lock()
	known := c.versions[what] || len(c.versions) >= maxVersions
	if !known {
		c.versions[what] = true
	}
	c.mu.Unlock()
	if !known {
		c.log.Warn().Str("job", d.key).Str("why", what).Msg("left for newer workers")
	}
}

// retryDelay is the delay of a message that comes back because something does
// not work now. It grows with each delivery.
func (c *Consumer) retryDelay(d *delivery) time.Duration {
	const most = 6 // doublings
	delay := c.cfg.RetryDelay << min(max(d.delivered, 1)-1, most)
	return jitter(min(delay, 60*c.cfg.RetryDelay)) + time.Millisecond
}

// attempt runs one attempt on top of the record with sequence base. True means
// that somebody else's record stands there.
func (c *Consumer) attempt(ctx context.Context, d *delivery, number int, base uint64) (again bool) {
	cl := newClaim(d, number, base)
	d.attach(cl)
	if c.stopping.Load() {
		d.endUnclaimed()
	}
	out := c.bus.NewOutput(bus.OutputConfig{Job: d.job, Attempt: number, Mode: d.mode, Reply: d.reply, Trace: d.trace})
	defer out.Discard()
	outcome := c.handler.Handle(d.ctx, run.Attempt{
		Job: d.job, Request: d.request, Number: number, Queued: d.queued, Mode: d.mode,
		Hurry: d.hurry.Done(),
	}, cl, out)
	cause := context.Cause(d.ctx)
	own := cl.end()
	switch {
	case own.hold == holdFenced:
		return false // neither a final nor an answer for the message
	case outcome.Abandoned && own.opened:
		c.log.Error().Err(outcome.Err).Str("job", d.key).Msg("handler abandoned a run that it had started")
		outcome = run.Outcome{Result: lost(wire.ReasonInternal, wire.StartYes, "abandoned after its start"), Settled: outcome.Settled}
	case outcome.Abandoned && own.hold == holdLost:
		return true
	case outcome.Abandoned && (own.last || errors.Is(cause, run.ErrCancelled)):
		outcome = run.Outcome{
			Result:  wire.Result{Outcome: wire.Cancelled, StartState: wire.StartNo, Message: "cancelled before the start"},
			Settled: outcome.Settled,
		}
	case outcome.Abandoned:
		c.handBack(ctx, d, cl, own, handBack{attempt: number, at: errors.Is(cause, run.ErrShutdown), err: outcome.Err})
		return false
	}
	return c.ended(ctx, d, cl, own, out, outcome, cause)
}

// ended makes the decision about an attempt that has a result.
func (c *Consumer) ended(ctx context.Context, d *delivery, cl *claim, own held, out *bus.Output, outcome run.Outcome, cause error) (again bool) {
	r := outcome.Result
	shutdown := errors.Is(cause, run.ErrShutdown)
	if shutdown && r.Outcome == wire.Cancelled && !own.last {
		r.Outcome, r.Reason, r.Message = wire.Lost, wire.ReasonShutdown, "ended by its worker's shutdown"
	}
	if r.Outcome == wire.Lost && !own.last && d.request.Retry.IfLost && cl.attempt < d.request.MaxAttempts() {
		c.awaitSettled(ctx, d, outcome.Settled)
		c.handBack(ctx, d, cl, own, handBack{attempt: cl.attempt + 1, at: shutdown, err: errors.New(r.Message)})
		return false
	}
	c.identify(d, &r, cl.attempt)
	if d.mode == wire.OutputStored || d.mode == wire.OutputBoth || d.reply == "" {
		c.flush(ctx, d, out, &r)
	}
	again = c.conclude(ctx, d, final{
		result: r, token: cl.token, lease: own.lease, expect: own.seq, out: out, settled: outcome.Settled,
	})
	if again && own.hold == holdOwned {
		// The record was ours and is not any more: the job is another's.
		c.count.fenced.Add(1)
		c.log.Warn().Str("job", d.key).Int("attempt", cl.attempt).Msg("taken over before its end was recorded")
		return false
	}
	return again
}

// flush waits for the confirmation of stored output, and declares what is lost.
// Output on a reply subject needs no wait here: it is repeated until it is
// confirmed, in order and before the result.
func (c *Consumer) flush(ctx context.Context, d *delivery, out *bus.Output, r *wire.Result) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.FlushTimeout)
	defer cancel()
	gone, err := out.Flush(ctx)
	if err != nil {
		c.log.Warn().Err(err).Str("job", d.key).Msg("output not confirmed in time")
	}
	if len(gone) > 0 {
		r.Output.Truncated = true
		r.Output.LostRanges = joinRanges(append(gone, r.Output.LostRanges...))
	}
}

// handBack is how a job returns to the queue.
type handBack struct {
	attempt int  // the next one's number
	at      bool // at once, not after a delay
	err     error
}

// handBack returns a job that will be tried again: its record, where we have one,
// becomes released, then the message goes back. A job that is somebody else's by
// now is left alone.
func (c *Consumer) handBack(ctx context.Context, d *delivery, cl *claim, own held, back handBack) {
	delay := c.retryDelay(d)
	if back.at {
		delay = 0
	}
	c.count.handedBack.Add(1)
	c.log.Info().Err(back.err).Str("job", d.key).Int("attempt", cl.attempt).Dur("delay", delay).Msg("job goes back to the queue")
	if own.hold == holdOwned || own.hold == holdUnknown {
		if !c.release(ctx, d, cl, own, back.attempt) {
			return
		}
	}
	d.giveBack(ctx, delay)
}

// release writes the released record over ours. False means that the message must
// be left alone: the record is another's, or it could not be written.
func (c *Consumer) release(ctx context.Context, d *delivery, cl *claim, own held, attempt int) bool {
	rec := wire.RunRecord{
		V: wire.Version, State: wire.RunReleased, Attempt: attempt, Queue: d.job.Queue, Worker: c.cfg.Worker.ID,
		Token: cl.token, JobSeq: d.seq, Digest: d.digest,
	}
	doubt, seq := own.hold == holdUnknown, own.seq
	pause := retryPause{}
	for {
		err := c.tryRelease(ctx, d, cl, rec, &seq, doubt)
		switch {
		case err == nil:
			return true
		case errors.Is(err, bus.ErrConflict):
			return doubt // a claim that never was may be given back, a lost one not
		}
		if !pause.wait(ctx) {
			c.unsettle(d, "its claim could not be released: "+err.Error())
			return false
		}
	}
}

// tryRelease is one try. seq is the record's sequence, and is corrected when it
// turns out to be another of our own writes'.
func (c *Consumer) tryRelease(ctx context.Context, d *delivery, cl *claim, rec wire.RunRecord, seq *uint64, doubt bool) error {
	ctx, cancel := context.WithTimeout(ctx, d.ackWait/beatsPerWait)
	defer cancel()
	if !doubt {
		_, err := c.bus.Runs().Update(ctx, d.job.Tenant, d.job.ID, rec, *seq)
		if err == nil || !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	found, ours, err := cl.reread(ctx)
	if err != nil {
		return err
	}
	if !ours || doubt && found == 0 {
		return bus.ErrConflict
	}
	*seq = found
	_, err = c.bus.Runs().Update(ctx, d.job.Tenant, d.job.ID, rec, found)
	return err
}

// lost is the result of a job whose end is not known.
func lost(reason wire.Reason, start wire.StartState, message string) wire.Result {
	return wire.Result{Outcome: wire.Lost, Reason: reason, StartState: start, Message: message}
}
