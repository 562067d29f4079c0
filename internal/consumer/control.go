package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// maxControlBytes bounds a control request.
const maxControlBytes = 4 << 10

// The operations of exec.ctl.
const (
	opCancel = "cancel"
	opPing   = "ping"
)

// controlRequest is the body of a request on exec.ctl.<tenant>.<id>.
type controlRequest struct {
	Op string `json:"op"`
}

// controlAnswer is the answer of the worker that has the job.
type controlAnswer struct {
	State   wire.JobState `json:"state,omitempty"`
	Attempt int           `json:"attempt,omitempty"`
	Worker  string        `json:"worker,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// listen subscribes to the control subjects of all jobs: one subscription for the
// worker, and only who has the job answers. It stands on the services' connection:
// any tenant may write there.
func (c *Consumer) listen() (*nats.Subscription, error) {
	nc := c.bus.Services().Control()
	sub, err := nc.Subscribe(c.bus.Subjects().AllCtl(), c.control)
	if err != nil {
		return nil, fmt.Errorf("subscribe to control requests: %w", err)
	}
	// Who claims a job answers for it from then on.
	if err := nc.FlushTimeout(callTimeout); err != nil {
		c.log.Warn().Err(err).Msg("control requests may come late")
	}
	return sub, nil
}

// control takes one control request.
func (c *Consumer) control(m *nats.Msg) {
	tenant, id, err := c.bus.Subjects().ParsePair(m.Subject)
	if err != nil {
		return
	}
	d := c.find(wire.Job{Tenant: tenant, ID: id}.Key())
	if d == nil {
		return
	}
	// Before anything else: an answer to a subject of the sender's choice would
	// borrow our rights.
	if bad := c.cfg.ServiceReplies.Check(tenant, m.Reply); bad != nil {
		c.count.controlRefused.Add(1)
		return
	}
	answer, ok := c.operate(d, m.Data)
	if !ok {
		return
	}
	body, err := json.Marshal(answer)
	if err == nil {
		err = m.Respond(body)
	}
	if err != nil {
		c.log.Warn().Err(err).Str("job", d.key).Msg("control request not answered")
	}
}

// operate does what a control request asks for. False means that the job is not
// ours to speak for.
func (c *Consumer) operate(d *delivery, body []byte) (controlAnswer, bool) {
	var request controlRequest
	if len(body) > maxControlBytes || json.Unmarshal(body, &request) != nil {
		return controlAnswer{Error: `must be JSON such as {"op":"cancel"}`}, true
	}
	cl := d.current()
	switch request.Op {
	case opCancel:
		// What waits for its claim here can be cancelled too: the record decides
		// between several. What has ended can not: its record will tell.
		if cl == nil || !cl.cancelled() {
			return controlAnswer{}, false
		}
		d.cancel(run.ErrCancelled)
		c.count.cancelled.Add(1)
		return controlAnswer{State: wire.JobCancelling, Attempt: cl.attempt, Worker: c.cfg.Worker.ID}, true
	case opPing:
		if cl == nil || !cl.owns() {
			return controlAnswer{}, false
		}
		return controlAnswer{State: wire.JobRunning, Attempt: cl.attempt, Worker: c.cfg.Worker.ID}, true
	default:
		return controlAnswer{Error: "unknown op; there are cancel and ping"}, true
	}
}

// silent says whether the owner of a claim surely does not answer. An answer of
// anybody counts as life: doubt waits.
func (c *Consumer) silent(ctx context.Context, d *delivery, rec wire.RunRecord) bool {
	body, err := json.Marshal(controlRequest{Op: opPing})
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, min(c.cfg.PingTimeout, d.ackWait/beatsPerWait))
	defer cancel()
	_, err = c.bus.Control().RequestWithContext(ctx, c.bus.Subjects().Ctl(d.job.Tenant, d.job.ID), body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return true
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		// A question that did not leave was not heard.
		if !c.bus.Control().IsConnected() {
			return false
		}
		c.log.Warn().Str("job", d.key).Str("owner", rec.Worker).Msg("owner of the job does not answer")
		return true
	default:
		return false
	}
}
