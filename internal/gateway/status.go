package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// status answers where a job stands.
func (g *Gateway) status(ctx context.Context, c call) {
	tenant, id, ok := c.pair()
	if !ok {
		return
	}
	s, err := g.look(ctx, tenant, id)
	if err != nil {
		c.fail(service.CodeUnavailable, err)
		return
	}
	c.answer(s.JobStatus)
}

// pair takes tenant and id from the subject, which the service has read before.
func (c call) pair() (tenant, id string, ok bool) {
	tenant, id, err := c.g.bus.Subjects().ParsePair(c.req.Subject())
	return tenant, id, err == nil
}

// standing is what record and queue say of a job at one moment.
type standing struct {
	wire.JobStatus
	record *bus.Stored        // nil where there is none
	queued *bus.QueuedMessage // nil where there is none; looked for only without a record
}

// look reads the record and, where there is none, the queue; both from the
// leader.
func (g *Gateway) look(ctx context.Context, tenant, id string) (standing, error) {
	s := standing{JobStatus: wire.JobStatus{Tenant: tenant, ID: id}}
	rec, err := g.bus.Runs().Get(ctx, tenant, id)
	switch {
	case err == nil:
		s.record = rec
		s.fromRecord(rec.Record)
		return s, nil
	case !errors.Is(err, bus.ErrNoRecord):
		return standing{}, fmt.Errorf("read the run record: %w", err)
	}
	msg, err := g.bus.QueuedMessage(ctx, tenant, id)
	switch {
	case err == nil:
		s.queued = msg
		s.State, s.Queue = wire.JobQueued, msg.Job.Queue
	case errors.Is(err, bus.ErrNotQueued):
		s.State = wire.JobUnknown
	default:
		return standing{}, fmt.Errorf("read the queue: %w", err)
	}
	return s, nil
}

func (s *standing) fromRecord(r wire.RunRecord) {
	s.Queue, s.Attempt, s.Worker, s.Lease = r.Queue, r.Attempt, r.Worker, r.Lease
	s.Result = wire.RawJSON(r.Result)
	switch r.State {
	case wire.RunClaimed:
		s.State = wire.JobRunning
	case wire.RunReleased:
		s.State = wire.JobQueued
	case wire.RunDone:
		s.State = wire.JobDone
	case wire.RunCancelled:
		s.State = wire.JobCancelled
	default:
		s.State = wire.JobUnknown
	}
}
