package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/nats-io/nats.go"
)

// readBytes bounds one batch of stored events, so that many readers at once stay
// within a gateway's memory; at least one event comes anyway.
const readBytes = 1 << 20

// StoredEvent is an event as it stands in the output stream.
type StoredEvent struct {
	// Cursor is the event's stream sequence: read on from here.
	Cursor  uint64
	Headers map[string][]string
	Data    []byte
}

// ReadOutput reads stored events of one job behind the cursor from (0: from the
// first that is still stored), at most limit (1 to 256) and about 1 MiB. more
// says that others are stored behind them. It is a batched direct get: no
// consumer is made, and a replica may answer with what it has.
func (b *Bus) ReadOutput(ctx context.Context, tenant, id string, from uint64, limit int) (events []StoredEvent, more bool, err error) {
	subject := b.subjects.Out(tenant, id)
	if subject == "" {
		return nil, false, fmt.Errorf("output of %q.%q: not a valid token", tenant, id)
	}
	if from == math.MaxUint64 {
		return nil, false, nil // nothing can be behind it, and the next one would be the first
	}
	query, err := json.Marshal(struct {
		Seq      uint64 `json:"seq"`
		Next     string `json:"next_by_subj"`
		Batch    int    `json:"batch"`
		MaxBytes int    `json:"max_bytes"`
	}{from + 1, subject, max(1, min(limit, windowEvents)), readBytes})
	if err != nil {
		return nil, false, fmt.Errorf("read output: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	inbox := b.control.NewInbox()
	sub, err := b.control.SubscribeSync(inbox)
	if err != nil {
		return nil, false, fmt.Errorf("read output: %w", err)
	}
	defer func() { err = unsubscribe(err, sub) }()
	if err := b.control.PublishRequest(b.api+".DIRECT.GET."+b.streams.Out, inbox, query); err != nil {
		return nil, false, fmt.Errorf("read output: %w", err)
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("read output: %w", err)
		}
		// A stored message always carries its sequence, an answer of the server
		// about the batch never does.
		if msg.Header.Get("Nats-Sequence") == "" {
			more, err := endOfBatch(msg)
			return events, more, err
		}
		event, err := storedEvent(msg)
		if err != nil {
			return nil, false, err
		}
		events = append(events, event)
	}
}

func storedEvent(msg *nats.Msg) (StoredEvent, error) {
	cursor, err := strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return StoredEvent{}, fmt.Errorf("read output: sequence: %w", err)
	}
	return StoredEvent{Cursor: cursor, Headers: msg.Header, Data: msg.Data}, nil
}

// endOfBatch reads the message that ends a batch: 204, or 404 for an empty one.
func endOfBatch(msg *nats.Msg) (more bool, err error) {
	switch status := msg.Header.Get("Status"); status {
	case "204":
		pending := msg.Header.Get("Nats-Num-Pending")
		return pending != "" && pending != "0", nil
	case "404":
		return false, nil
	case "503":
		return false, fmt.Errorf("read output: %w", ErrNoStream)
	default:
		return false, fmt.Errorf("read output: server answered %s %s", status, msg.Header.Get("Description"))
	}
}

func unsubscribe(err error, sub *nats.Subscription) error {
	if unsubErr := sub.Unsubscribe(); err == nil && unsubErr != nil {
		return fmt.Errorf("read output: %w", unsubErr)
	}
	return err
}
