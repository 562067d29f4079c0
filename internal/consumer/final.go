package consumer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// recordRoom is what a run record needs beside its result: a few tokens and
// numbers.
const recordRoom = 2 << 10

// final is how a job ends.
type final struct {
	result wire.Result
	// token and lease are of our claim, empty where there was none.
	token, lease string
	// expect is the sequence of the record to replace, 0 for none.
	expect uint64
	// out is the attempt's output, nil where nothing ran.
	out *bus.Output
	// settled is closed when the acknowledgement may go out; nil for at once.
	settled <-chan struct{}
	// dead says why the message is copied to the dead letters; nil for not.
	dead *wire.Invalid
}

// conclude ends a job, in this order: the record, the result, the dead letter,
// the quarantine record, the acknowledgement. Each is repeated until it is
// acknowledged; a worker that dies in between leaves the record, and the next
// delivery goes on from there. True means that another's record stands there:
// nothing was published.
func (c *Consumer) conclude(ctx context.Context, d *delivery, f final) (again bool) {
	result, seq, err := c.recordDone(ctx, d, f)
	switch {
	case errors.Is(err, bus.ErrConflict):
		return true
	case err != nil:
		c.unsettle(d, "its result could not be recorded: "+err.Error())
		return false
	}
	c.count.final(f.result.Outcome)
	if !c.publish(ctx, d, f.result.Attempt, f.out, result, seq) || !c.copyDead(ctx, d, f.dead) {
		return false
	}
	c.awaitSettled(ctx, d, f.settled)
	c.finishMessage(ctx, d)
	return false
}

// finishMessage acknowledges what is decided and published.
func (c *Consumer) finishMessage(ctx context.Context, d *delivery) {
	if !d.acknowledge(ctx) && ctx.Err() != nil {
		c.unsettle(d, "its acknowledgement was not confirmed")
	}
}

// recordDone writes the decision into the record, and stays with it: only a
// record that is surely another's ends it, with bus.ErrConflict. It returns the
// bytes that were written and the event sequence of the result.
func (c *Consumer) recordDone(ctx context.Context, d *delivery, f final) ([]byte, uint64, error) {
	result := c.encode(d, &f.result)
	slimmed := len(result) > wire.MaxRecordBytes-recordRoom
	if slimmed {
		result = c.slim(d, &f.result)
	}
	rec := wire.RunRecord{
		V: wire.Version, State: wire.RunDone, Attempt: f.result.Attempt, Queue: d.job.Queue, Worker: c.cfg.Worker.ID,
		Token: f.token, Lease: f.lease, JobSeq: d.seq, Digest: d.digest,
	}
	expect, pause := f.expect, retryPause{}
	for {
		rec.Result = result
		err := c.update(ctx, d, rec, expect)
		switch {
		case err == nil:
			c.broker.wrote(len(result))
			return result, resultSeq(&f.result), nil
		case errors.Is(err, bus.ErrConflict):
			own, getErr := c.ownRecord(ctx, d, rec)
			if getErr == nil && own == nil {
				return nil, 0, err
			}
			if getErr == nil && own.Record.State == wire.RunDone {
				return result, resultSeq(&f.result), nil
			}
			if getErr == nil {
				expect = own.Seq // an earlier renewal of ours, whose answer was lost
				continue
			}
			err = getErr
		case errors.Is(err, bus.ErrRecordTooBig) && !slimmed, errors.Is(err, bus.ErrStreamFull) && !slimmed && hasInline(&f.result):
			// A full stream may still have room for the decision itself.
			result, slimmed = c.slim(d, &f.result), true
			continue
		}
		if pause.loud() {
			c.log.Warn().Err(err).Str("job", d.key).Msg("result not recorded, trying again")
		}
		if !pause.wait(ctx) {
			return nil, 0, err
		}
	}
}

// update is one bounded try to write the record.
func (c *Consumer) update(ctx context.Context, d *delivery, rec wire.RunRecord, expect uint64) error {
	ctx, cancel := context.WithTimeout(ctx, d.ackWait/beatsPerWait)
	defer cancel()
	_, err := c.bus.Runs().Update(ctx, d.job.Tenant, d.job.ID, rec, expect)
	return err
}

// ownRecord is the record that stands there when it is of our own claim, or the
// very decision that we are writing; nil when it is another's.
func (c *Consumer) ownRecord(ctx context.Context, d *delivery, rec wire.RunRecord) (*bus.Stored, error) {
	stored, err := c.record(ctx, d)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		// Somebody purged it: nobody else's, and to be created against sequence 0.
		return &bus.Stored{Record: wire.RunRecord{State: wire.RunClaimed}}, nil
	}
	found := stored.Record
	switch {
	case found.State == wire.RunDone && found.JobSeq == rec.JobSeq && found.Token == rec.Token && bytes.Equal(found.Result, rec.Result):
		return stored, nil
	case found.State == wire.RunClaimed && rec.Token != "" && found.Token == rec.Token:
		return stored, nil
	}
	return nil, nil
}

// encode is the result's one form. A result that breaks a rule of its format is
// our own fault, and still ends the job.
func (c *Consumer) encode(d *delivery, r *wire.Result) []byte {
	data, err := wire.EncodeResult(r)
	if err == nil {
		return data
	}
	c.log.Error().Err(err).Str("job", d.key).Msg("result breaks its format")
	*r = wire.Result{
		Attempt: r.Attempt, Outcome: wire.Lost, Reason: wire.ReasonInternal, StartState: wire.StartMaybe,
		Message: wire.Message("the result broke its format: %v", err), Output: wire.OutputSummary{LastSeq: r.Output.LastSeq},
	}
	c.identify(d, r, r.Attempt)
	if data, err = wire.EncodeResult(r); err != nil {
		panic(fmt.Sprintf("a result of constants breaks its format: %v", err))
	}
	return data
}

// slim is the result without what may be left out.
func (c *Consumer) slim(d *delivery, r *wire.Result) []byte {
	*r = *r.WithoutInline()
	data := c.encode(d, r)
	c.log.Warn().Str("job", d.key).Int("bytes", len(data)).Msg("result was too big, inline output left out")
	return data
}

func hasInline(r *wire.Result) bool { return r.Stdout != nil || r.Stderr != nil }

// resultSeq is the event sequence of a result: behind the attempt's last event, 0
// for one without events. It follows from the result alone, so that a repeated
// one has the same.
func resultSeq(r *wire.Result) uint64 {
	if r.Output.LastSeq == 0 {
		return 0
	}
	return r.Output.LastSeq + 1
}

// publish brings a recorded result to where it belongs, until it is confirmed.
func (c *Consumer) publish(ctx context.Context, d *delivery, attempt int, out *bus.Output, result []byte, seq uint64) bool {
	if out == nil {
		out = c.bus.NewOutput(bus.OutputConfig{Job: d.job, Attempt: attempt, Mode: d.mode, Reply: d.reply, Trace: d.trace})
		defer out.Discard()
	}
	pause := retryPause{}
	for {
		err := out.Final(ctx, result, seq)
		if err == nil {
			return true
		}
		if errors.Is(err, bus.ErrTooBig) {
			smaller := withoutInline(result)
			if len(smaller) < len(result) {
				result = smaller
				continue
			}
		}
		if pause.loud() {
			c.log.Warn().Err(err).Str("job", d.key).Msg("result not published, trying again")
		}
		if !pause.wait(ctx) {
			c.unsettle(d, "its result could not be published: "+err.Error())
			return false
		}
	}
}

// withoutInline is a stored result without inline output. It depends on nothing
// else, so that a repeated result is cut the same way.
func withoutInline(result []byte) []byte {
	r, err := wire.DecodeResult(result)
	if err != nil {
		return result
	}
	smaller, err := wire.EncodeResult(r.WithoutInline())
	if err != nil {
		return result
	}
	return smaller
}

// repeat publishes the decision that stands in the record once more.
func (c *Consumer) repeat(ctx context.Context, d *delivery, rec wire.RunRecord) {
	r, err := wire.DecodeResult(rec.Result)
	if err != nil {
		// A newer worker's result: its bytes are right, only its number is not known.
		r = &wire.Result{Attempt: rec.Attempt}
	}
	c.count.repeated.Add(1)
	if c.copyDead(ctx, d, d.invalid) && c.publish(ctx, d, r.Attempt, nil, rec.Result, resultSeq(r)) {
		c.finishMessage(ctx, d)
	}
}

// closeOther ends the job whose record stands there and whose message is gone
// with its worker; only then can this delivery's own turn come.
func (c *Consumer) closeOther(ctx context.Context, d *delivery, next decision, stored *bus.Stored) (again bool) {
	r := c.verdict(d, next)
	r.Queue, r.Meta = stored.Record.Queue, nil
	rec := stored.Record
	rec.State, rec.Result, rec.Renewals = wire.RunDone, c.encode(d, &r), 0
	if err := c.update(ctx, d, rec, stored.Seq); err != nil {
		if !errors.Is(err, bus.ErrConflict) {
			c.log.Warn().Err(err).Str("job", d.key).Msg("result not recorded, job given back")
			d.giveBack(ctx, c.retryDelay(d))
			return false
		}
		return true
	}
	c.count.final(r.Outcome)
	// Where the old message wanted its answer went with it; the stored output is
	// where the job's reader finds it.
	other := bus.FinalConfig{Job: d.job, Attempt: rec.Attempt, Mode: wire.OutputStored}
	if err := c.bus.PublishFinal(ctx, other, rec.Result, 0); err != nil {
		c.log.Warn().Err(err).Str("job", d.key).Msg("result of a lost job not published")
	}
	return true
}

// refuse answers, to this delivery's reply alone, that the id stands for another
// request.
func (c *Consumer) refuse(ctx context.Context, d *delivery) {
	why := d.invalid
	if why == nil || why.Reason == wire.ReasonVersion {
		why = &wire.Invalid{Reason: wire.ReasonIDConflict, Message: "the id " + d.job.ID + " stands for another request of this tenant; take a new one"}
	}
	c.answerInvalid(ctx, d, why)
}

// answerInvalid refuses a message without touching the record of its id.
func (c *Consumer) answerInvalid(ctx context.Context, d *delivery, why *wire.Invalid) {
	c.count.final(wire.InvalidJob)
	if d.reply != "" {
		d.mode = wire.OutputReply
		r := wire.Result{Outcome: wire.InvalidJob, Reason: why.Reason, StartState: wire.StartNo, Message: why.Error()}
		c.identify(d, &r, 1)
		if !c.publish(ctx, d, 1, nil, c.encode(d, &r), 0) {
			return
		}
	}
	if c.copyDead(ctx, d, why) {
		c.finishMessage(ctx, d)
	}
}

// bury puts away a message whose subject names no job: it has neither a record
// nor anybody who could be answered.
func (c *Consumer) bury(ctx context.Context, d *delivery) {
	d.reply = ""
	c.answerInvalid(ctx, d, d.invalid)
}

// copyDead copies the message to the dead letters, acknowledged. When they take
// nothing, the message stays in its queue for long, and readiness says so. False
// means that the message is dealt with.
func (c *Consumer) copyDead(ctx context.Context, d *delivery, why *wire.Invalid) bool {
	if why == nil {
		return true
	}
	c.count.invalid.Add(1)
	letter := wire.DeadLetter{
		V: wire.Version, Tenant: d.job.Tenant, Queue: d.job.Queue, ID: d.job.ID, Subject: d.msg.Subject, Seq: d.seq,
		Reason: why.Reason, Message: why.Error(), Headers: d.msg.Header, Body: d.msg.Data, Worker: c.cfg.Worker.ID, At: time.Now().UTC(),
	}
	pause := retryPause{}
	for {
		err := c.bus.Dead().Put(ctx, letter)
		if err == nil {
			c.broker.setDeadLetters(nil)
			c.log.Warn().Str("job", d.key).Str("reason", string(why.Reason)).Msg("message put to the dead letters")
			return true
		}
		if errors.Is(err, bus.ErrStreamFull) {
			c.broker.setDeadLetters(fmt.Errorf("the dead letters take nothing: %w", err))
			d.giveBack(ctx, jitter(c.cfg.LongDelay))
			return false
		}
		if pause.loud() {
			c.log.Warn().Err(err).Str("job", d.key).Msg("dead letter not stored, trying again")
		}
		if !pause.wait(ctx) {
			c.unsettle(d, "its dead letter could not be stored: "+err.Error())
			return false
		}
	}
}

// awaitSettled waits, under heartbeat, until the quarantine record of the job's
// lease is durable.
func (c *Consumer) awaitSettled(ctx context.Context, d *delivery, settled <-chan struct{}) {
	if settled == nil {
		return
	}
	select {
	case <-settled:
	case <-ctx.Done():
		c.unsettle(d, "the quarantine record of its lease is not durable")
	}
}

// verdict is the result of a decision without a run.
func (c *Consumer) verdict(d *delivery, next decision) wire.Result {
	r := wire.Result{Outcome: next.outcome, Reason: next.reason, StartState: next.start, Message: next.message}
	if next.reason == wire.ReasonDeadline && d.request != nil {
		r.Message = wire.Message("%s (%s; it is %s on this worker)", next.message,
			d.request.Deadline.UTC().Format(time.RFC3339Nano), time.Now().UTC().Format(time.RFC3339Nano))
	}
	c.identify(d, &r, next.attempt)
	return r
}

// identify fills in whose result it is, where the handler left that open.
func (c *Consumer) identify(d *delivery, r *wire.Result, attempt int) {
	r.V = wire.Version
	r.Tenant = cmp.Or(r.Tenant, d.job.Tenant)
	r.ID = cmp.Or(r.ID, d.job.ID)
	r.Queue = cmp.Or(r.Queue, d.job.Queue)
	r.Attempt = cmp.Or(r.Attempt, attempt)
	r.Worker = cmp.Or(r.Worker, c.cfg.Worker)
	r.Timing.QueuedMS = cmp.Or(r.Timing.QueuedMS, float64(d.queued.Microseconds())/1000)
	if r.Meta == nil && d.request != nil {
		r.Meta = d.request.Meta
	}
}

// joinRanges sorts ranges and joins those that touch. The bound is the result's
// own; beyond it the last ones become one, which declares too much and never too
// little.
func joinRanges(list []wire.LostRange) []wire.LostRange {
	const most = 1024
	slices.SortFunc(list, func(a, b wire.LostRange) int { return cmp.Compare(a.From, b.From) })
	var joined []wire.LostRange
	for _, r := range list {
		if n := len(joined); n > 0 && (r.From <= joined[n-1].To+1 || n == most) {
			joined[n-1].To = max(joined[n-1].To, r.To)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}
