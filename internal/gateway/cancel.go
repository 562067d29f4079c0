package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// A cancel that meets a job just changing its state looks again this often.
const cancelLooks = 5

// cancel ends a job wherever it stands. It is idempotent.
func (g *Gateway) cancel(ctx context.Context, c call) {
	tenant, id, ok := c.pair()
	if !ok {
		return
	}
	for range cancelLooks {
		s, err := g.look(ctx, tenant, id)
		if err != nil {
			c.fail(service.CodeUnavailable, err)
			return
		}
		again, err := g.cancelAt(ctx, &s)
		if err != nil {
			c.fail(service.CodeUnavailable, err)
			return
		}
		if !again {
			c.answer(s.JobStatus)
			return
		}
	}
	c.fail(service.CodeConflict, errors.New("the job kept changing its state; try again"))
}

// cancelAt acts on what was seen; again says that it has changed meanwhile.
func (g *Gateway) cancelAt(ctx context.Context, s *standing) (again bool, err error) {
	switch s.State {
	case wire.JobDone, wire.JobCancelled, wire.JobCancelling, wire.JobUnknown:
		return false, nil
	case wire.JobRunning:
		return g.cancelRunning(ctx, s)
	case wire.JobQueued:
		return g.cancelQueued(ctx, s)
	}
	return false, fmt.Errorf("unknown state %q", s.State)
}

// cancelRunning asks the worker that runs the job.
func (g *Gateway) cancelRunning(ctx context.Context, s *standing) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.RequestTimeout/cancelLooks)
	defer cancel()
	_, err = g.nc.RequestWithContext(ctx, g.bus.Subjects().Ctl(s.Tenant, s.ID), []byte(`{"op":"cancel"}`))
	if err != nil {
		// It may just have ended, or its worker is gone: the record will tell.
		return true, nil
	}
	s.State = wire.JobCancelling
	return false, nil
}

// cancelQueued decides a job that nobody runs, by its record: the worker that
// gets the message publishes the result that stands there.
func (g *Gateway) cancelQueued(ctx context.Context, s *standing) (again bool, err error) {
	rec, seq, err := g.cancelRecord(s)
	if err != nil {
		return false, err
	}
	if seq == 0 {
		_, err = g.bus.Runs().Create(ctx, s.Tenant, s.ID, rec)
	} else {
		_, err = g.bus.Runs().Update(ctx, s.Tenant, s.ID, rec, seq)
	}
	switch {
	case errors.Is(err, bus.ErrConflict):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("write the cancelled record: %w", err)
	}
	s.fromRecord(rec)
	return false, nil
}

// cancelRecord is the record that says cancelled, and the sequence that it
// replaces (0: it must be the first).
func (g *Gateway) cancelRecord(s *standing) (rec wire.RunRecord, replaces uint64, err error) {
	r := wire.Result{
		V: wire.Version, Tenant: s.Tenant, ID: s.ID, Queue: s.Queue, Attempt: s.Attempt,
		Outcome: wire.Cancelled, Message: "cancelled before it was started", StartState: wire.StartNo, Worker: g.cfg.Worker,
	}
	rec = wire.RunRecord{V: wire.Version, State: wire.RunCancelled, Queue: s.Queue, Attempt: s.Attempt, Token: newToken()}
	if s.record != nil {
		rec.JobSeq, rec.Digest, replaces = s.record.Record.JobSeq, s.record.Record.Digest, s.record.Seq
		if s.record.Record.Attempt > 1 {
			// An earlier attempt was let go after it had started.
			r.StartState = wire.StartMaybe
		}
	} else {
		rec.JobSeq = s.queued.Seq
		if rec.Digest, err = wire.Digest(s.queued.Job.Queue, s.queued.Body); err != nil {
			return rec, 0, fmt.Errorf("digest of the queued job: %w", err)
		}
	}
	if req := s.request(); req != nil {
		r.Meta = req.Meta
	}
	rec.Result, err = wire.EncodeResult(&r)
	return rec, replaces, err
}

// request is the queued request, where it can be read.
func (s *standing) request() *wire.Request {
	if s.queued == nil {
		return nil
	}
	r, bad := wire.DecodeRequest(s.queued.Body)
	if bad != nil {
		return nil
	}
	return r
}
