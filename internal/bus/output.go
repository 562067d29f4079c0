package bus

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/wire"
)

// MaxChunkBytes is the most data in one event: larger chunks gain nothing
// (measured: from 64 KiB on the throughput is flat) and cost window.
const MaxChunkBytes = 256 << 10

// traceRoom is what a traceparent header takes at most.
const traceRoom = 128

// settleTime bounds the wait of a method whose context has no deadline.
const settleTime = 30 * time.Second

// OutputConfig says whose output it is and where it goes.
type OutputConfig struct {
	Job     wire.Job
	Attempt int
	Mode    wire.OutputMode
	// Reply is the reply subject, checked by the caller (wire.ReplyRule); empty
	// when there is none.
	Reply string
	// Trace is the traceparent that every event carries; empty for none.
	Trace string
}

// FinalConfig is the OutputConfig of a final that is published again.
type FinalConfig = OutputConfig

// Output takes the events of one attempt (run.Output) and brings them to where
// the mode says:
//
//	mode     stdout, stderr   started, result
//	stored   exec.out         exec.out, and the reply subject when there is one
//	reply    reply subject    reply subject
//	both     both             both
//	inline   nowhere          the reply subject when there is one, else exec.out
//	none     nowhere          the same
//
// Mode reply without a reply subject counts as stored.
//
// Each destination has a window of at most windowBytes and windowEvents that are
// not confirmed; when it is full, Emit blocks and so holds the program back.
// Stored events are confirmed by the stream's acknowledgement, replied ones by a
// PING/PONG behind them on the same connection (at the server, that is: core
// NATS tells nobody whether a reader took them).
//
// Order: after a loss (reconnect, refusal, missing acknowledgement) everything
// from the first unconfirmed event on is sent again, in order, with its old
// sequence number. What that means to a reader, by Exec-Seq:
//
//   - On the reply subject, drop what is not above the last one seen. A gap is
//     final there: NATS itself dropped messages for a reader that was too slow.
//   - In the stored output an event that was refused may stand behind events that
//     follow it, and they stand behind it once more. Take exactly the event that
//     follows the last one and pass over all others; what is still missed at the
//     result is lost and stands in its lost_ranges.
//
// Expected-last-subject-sequence is not used: the next event's expectation would
// be the answer to the one before, a round trip each.
//
// An Output whose run ends without Final must be given up with Discard.
type Output struct {
	bus    *Bus
	cfg    OutputConfig
	reply  *lane // nil when there is no reply subject
	stored *lane // nil when nothing goes to exec.out

	mu          sync.Mutex // held by Final
	result      *payload   // what the entries below carry
	storedFinal *entry     // the result on its way to exec.out
	replyFinal  *entry     // the result on its way to the reply subject
	end         *entry     // and the end behind it
}

// NewOutput makes the output of one attempt. It sends nothing by itself.
func (b *Bus) NewOutput(cfg OutputConfig) *Output {
	if cfg.Mode == wire.OutputReply && cfg.Reply == "" {
		cfg.Mode = wire.OutputStored
	}
	o := &Output{bus: b, cfg: cfg}
	if cfg.Reply != "" {
		o.reply = b.pump.newLane(cfg.Reply, false)
	}
	if cfg.Reply == "" || cfg.Mode == wire.OutputStored || cfg.Mode == wire.OutputBoth {
		o.stored = b.pump.newLane(b.subjects.Out(cfg.Job.Tenant, cfg.Job.ID), true)
	}
	return o
}

// MaxChunk is the greatest number of data bytes that one event may carry now: at
// most MaxChunkBytes, and less where the connected server's maximum payload says
// so. It can change with a reconnect: read it for each chunk.
func (o *Output) MaxChunk() int {
	return max(1, min(MaxChunkBytes, o.bus.maxEventBytes()))
}

// maxEventBytes is how much data fits into one event with all its headers.
func (b *Bus) maxEventBytes() int {
	return int(b.output.MaxPayload()) - wire.EventHeaderBytes - traceRoom
}

// Emit hands over one event and copies its data. It blocks while the window is
// full. An error means that the event did not go out: ErrTooBig, ErrDiscarded,
// ErrClosed or ctx's.
func (o *Output) Emit(ctx context.Context, ev wire.Event) error {
	toReply, toStored := o.route(ev.Type)
	if toReply == nil && toStored == nil {
		return nil
	}
	if len(ev.Data) > o.bus.maxEventBytes() {
		return fmt.Errorf("event %d: %w: %d bytes", ev.Seq, ErrTooBig, len(ev.Data))
	}
	header, body := o.header(ev), o.bus.pump.bodies.clone(ev.Data)
	defer body.release()
	if toStored != nil {
		if _, err := toStored.put(ctx, ev.Seq, header, body); err != nil {
			return fmt.Errorf("event %d: %w", ev.Seq, err)
		}
	}
	if toReply != nil {
		if _, err := toReply.put(ctx, ev.Seq, header, body); err != nil {
			return fmt.Errorf("event %d: %w", ev.Seq, err)
		}
	}
	return nil
}

// route is where an event of this type goes.
func (o *Output) route(t wire.EventType) (reply, stored *lane) {
	if !t.Output() {
		return o.reply, o.stored
	}
	switch o.cfg.Mode {
	case wire.OutputStored:
		return nil, o.stored
	case wire.OutputReply:
		return o.reply, nil
	case wire.OutputBoth:
		return o.reply, o.stored
	case wire.OutputInline, wire.OutputNone:
		return nil, nil
	default:
		return nil, nil
	}
}

func (o *Output) header(ev wire.Event) nats.Header {
	ev.Job, ev.Attempt = o.cfg.Job.Key(), o.cfg.Attempt
	header := nats.Header(ev.Headers())
	if o.cfg.Trace != "" && len(o.cfg.Trace) < traceRoom/2 {
		header["traceparent"] = []string{o.cfg.Trace}
	}
	return header
}

// Flush waits until every stored event is confirmed and returns what was lost,
// ascending and joined; call it once, before the result is made. When ctx ends
// first (without a deadline, settleTime), what is not confirmed then is given
// up, counted as lost and returned too, beside ErrNotDelivered.
//
// Replied events are not waited for: they stay in their window, in front of the
// result, and Final confirms both.
func (o *Output) Flush(ctx context.Context) ([]wire.LostRange, error) {
	if o.stored == nil {
		return o.Lost(), nil
	}
	ctx, cancel := settle(ctx)
	defer cancel()
	err := o.stored.wait(ctx)
	if err != nil {
		o.stored.giveUp()
	}
	return o.Lost(), err
}

// Lost is what was handed over and surely will not be confirmed, so far.
func (o *Output) Lost() []wire.LostRange {
	var seqs []uint64
	for _, l := range o.lanes() {
		seqs = append(seqs, l.lostEvents()...)
	}
	return ranges(seqs)
}

// Unconfirmed is the number of events that wait for their confirmation.
func (o *Output) Unconfirmed() int {
	n := 0
	for _, l := range o.lanes() {
		n += l.unconfirmed()
	}
	return n
}

// Final publishes the result everywhere it belongs and an empty end event behind
// it on the reply subject, and returns nil once the server has confirmed all of
// it and all output before. seq is the result's event sequence (0 for an attempt
// that has no events). ErrTooBig means that the result does not fit and went
// nowhere: hand in one without inline output. On any other error call it again
// with the same result: it goes on where it was and repeats nothing that is
// still on its way.
func (o *Output) Final(ctx context.Context, result []byte, seq uint64) error {
	ctx, cancel := settle(ctx)
	defer cancel()
	if len(result) > o.bus.maxEventBytes() {
		return fmt.Errorf("result: %w: %d bytes", ErrTooBig, len(result))
	}
	o.mu.Lock()
	defer o.mu.Unlock() // while waiting too: two finals of one attempt take turns
	if o.result == nil || !bytes.Equal(o.result.data, result) {
		o.result = o.bus.pump.bodies.clone(result) // held for good: a repeated Final compares with it
		o.storedFinal, o.replyFinal, o.end = nil, nil, nil
	}
	header := o.header(wire.Event{Type: wire.EventResult, Seq: seq})
	// The stream first: it alone may still refuse the size, and a reader must not
	// see two results.
	if o.stored != nil {
		err := deliver(ctx, o.stored, &o.storedFinal, seq, header, o.result)
		if err == nil {
			err = settled(ctx, o.stored, &o.storedFinal)
		}
		if err != nil {
			return fmt.Errorf("result to stream %s: %w", o.bus.streams.Out, err)
		}
	}
	if o.reply == nil {
		return nil
	}
	end := wire.Event{Type: wire.EventEnd}
	if seq > 0 {
		end.Seq = seq + 1
	}
	err := deliver(ctx, o.reply, &o.replyFinal, seq, header, o.result)
	if err == nil {
		err = deliver(ctx, o.reply, &o.end, end.Seq, o.header(end), &payload{})
	}
	if err == nil {
		err = settled(ctx, o.reply, &o.replyFinal, &o.end)
	}
	if err != nil {
		return fmt.Errorf("result to the reply subject: %w", err)
	}
	return nil
}

// deliver puts one event of the final into its lane, once.
func deliver(ctx context.Context, l *lane, e **entry, seq uint64, header nats.Header, body *payload) error {
	if *e != nil {
		return nil
	}
	var err error
	*e, err = l.put(ctx, seq, header, body)
	return err
}

// settled waits until the lane is empty and says what became of the final's
// events. One that was not confirmed is forgotten, so that the next Final puts
// it again.
func settled(ctx context.Context, l *lane, events ...**entry) error {
	if err := l.wait(ctx); err != nil {
		return err
	}
	for _, e := range events {
		switch l.fateOf(*e) {
		case confirmed:
		case refused:
			*e = nil
			return ErrTooBig
		case givenUp, waiting:
			*e = nil
			return ErrNotDelivered
		}
	}
	return nil
}

// PublishFinal publishes a stored result (again), for a delivery that has no
// Output. As Final.
func (b *Bus) PublishFinal(ctx context.Context, cfg FinalConfig, result []byte, seq uint64) error {
	o := b.NewOutput(cfg)
	defer o.Discard()
	return o.Final(ctx, result, seq)
}

// Discard gives up what is not confirmed and refuses everything after it. It
// publishes nothing: it is what a worker does that no longer owns the job. After
// a successful Final it does nothing that anybody would see.
func (o *Output) Discard() {
	for _, l := range o.lanes() {
		l.discard()
	}
}

func (o *Output) lanes() []*lane {
	var lanes []*lane
	if o.stored != nil {
		lanes = append(lanes, o.stored)
	}
	if o.reply != nil {
		lanes = append(lanes, o.reply)
	}
	return lanes
}

// settle bounds a wait.
func settle(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, settleTime)
}
