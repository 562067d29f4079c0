package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/oklog/ulid/v2"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// passed are the headers that a submitter may set on its job, beside its id.
// Everything else is dropped: Nats-*, Status, Description and KV-Operation would
// speak to the server and to other clients in the gateway's name.
var passed = []string{"traceparent", "tracestate"} //nolint:gochecknoglobals // a constant list

// submit takes one request: check, store in the queue, accept.
func (g *Gateway) submit(ctx context.Context, c call) {
	tenant, queue, err := g.bus.Subjects().ParseSubmit(c.req.Subject())
	if err != nil {
		return // the service has read it before
	}
	job := wire.Job{Tenant: tenant, Queue: queue}
	body := c.req.Data()
	bad := g.check(&job, c.req.Headers(), body)
	if bad != nil {
		c.refuse(job, bad)
		return
	}
	for range submitLooks {
		err := g.enqueue(ctx, job, c, body)
		switch {
		case err == nil:
			g.stats.submitted.Add(1)
			c.accept(job)
		case errors.Is(err, bus.ErrAlreadyQueued):
			if c.queuedBefore(ctx, job, body) {
				continue
			}
		case errors.Is(err, bus.ErrQueueFull):
			c.fail(service.CodeUnavailable, fmt.Errorf("queue %s is full, try again later: %w", queue, err))
		case errors.Is(err, bus.ErrUnknown):
			c.fail(service.CodeUnknown, fmt.Errorf("job %s may have been accepted: %w", job.ID, err))
		default:
			c.fail(service.CodeUnavailable, fmt.Errorf("not accepted, try again: %w", err))
		}
		return
	}
	c.fail(service.CodeConflict, fmt.Errorf("job %s kept changing its state, try again", job.ID))
}

// A submission that meets its job's message just leaving the queue looks again
// this often.
const submitLooks = 5

// check refuses what no worker would run, and chooses the id.
func (g *Gateway) check(job *wire.Job, h nats.Header, body []byte) *wire.Invalid {
	ids := h.Values(wire.HeaderID)
	switch {
	case len(ids) == 0:
		job.ID = ulid.Make().String()
	case len(ids) > 1 || !wire.ValidToken(ids[0]):
		return &wire.Invalid{Reason: wire.ReasonField, Field: wire.HeaderID, Message: "must be one value of 1 to 64 of A-Z a-z 0-9 _ -"}
	default:
		job.ID = ids[0]
	}
	if !g.hasQueue(job.Queue) {
		return &wire.Invalid{Reason: wire.ReasonQueue, Field: "queue", Message: fmt.Sprintf("no queue %q here; there are %v", job.Queue, g.cfg.Queues)}
	}
	if len(h.Values(wire.HeaderReplyTo)) > 0 {
		return &wire.Invalid{Reason: wire.ReasonReply, Field: wire.HeaderReplyTo, Message: "the reply subject of a submitted job is the request's own; leave the header out"}
	}
	r, bad := wire.DecodeRequest(body)
	if bad != nil {
		return bad
	}
	return g.checkProfile(r)
}

func (g *Gateway) checkProfile(r *wire.Request) *wire.Invalid {
	if g.cfg.Profiles == nil {
		return nil
	}
	_, _, bad := wire.Admit(r, g.cfg.Profiles, func(p wire.Profile) wire.Profile { return p }, g.cfg.DefaultProfile)
	return bad
}

func (g *Gateway) enqueue(ctx context.Context, job wire.Job, c call, body []byte) error {
	headers := map[string][]string{}
	if reply := c.req.Reply(); reply != "" {
		headers[wire.HeaderReplyTo] = []string{reply}
	}
	for _, name := range passed {
		if v := c.req.Headers().Get(name); v != "" {
			headers[name] = []string{v}
		}
	}
	return g.bus.Enqueue(ctx, job, body, headers)
}

// queuedBefore answers a submission whose id stands in the queue already. An
// honest repetition (the first answer was lost) is accepted again, and where the
// job is over, and only its message still there, its stored result follows at
// once. again says that the message has gone meanwhile.
func (c call) queuedBefore(ctx context.Context, job wire.Job, body []byte) (again bool) {
	g := c.g
	there, err := g.bus.QueuedMessage(ctx, job.Tenant, job.ID)
	if errors.Is(err, bus.ErrNotQueued) {
		return true
	}
	if err != nil {
		c.fail(service.CodeUnavailable, fmt.Errorf("compare with the queued job: %w", err))
		return false
	}
	was, errWas := wire.Digest(there.Job.Queue, there.Body)
	is, errIs := wire.Digest(job.Queue, body)
	rec, err := g.bus.Runs().Get(ctx, job.Tenant, job.ID)
	if errors.Is(err, bus.ErrNoRecord) {
		err = nil
	}
	if err := errors.Join(errWas, errIs, err); err != nil {
		c.fail(service.CodeUnavailable, fmt.Errorf("compare with the queued job: %w", err))
		return false
	}
	reply, bad := wire.ReplyHeader(there.Headers)
	switch {
	case was != is:
		c.conflict(job, "another request stands in the queue under this id")
	case rec != nil && rec.Record.State.Terminal():
		c.accept(job)
		c.repeat(job, rec.Record)
	case bad != nil || reply != c.req.Reply():
		c.conflict(job, "this request is queued or running already, with another reply subject; follow it by its id (status, tail)")
	default:
		c.accept(job)
	}
	return false
}

func (c call) conflict(job wire.Job, why string) {
	c.refuse(job, &wire.Invalid{Reason: wire.ReasonIDConflict, Field: wire.HeaderID, Message: why})
}

// repeat sends the result of a job that is over, as it is stored.
func (c call) repeat(job wire.Job, rec wire.RunRecord) {
	if c.req.Reply() == "" {
		return
	}
	r, err := wire.DecodeResult(rec.Result)
	if err != nil {
		c.fail(service.CodeUnavailable, fmt.Errorf("stored result: %w", err))
		return
	}
	ev := wire.Event{Type: wire.EventResult, Job: job.Key(), Attempt: rec.Attempt}
	if r.Output.LastSeq > 0 {
		ev.Seq = r.Output.LastSeq + 1
	}
	c.send(rec.Result, ev.Headers())
	c.send(nil, wire.Event{Type: wire.EventEnd, Job: job.Key()}.Headers())
}

func (c call) accept(job wire.Job) {
	if c.req.Reply() == "" {
		return
	}
	body, err := wire.EncodeAccepted(&wire.Accepted{V: wire.Version, Tenant: job.Tenant, Queue: job.Queue, ID: job.ID})
	if err != nil {
		c.fail(service.CodeUnknown, err)
		return
	}
	ev := wire.Event{Type: wire.EventAccepted, Job: job.Key()}
	c.send(body, ev.Headers())
}

// refuse answers with a result that nothing will follow, as a service error too,
// and the end of the stream.
func (c call) refuse(job wire.Job, bad *wire.Invalid) {
	g := c.g
	g.stats.refused.Add(1)
	g.log.Info().Str("tenant", job.Tenant).Str("job", job.ID).Str("reason", string(bad.Reason)).Msg("request refused")
	if c.req.Reply() == "" {
		return
	}
	r := wire.Result{
		V: wire.Version, Tenant: job.Tenant, ID: job.ID, Queue: job.Queue, Outcome: wire.InvalidJob, Reason: bad.Reason,
		Message: wire.Message("%v", bad), StartState: wire.StartNo, Worker: g.cfg.Worker,
	}
	body, err := wire.EncodeResult(&r)
	if err != nil {
		c.fail(service.CodeInvalid, bad)
		return
	}
	ev := wire.Event{Type: wire.EventResult, Job: job.Key()}
	c.req.Refuse(service.CodeInvalid, r.Message, body, ev.Headers())
	c.send(nil, wire.Event{Type: wire.EventEnd, Job: job.Key()}.Headers())
}
