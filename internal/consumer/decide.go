package consumer

import (
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// step is what to do with a delivery.
type step int

const (
	// stepRun runs an attempt on top of the record.
	stepRun step = iota + 1
	// stepEnd makes a final decision without a run.
	stepEnd
	// stepClose makes the final decision of the job whose record stands there,
	// which is not this delivery's; then look again.
	stepClose
	// stepRepeat publishes the decision that stands in the record, and acks.
	stepRepeat
	// stepRefuse answers that the id stands for another request.
	stepRefuse
	// stepWait gives the message back for a while.
	stepWait
	// stepLeave gives the message back for long: it is for newer workers.
	stepLeave
	// stepProbe asks whether the owner still lives.
	stepProbe
)

// decision is a step with what it needs.
type decision struct {
	step    step
	attempt int
	// base is the sequence of the record to replace, 0 for none.
	base uint64
	// outcome, reason, start and message are of the final, for stepEnd and
	// stepClose.
	outcome wire.Outcome
	reason  wire.Reason
	start   wire.StartState
	message string
	delay   time.Duration
}

// facts are what a decision depends on, beside the record.
type facts struct {
	seq     uint64
	digest  string
	invalid *wire.Invalid
	// late says that the request's deadline is over, aged that a record of this
	// message may have been there and gone.
	late, aged bool
	ifLost     bool
	attempts   int // allowed in all
	// patience is for how long a claim is believed after its last renewal.
	patience time.Duration
}

// sight is what was seen of the owner of a claimed record.
type sight struct {
	age    time.Duration // of the last renewal, by the server's clock
	silent bool          // it was asked and did not answer
}

// decide is the rule: what to do with a delivery, given the record that stands at
// the leader (nil for none). It is pure.
func decide(f facts, s *bus.Stored, owner sight) decision {
	if s == nil {
		return fresh(f, 1, 0)
	}
	rec := s.Record
	same := rec.JobSeq == f.seq
	twin := same || rec.Digest == f.digest
	switch rec.State {
	case wire.RunReleased:
		if !twin {
			return decision{step: stepRefuse}
		}
		return fresh(f, max(1, rec.Attempt), s.Seq)
	case wire.RunClaimed:
		return claimed(f, s, owner, same, twin)
	case wire.RunDone, wire.RunCancelled:
		if !twin {
			return decision{step: stepRefuse}
		}
		return decision{step: stepRepeat}
	default: // a state that this build does not know: a newer worker's business
		return decision{step: stepLeave}
	}
}

// fresh is the rule for a job that nobody owns.
func fresh(f facts, attempt int, base uint64) decision {
	d := decision{step: stepEnd, attempt: attempt, base: base, start: wire.StartNo}
	switch {
	case f.invalid != nil && f.invalid.Reason == wire.ReasonVersion && !f.aged:
		return decision{step: stepLeave}
	case f.invalid != nil && f.invalid.Reason != wire.ReasonVersion:
		d.outcome, d.reason, d.message = wire.InvalidJob, f.invalid.Reason, f.invalid.Error()
	case f.aged && base == 0 || f.invalid != nil:
		d.outcome, d.reason = wire.Expired, wire.ReasonQueueAge
		d.message = "waited in the queue for as long as results are kept, so that it can not be known whether it ran"
		if f.invalid != nil {
			d.message = "no worker spoke its version in time: " + f.invalid.Error()
		}
	case f.late && attempt == 1:
		d.outcome, d.reason, d.message = wire.Expired, wire.ReasonDeadline, "not started by its deadline"
	case f.late:
		// An earlier attempt may have started, which "expired" would deny.
		d.outcome, d.reason, d.start = wire.Lost, wire.ReasonShutdown, wire.StartMaybe
		d.message = "interrupted, and its deadline was over before the next attempt"
	default:
		d.step = stepRun
	}
	return d
}

// claimed is the rule for a job that somebody runs, or ran until it died.
func claimed(f facts, s *bus.Stored, owner sight, same, twin bool) decision {
	rec := s.Record
	if owner.age <= f.patience {
		return decision{step: stepWait, delay: f.patience - owner.age}
	}
	if !owner.silent {
		return decision{step: stepProbe}
	}
	if twin && f.invalid == nil && f.ifLost && rec.Attempt < f.attempts && !f.late {
		return decision{step: stepRun, attempt: rec.Attempt + 1, base: s.Seq}
	}
	d := decision{
		step: stepEnd, attempt: rec.Attempt, base: s.Seq,
		outcome: wire.Lost, reason: wire.ReasonWorkerGone, start: wire.StartMaybe,
		message: "worker " + rec.Worker + " is gone, the end of the job is not known",
	}
	if rec.Started {
		d.start = wire.StartYes
	}
	if !same {
		d.step = stepClose
	}
	return d
}
