package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// read answers with the stored events behind a cursor, each as a message of its
// own, and an empty message that says where to go on.
func (g *Gateway) read(ctx context.Context, c call) {
	tenant, id, ok := c.pair()
	if !ok {
		return
	}
	q, err := readRequest(c.req.Data())
	if err != nil {
		c.fail(service.CodeInvalid, err)
		return
	}
	// The state is read before the events: a job seen done here has all its
	// events stored already.
	s, err := g.look(ctx, tenant, id)
	if err != nil {
		c.fail(service.CodeUnavailable, err)
		return
	}
	events, more, err := g.bus.ReadOutput(ctx, tenant, id, q.From, q.Max)
	if err != nil {
		c.fail(service.CodeUnavailable, err)
		return
	}
	cursor := q.From
	for _, ev := range events {
		cursor = ev.Cursor
		if err := g.pass(c.req.Reply(), ev.Headers, ev.Data, cursor); err != nil {
			c.fail(service.CodeUnavailable, err)
			return
		}
	}
	if s.State == wire.JobUnknown && (cursor > 0 || len(events) > 0) {
		s.State = wire.JobDone // its record has expired before its output
	}
	end := wire.Event{Type: wire.EventEnd, Job: tenant + "." + id}.Headers()
	end[wire.HeaderState] = []string{string(s.State)}
	end[wire.HeaderMore] = []string{strconv.FormatBool(more)}
	if err := g.pass(c.req.Reply(), end, nil, cursor); err != nil {
		g.log.Warn().Err(err).Msg("answer not sent")
	}
}

func readRequest(body []byte) (wire.ReadRequest, error) {
	q := wire.ReadRequest{}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &q); err != nil {
			return q, errors.New(`the body must be empty or like {"from":0,"max":64}`)
		}
	}
	if q.Max == 0 {
		q.Max = wire.MaxReadBatch
	}
	if q.Max < 1 || q.Max > wire.MaxReadBatch {
		return q, fmt.Errorf("max: must be from 1 to %d", wire.MaxReadBatch)
	}
	return q, nil
}

// pass sends one event with its cursor.
func (g *Gateway) pass(reply string, headers map[string][]string, data []byte, cursor uint64) error {
	msg := nats.NewMsg(reply)
	msg.Data = data
	for name, values := range headers {
		if !wire.ReservedHeader(name) {
			msg.Header[name] = values
		}
	}
	msg.Header.Set(wire.HeaderCursor, strconv.FormatUint(cursor, 10))
	if err := g.nc.PublishMsg(msg); err != nil {
		return fmt.Errorf("send a stored event: %w", err)
	}
	return nil
}
