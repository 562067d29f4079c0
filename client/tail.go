package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/wire"
)

// Tail reads a job's stored events from a cursor on, and follows them until the
// result. It is used by one goroutine at a time and must be closed.
type Tail struct {
	c      *Client
	id     string
	cursor uint64 // behind the newest event that was read
	batch  []stored
	order  order
	read   int // events of the newest batch
	last   wire.JobState
	more   bool
	fresh  bool // the newest batch was asked for after the job was seen done
	live   *nats.Subscription
	woken  chan struct{}
	ended  bool
}

type stored struct {
	cursor uint64
	event  Event
}

// Tail opens the stored output of the job behind the cursor; 0 is the beginning
// of what is still stored. Only jobs with output mode stored or both have stored
// output.
func (c *Client) Tail(id string, from uint64) (*Tail, error) {
	if !wire.ValidToken(id) {
		return nil, fmt.Errorf("id %q: must be 1 to 64 of A-Z a-z 0-9 _ -", id)
	}
	// Live events only wake the reader up: what it returns is always read from
	// the store, so that there is no seam between the two.
	woken := make(chan struct{}, 1)
	live, err := c.nc.Subscribe(c.subjects.Live(c.cfg.Tenant, id), func(*nats.Msg) {
		select {
		case woken <- struct{}{}:
		default: // one wake-up is as good as many
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to live events: %w", err)
	}
	return &Tail{c: c, id: id, cursor: from, order: order{begun: from == 0}, live: live, woken: woken}, nil
}

// Events that arrive while nobody can wake us (no permission for live subjects,
// a lost wake-up) are found this late.
const tailPoll = 500 * time.Millisecond

// Next is the next stored event and the cursor to go on from after it. It waits
// for events of a job that is not over, returns io.EOF when the job is over and
// everything stored was returned, and ErrUnknownJob when nothing is known of it.
// After any other error it can be called again and goes on where it was.
func (t *Tail) Next(ctx context.Context) (Event, uint64, error) {
	for len(t.batch) == 0 {
		if t.ended {
			if t.batch = t.order.giveUp(); len(t.batch) > 0 {
				break
			}
			return Event{}, t.cursor, io.EOF
		}
		if err := t.fetch(ctx); err != nil {
			return Event{}, t.cursor, err
		}
		if t.read > 0 || t.more {
			continue
		}
		if err := t.wait(ctx); err != nil {
			return Event{}, t.cursor, err
		}
	}
	s := t.batch[0]
	t.batch = t.batch[1:]
	return s.event, s.cursor, nil
}

// wait decides what an empty batch means.
func (t *Tail) wait(ctx context.Context) error {
	switch t.last {
	case wire.JobUnknown:
		return ErrUnknownJob
	case wire.JobDone, wire.JobCancelled:
		// One more look after the job was seen over: its last events were stored
		// before its record said so.
		t.ended, t.fresh = t.fresh, true
		return nil
	case wire.JobQueued, wire.JobRunning, wire.JobCancelling:
	}
	again := time.NewTimer(tailPoll)
	defer again.Stop()
	select {
	case <-t.woken:
	case <-again.C:
	case <-ctx.Done():
		return fmt.Errorf("wait for events: %w", context.Cause(ctx))
	}
	return nil
}

// Lost are the ranges of sequence numbers of the newest attempt that are not
// stored, as far as it was read.
func (t *Tail) Lost() []wire.LostRange { return t.order.lost }

// fetch asks the gateway for the next batch.
func (t *Tail) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.c.cfg.AcceptTimeout)
	defer cancel()
	body, err := json.Marshal(wire.ReadRequest{From: t.cursor})
	if err != nil {
		return fmt.Errorf("encode the read request: %w", err)
	}
	inbox := t.c.nc.NewInbox()
	sub, err := t.c.nc.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("subscribe to the reply inbox: %w", err)
	}
	if err := t.c.nc.PublishRequest(t.c.subjects.Read(t.c.cfg.Tenant, t.id), inbox, body); err != nil {
		return errors.Join(fmt.Errorf("read stored events: %w", err), sub.Unsubscribe())
	}
	return errors.Join(t.receive(ctx, sub), sub.Unsubscribe())
}

func (t *Tail) receive(ctx context.Context, sub *nats.Subscription) error {
	for t.read = 0; ; t.read++ {
		msg, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return ErrNoGateway
		}
		if err != nil {
			return fmt.Errorf("read stored events: %w", err)
		}
		if err := serviceError(msg); err != nil {
			return err
		}
		cursor, err := strconv.ParseUint(msg.Header.Get(wire.HeaderCursor), 10, 64)
		if err != nil {
			return fmt.Errorf("stored event's cursor: %w", err)
		}
		if state := msg.Header.Get(wire.HeaderState); state != "" {
			t.last, t.more = wire.JobState(state), msg.Header.Get(wire.HeaderMore) == "true"
			return nil
		}
		ev, err := wire.ParseEvent(msg.Header, msg.Data)
		if err != nil {
			return fmt.Errorf("stored event: %w", err)
		}
		t.cursor = cursor
		t.batch = append(t.batch, t.order.add(stored{cursor: cursor, event: ev})...)
	}
}

// Close ends the reading.
func (t *Tail) Close() error {
	if err := t.live.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}
