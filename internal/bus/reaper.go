package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

const (
	// AnyHost makes a reaper consumer for all hosts of a provider.
	AnyHost = "*"

	// DefaultReaperAckWait is how long a reaper may be silent about a delivery.
	DefaultReaperAckWait = 60 * time.Second
	minReaperAckWait     = time.Second
	// reaperMaxAckPending is far above any number of quarantined leases, because
	// delayed naks count in it and must never block others.
	reaperMaxAckPending = 1 << 16
	// maxFetch bounds one Fetch.
	maxFetch = 256
	// fetchExpires is the longest wait of one pull request at the server.
	fetchExpires = 5 * time.Second
)

// ReaperQueue delivers the quarantine records of one provider and host, each
// change of a record as a delivery of its own, until they are acknowledged.
type ReaperQueue struct {
	bus      *Bus
	consumer string
	inbox    string
	sub      *nats.Subscription
	ackWait  time.Duration

	mu   sync.Mutex // one Fetch at a time
	next uint64
}

// ReaperConsumerName is the durable name for a provider and host.
func ReaperConsumerName(provider, host string) string {
	if host == AnyHost {
		host = "all"
	}
	return "reaper-" + provider + "-" + host
}

// EnsureReaper makes the durable consumer for a provider's records on one host
// (AnyHost: on all) where it is missing or has other settings, and opens it.
// Several reapers may share it. ackWait (1 s or more; 0: DefaultReaperAckWait) is
// how long they may be silent about a delivery. Close ends it; the consumer stays.
func (b *Bus) EnsureReaper(ctx context.Context, provider, host string, ackWait time.Duration) (*ReaperQueue, error) {
	if ackWait == 0 {
		ackWait = DefaultReaperAckWait
	}
	ackWait = max(ackWait, minReaperAckWait)
	filter := b.subjects.HostQuarantine(provider, host)
	if filter == "" || provider == "*" {
		return nil, fmt.Errorf("reaper of %q on %q: not a valid token", provider, host)
	}
	name := ReaperConsumerName(provider, host)
	_, err := b.js.CreateOrUpdateConsumer(ctx, b.streams.Ledger, jetstream.ConsumerConfig{
		Name: name, Durable: name, Description: "Sallyport: reaper",
		DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
		FilterSubject: filter, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: reaperMaxAckPending, MaxWaiting: minMaxWaiting,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s on %s: %w", name, b.streams.Ledger, offline(err))
	}
	q := &ReaperQueue{bus: b, consumer: name, inbox: b.control.NewInbox(), ackWait: ackWait}
	if q.sub, err = b.control.SubscribeSync(q.inbox + ".*"); err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	return q, nil
}

// Settler settles a delivery. Each call waits for the confirmation.
type Settler interface {
	// Ack ends the delivery.
	Ack(ctx context.Context) error
	// InProgress starts the delivery's ack wait anew.
	InProgress(ctx context.Context) error
	// NakDelay asks for the record again after delay, rounded up to 1 ms.
	NakDelay(ctx context.Context, delay time.Duration) error
}

// Delivery is one delivered quarantine record.
type Delivery struct {
	Settler
	// Subject of the record.
	Subject string
	// Record is what was delivered; read the current one (Quarantines.Get)
	// before acting on it. It is empty when Err is set.
	Record wire.Quarantine
	// Err says why the record cannot be read.
	Err error
	// Seq is the delivered record's stream sequence, what Resolve expects.
	Seq uint64
	// Time is the server's time of the record.
	Time time.Time
	// Deliveries counts from 1; it is a hint and may start again.
	Deliveries int
	// AckWait is within what it must be settled or prolonged; else it comes again.
	AckWait time.Duration
}

// Fetch waits up to wait (1 ms to 5 s) for up to limit deliveries (1 to 256).
// None is no error; without a connection the error comes at once, so pause before
// the next try. ErrSilent means that the server did not say that there is none: it
// takes no pull requests from us, or is very late. A message that is on its way when ctx ends comes with the
// next Fetch.
func (q *ReaperQueue) Fetch(ctx context.Context, limit int, wait time.Duration) ([]*Delivery, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit = max(1, min(limit, maxFetch))
	wait = max(time.Millisecond, min(wait, fetchExpires))
	q.next++
	id := strconv.FormatUint(q.next, 36)
	request := fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, limit, wait.Nanoseconds())
	endpoint := q.bus.api + ".CONSUMER.MSG.NEXT." + q.bus.streams.Ledger + "." + q.consumer
	if err := q.bus.control.PublishRequest(endpoint, q.inbox+"."+id, request); err != nil {
		return nil, fmt.Errorf("pull from %s: %w", q.consumer, offline(err))
	}
	// The server ends the request at its expiry; the rest is for the way.
	waiting, cancel := context.WithTimeout(ctx, wait+q.bus.timeout)
	defer cancel()
	var list []*Delivery
	for len(list) < limit {
		msg, err := q.sub.NextMsgWithContext(waiting)
		if errors.Is(err, context.DeadlineExceeded) {
			if len(list) == 0 && ctx.Err() == nil {
				return nil, fmt.Errorf("pull from %s: %w", q.consumer, ErrSilent)
			}
			return list, nil
		}
		if err != nil {
			return list, fmt.Errorf("pull from %s: %w", q.consumer, err)
		}
		if strings.HasPrefix(msg.Reply, "$JS.ACK.") {
			list = append(list, q.delivery(msg))
			continue
		}
		if !strings.HasSuffix(msg.Subject, "."+id) {
			continue // about an earlier request
		}
		done, err := endOfPull(msg)
		if done || err != nil {
			if err != nil {
				err = fmt.Errorf("pull from %s: %w", q.consumer, err)
			}
			return list, err
		}
	}
	return list, nil
}

// endOfPull reads a status message of our request.
func endOfPull(msg *nats.Msg) (done bool, err error) {
	switch status := msg.Header.Get("Status"); status {
	case "100":
		return false, nil
	case "404", "408":
		return true, nil
	case "503":
		return true, fmt.Errorf("%w: the consumer is gone or has no leader", ErrNoStream)
	default:
		return true, fmt.Errorf("server answered %s %s", status, msg.Header.Get("Description"))
	}
}

func (q *ReaperQueue) delivery(msg *nats.Msg) *Delivery {
	d := &Delivery{Subject: msg.Subject, AckWait: q.ackWait, Settler: settler{q.bus, msg.Subject, msg.Reply}}
	if meta, err := msg.Metadata(); err == nil {
		d.Seq, d.Time, d.Deliveries = meta.Sequence.Stream, meta.Timestamp, int(meta.NumDelivered)
	} else {
		d.Err = fmt.Errorf("quarantine %s: %w", msg.Subject, err)
		return d
	}
	rec, err := wire.DecodeQuarantine(msg.Data)
	if err != nil {
		d.Err = fmt.Errorf("quarantine %s: %w", msg.Subject, err)
		return d
	}
	d.Record = *rec
	return d
}

// Close stops receiving. What was delivered and not acknowledged comes again
// after the ack wait.
func (q *ReaperQueue) Close() error {
	if err := q.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return fmt.Errorf("consumer %s: %w", q.consumer, err)
	}
	return nil
}

// settler settles by the delivery's own reply subject.
type settler struct {
	bus            *Bus
	subject, reply string
}

// Ack implements Settler.
func (s settler) Ack(ctx context.Context) error { return s.answer(ctx, "+ACK") }

// InProgress implements Settler.
func (s settler) InProgress(ctx context.Context) error { return s.answer(ctx, "+WPI") }

// NakDelay implements Settler.
func (s settler) NakDelay(ctx context.Context, delay time.Duration) error {
	delay = max(time.Millisecond, delay)
	return s.answer(ctx, `-NAK {"delay":`+strconv.FormatInt(delay.Nanoseconds(), 10)+`}`)
}

func (s settler) answer(ctx context.Context, word string) error {
	ctx, cancel := context.WithTimeout(ctx, s.bus.timeout)
	defer cancel()
	if _, err := s.bus.control.RequestWithContext(ctx, s.reply, []byte(word)); err != nil {
		return fmt.Errorf("%s for %s: %w", word, s.subject, err)
	}
	return nil
}

// Find reads the records of a lease whose provider and host are not known: none or
// one, as lease ids are never used twice. Errors as List's.
func (q *Quarantines) Find(ctx context.Context, lease string) ([]StoredQuarantine, error) {
	filter := q.bus.subjects.LeaseQuarantine(lease)
	if filter == "" {
		return nil, fmt.Errorf("quarantine of %q: not a valid token", lease)
	}
	return q.list(ctx, filter)
}
