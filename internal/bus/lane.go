package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

const (
	// windowBytes and windowEvents bound what one destination of one job keeps
	// unconfirmed: several round trips' worth at 500 MB/s, and two destinations
	// stay below 4 MiB a job.
	windowBytes  = 2 << 20
	windowEvents = 256
	// budgetBytes bounds all windows of one kind of destination together; the two
	// stay within what a worker may use under load (64 MiB).
	budgetBytes = 24 << 20
	// eventBytes is what an event costs beside its data, in the window's books.
	eventBytes = 512

	// lazyConfirm is how long a replied event may stay unconfirmed while nobody
	// waits for it and there is room: most jobs end before, and their last flush
	// confirms everything.
	lazyConfirm = 2 * time.Second
	// maxAge gives up an event that nobody waits for: an Output that was left
	// without Final or Discard.
	maxAge = 15 * time.Minute
	// minBackoff and maxBackoff bound the pause after a refusal.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// lane is the way of one attempt's events to one destination: a window of what
// is not confirmed, in order.
type lane struct {
	pump    *pump
	id      uint64
	subject string
	stored  bool // confirmed by the stream's answer, not by a flush

	mu      sync.Mutex
	queue   []*entry // first unconfirmed first
	sent    int      // queue[:sent] is on the wire
	bytes   int
	last    uint64        // number of the last entry
	gen     uint64        // counts the rewinds; an answer to an older one is void
	epoch   uint64        // the connection's reconnects when queue[:sent] was sent
	retryAt time.Time     // nothing is sent before
	backoff time.Duration // the next pause after a refusal
	room    chan struct{} // closed when entries leave; nil when nobody waits
	lost    []uint64
	closed  error
}

// fate is what became of an event.
type fate int

const (
	waiting   fate = iota // in the window
	confirmed             // the server has it
	refused               // too big for the server or the stream
	givenUp               // not confirmed in time
)

// entry is one event in a window.
type entry struct {
	number uint64
	seq    uint64
	gen    uint64
	header nats.Header
	body   *payload
	size   int // in the window's books
	acked  bool
	fate   fate
	put    time.Time
	sent   time.Time
}

// put appends one event and sends it when nothing stands in its way. It blocks
// while the window or the process's budget is full. The lane holds the body for
// itself until the event leaves.
func (l *lane) put(ctx context.Context, seq uint64, header nats.Header, body *payload) (*entry, error) {
	e := &entry{seq: seq, header: header, body: body, size: body.size() + eventBytes}
	if err := l.pump.take(ctx, l, e.size); err != nil {
		return nil, err
	}
	for {
		room, err := l.tryPut(e)
		if err == nil && room == nil {
			return e, nil
		}
		if err == nil {
			l.pump.kick()
			select {
			case <-ctx.Done():
				err = context.Cause(ctx)
			case <-room:
				continue
			}
		}
		l.pump.give(l, e.size)
		return nil, err
	}
}

// tryPut returns nil when e is in the window, else a channel that closes when
// there is room.
func (l *lane) tryPut(e *entry) (<-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return nil, l.closed
	}
	if len(l.queue) > 0 && (l.bytes+e.size > windowBytes || len(l.queue) >= windowEvents) {
		return l.waitRoom(), nil
	}
	if len(l.queue) == 0 && !l.pump.enlist(l) {
		return nil, ErrClosed
	}
	now := time.Now()
	l.last++
	e.number, e.put = l.last, now
	e.body.hold()
	l.queue = append(l.queue, e)
	l.bytes += e.size
	l.send(now)
	if !l.stored && l.crowded() {
		l.pump.kick() // ask for the PONG before the window is full
	}
	return nil, nil
}

// crowded says whether a good part of the window is used. mu is held.
func (l *lane) crowded() bool { return l.bytes >= windowBytes/4 || len(l.queue) >= windowEvents/4 }

// waitRoom is the channel that closes when entries leave. mu is held.
func (l *lane) waitRoom() <-chan struct{} {
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}

// send puts everything that may go on the wire, in order. mu is held: the order
// on the connection is the order of the calls. The write goes to the client's
// buffer; it blocks for as long as the server's socket does not take it.
func (l *lane) send(now time.Time) {
	if epoch := l.pump.epoch(); epoch != l.epoch {
		// What was on the wire of the old connection is in doubt.
		l.rewind(0)
		l.epoch, l.backoff, l.retryAt = epoch, 0, time.Time{}
	}
	if now.Before(l.retryAt) {
		return
	}
	for l.sent < len(l.queue) {
		e := l.queue[l.sent]
		e.gen, e.sent, e.acked = l.gen, now, false
		msg := &nats.Msg{Subject: l.subject, Header: e.header, Data: e.body.data}
		if l.stored {
			msg.Reply = l.pump.ackSubject(l.id, e.number, e.gen)
		}
		err := l.pump.nc.PublishMsg(msg)
		switch {
		case err == nil:
			l.sent++
		case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject):
			// It was small enough when it was put: the server changed.
			l.refuse(l.sent)
		default:
			l.pump.disturbed(err)
			l.delay(now)
			return
		}
	}
}

// rewind takes queue[from:] back from the wire. mu is held.
func (l *lane) rewind(from int) {
	if from < l.sent {
		l.sent = from
		l.gen++
	}
}

// delay holds the lane back after a failure, doubling. mu is held.
func (l *lane) delay(now time.Time) {
	l.backoff = min(max(2*l.backoff, minBackoff), maxBackoff)
	l.retryAt = now.Add(l.backoff)
	l.pump.kick()
}

// refuse counts queue[i] as lost for good. mu is held.
func (l *lane) refuse(i int) {
	e := l.queue[i]
	l.lost = append(l.lost, e.seq)
	e.fate = refused
	l.queue = slices.Delete(l.queue, i, i+1)
	if i < l.sent {
		l.sent--
	}
	l.leave(e)
}

// leave gives back what e held. mu is held.
func (l *lane) leave(e *entry) {
	l.bytes -= e.size
	e.body.release()
	e.body = nil
	l.pump.give(l, e.size)
	if len(l.queue) == 0 {
		l.pump.dismiss(l)
	}
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
}

// release drops the confirmed head of the queue. mu is held.
func (l *lane) release() {
	n := 0
	for n < l.sent && l.queue[n].acked {
		n++
	}
	if n == 0 {
		return
	}
	gone := slices.Clone(l.queue[:n])
	l.queue = slices.Delete(l.queue, 0, n)
	l.sent -= n
	l.backoff = 0
	for _, e := range gone {
		e.fate = confirmed
		l.leave(e)
	}
}

// answer takes the stream's answer to one stored event.
func (l *lane) answer(number, gen uint64, msg *nats.Msg) {
	refusal, permanent := storedAnswer(msg)
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.queue[:l.sent], func(e *entry) bool { return e.number == number && e.gen == gen })
	switch {
	case i < 0: // answered before, or sent again since
	case refusal == nil:
		l.queue[i].acked = true
		l.release()
	case permanent:
		l.pump.log.Warn().Err(refusal).Str("subject", l.subject).Msg("stored event refused for its size")
		l.refuse(i)
		l.release()
	default:
		if l.backoff >= maxBackoff/2 {
			l.pump.log.Warn().Err(refusal).Str("subject", l.subject).Msg("stored event refused, trying again")
		}
		l.rewind(i)
		l.delay(time.Now())
	}
}

// storedAnswer reads a publish acknowledgement.
func storedAnswer(msg *nats.Msg) (refusal error, permanent bool) {
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return ErrNoStream, false
	}
	var ack struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return fmt.Errorf("answer: %w", err), false
	}
	if ack.Error != nil {
		return ack.Error, hasCode(ack.Error, codeMessageTooBig, codeHeaderTooBig)
	}
	return nil, false
}

// mark is how far a lane was sent at one moment.
type mark struct {
	lane   *lane
	number uint64
	gen    uint64
	epoch  uint64
}

// mark notes how far a lane that a flush confirms is on the wire; ok is false
// when nothing is, or when nobody is in a hurry and urgent is asked for.
func (l *lane) mark(now time.Time, urgent bool) (m mark, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stored || l.sent == 0 {
		return mark{}, false
	}
	if urgent && l.room == nil && !l.crowded() && now.Sub(l.queue[0].sent) < lazyConfirm {
		return mark{}, false
	}
	return mark{lane: l, number: l.queue[l.sent-1].number, gen: l.gen, epoch: l.epoch}, true
}

// confirm releases everything up to m: a PONG came back on the connection that
// all of it was written to.
func (l *lane) confirm(m mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gen != m.gen || l.epoch != m.epoch {
		return
	}
	for _, e := range l.queue[:l.sent] {
		if e.number <= m.number {
			e.acked = true
		}
	}
	l.release()
}

// tend sends what waits, and takes back what stayed without an answer. It
// returns when to look again.
func (l *lane) tend(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 && now.Sub(l.queue[0].put) > maxAge {
		l.drop()
		return time.Time{}
	}
	if l.stored && l.sent > 0 && !l.queue[0].acked && now.Sub(l.queue[0].sent) >= l.pump.ackTimeout {
		l.rewind(0)
	}
	l.send(now)
	switch {
	case len(l.queue) == 0:
		return time.Time{}
	case l.sent < len(l.queue):
		return l.retryAt
	case l.stored:
		return l.queue[0].sent.Add(l.pump.ackTimeout)
	default:
		return l.queue[0].sent.Add(lazyConfirm)
	}
}

// wait blocks until the window is empty.
func (l *lane) wait(ctx context.Context) error {
	for {
		l.mu.Lock()
		if l.closed != nil {
			l.mu.Unlock()
			return l.closed
		}
		if len(l.queue) == 0 {
			l.mu.Unlock()
			return nil
		}
		room := l.waitRoom()
		// A caller that waits anyway flushes itself: no hand-over to the pump.
		flush := !l.stored && l.sent == len(l.queue)
		l.mu.Unlock()
		if flush && l.pump.flush(ctx, false, l) {
			continue
		}
		l.pump.kick()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %d events to %s: %w", ErrNotDelivered, l.unconfirmed(), l.subject, context.Cause(ctx))
		case <-room:
		}
	}
}

// giveUp counts what is not confirmed as lost.
func (l *lane) giveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}

// drop empties the window as lost. mu is held.
func (l *lane) drop() {
	gone := l.queue
	l.queue, l.sent = nil, 0
	l.gen++
	for _, e := range gone {
		e.fate = confirmed
		if !e.acked {
			e.fate = givenUp
			l.lost = append(l.lost, e.seq)
		}
		l.leave(e)
	}
}

func (l *lane) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed == nil {
		l.closed = ErrDiscarded
	}
	l.drop()
}

func (l *lane) lostEvents() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lost)
}

func (l *lane) unconfirmed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// fateOf is what became of e so far.
func (l *lane) fateOf(e *entry) fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.fate
}

// ranges joins sequence numbers into ascending ranges. 0 is no sequence.
func ranges(seqs []uint64) []wire.LostRange {
	slices.Sort(seqs)
	var list []wire.LostRange
	for _, s := range slices.Compact(seqs) {
		switch n := len(list); {
		case s == 0:
		case n > 0 && list[n-1].To+1 == s:
			list[n-1].To = s
		default:
			list = append(list, wire.LostRange{From: s, To: s})
		}
	}
	return list
}

// ackSubject is the reply subject of a stored event; parseAck reads it.
func (p *pump) ackSubject(lane, number, gen uint64) string {
	b := make([]byte, 0, len(p.inbox)+32)
	b = append(b, p.inbox...)
	b = append(b, '.')
	b = strconv.AppendUint(b, lane, 36)
	b = append(b, '-')
	b = strconv.AppendUint(b, number, 36)
	b = append(b, '-')
	b = strconv.AppendUint(b, gen, 36)
	return string(b)
}
