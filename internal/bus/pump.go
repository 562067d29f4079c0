package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
)

// flushTimeout bounds one PING/PONG: a server that does not answer for so long
// will be found by the pings.
const flushTimeout = 10 * time.Second

// idleRound is how long the pump sleeps while nothing is on its way.
const idleRound = time.Hour

// pump keeps the lanes moving: it flushes, sends again after a reconnect and
// after a pause, and hands the streams' answers to their lanes. One a
// connection; it sleeps while no lane holds anything.
type pump struct {
	nc    *nats.Conn
	log   zerolog.Logger
	inbox string
	// ackTimeout is how long a stored event may stay without an answer before it
	// counts as lost on the way.
	ackTimeout time.Duration
	sub        *nats.Subscription
	// budget bounds all windows of the process, for each kind of destination by
	// itself: a stream that refuses must not hold up replies.
	budget [2]*semaphore.Weighted
	bodies payloads
	kicked chan struct{} // one pending kick is enough

	// disturbances counts what may have cost messages without a reconnect.
	disturbances atomic.Uint64

	mu     sync.Mutex
	lanes  map[uint64]*lane // those that hold something
	lastID uint64
	asleep bool          // no round is due
	idle   chan struct{} // closed when lanes becomes empty; nil when nobody waits
	closed bool
}

func newPump(nc *nats.Conn, log zerolog.Logger, ackTimeout time.Duration) (*pump, error) {
	p := &pump{
		nc: nc, log: log, inbox: nc.NewInbox(), ackTimeout: ackTimeout, lanes: map[uint64]*lane{}, asleep: true,
		budget: [2]*semaphore.Weighted{semaphore.NewWeighted(budgetBytes), semaphore.NewWeighted(budgetBytes)},
		kicked: make(chan struct{}, 1),
	}
	var err error
	if p.sub, err = nc.Subscribe(p.inbox+".*", p.onAck); err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	return p, nil
}

func (p *pump) newLane(subject string, stored bool) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	return &lane{pump: p, id: p.lastID, subject: subject, stored: stored, epoch: p.epoch()}
}

// epoch changes with every reconnect. nats.go counts one up before the new
// connection takes anything, so two equal readings around a write and a PONG
// mean that both went over one connection.
func (p *pump) epoch() uint64 { return p.nc.Stats().Reconnects + p.disturbances.Load() }

// disturbed notes a failed write. nats.go drops its whole buffer when a write
// times out, other lanes' events in it too, and may keep the connection: start
// a new one, and count everything on the wire as in doubt until then.
func (p *pump) disturbed(err error) {
	if errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) ||
		errors.Is(err, nats.ErrConnectionDraining) || errors.Is(err, nats.ErrConnectionReconnecting) {
		return // it was not accepted, and nothing else was touched
	}
	p.disturbances.Add(1)
	if err := p.nc.ForceReconnect(); err != nil {
		p.log.Warn().Err(err).Msg("output connection not renewed")
	}
}

// run tends the lanes until ctx ends.
func (p *pump) run(ctx context.Context) {
	timer := time.NewTimer(idleRound)
	defer timer.Stop()
	for {
		timed := false
		select {
		case <-ctx.Done():
			return
		case <-p.kicked:
		case <-timer.C:
			timed = true
		}
		timer.Reset(p.round(ctx, timed))
	}
}

// round tends every lane once and returns how long to sleep. While jobs come and
// go it is a couple of seconds, so that a job need not wake the pump; it sleeps
// for good when a whole such time passed without any.
func (p *pump) round(ctx context.Context, timed bool) time.Duration {
	now := time.Now()
	next := now.Add(lazyConfirm)
	lanes := p.active(timed)
	if len(lanes) == 0 && timed {
		return idleRound
	}
	for _, l := range lanes {
		if at := l.tend(now); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	p.flush(ctx, true, lanes...)
	return max(time.Until(next), time.Millisecond)
}

// flush asks for a PONG behind what the lanes have on the wire and confirms it.
// It says whether anything was confirmed. With urgent, lanes that can wait are
// left out.
func (p *pump) flush(ctx context.Context, urgent bool, lanes ...*lane) bool {
	var marks []mark
	now := time.Now()
	for _, l := range lanes {
		if m, ok := l.mark(now, urgent); ok {
			marks = append(marks, m)
		}
	}
	if len(marks) == 0 || !p.nc.IsConnected() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := p.nc.FlushWithContext(ctx); err != nil {
		return false
	}
	epoch, confirmed := p.epoch(), false
	for _, m := range marks {
		if m.epoch == epoch {
			m.lane.confirm(m)
			confirmed = true
		}
	}
	return confirmed
}

// drain waits until no lane holds anything.
func (p *pump) drain(ctx context.Context) error {
	for {
		p.mu.Lock()
		if len(p.lanes) == 0 {
			p.closed = true
			p.mu.Unlock()
			return nil
		}
		if p.idle == nil {
			p.idle = make(chan struct{})
		}
		idle, n := p.idle, len(p.lanes)
		p.mu.Unlock()
		p.kick()
		select {
		case <-ctx.Done():
			p.refuseAll()
			return fmt.Errorf("output of %d jobs: %w: %w", n, ErrNotDelivered, context.Cause(ctx))
		case <-idle:
		}
	}
}

// kick wakes the pump; it never blocks.
func (p *pump) kick() {
	select {
	case p.kicked <- struct{}{}:
	default:
	}
}

// refuseAll gives up what is left and takes nothing more.
func (p *pump) refuseAll() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for _, l := range p.active(false) {
		l.discard()
	}
}

// active are the lanes that hold something. With none and mayRest, the next one
// wakes the pump.
func (p *pump) active(mayRest bool) []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asleep = mayRest && len(p.lanes) == 0
	lanes := make([]*lane, 0, len(p.lanes))
	for _, l := range p.lanes {
		lanes = append(lanes, l)
	}
	return lanes
}

// enlist and dismiss are called under the lane's mutex: a lane's lock is taken
// before the pump's, never the other way round.
func (p *pump) enlist(l *lane) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.lanes[l.id] = l
	if p.asleep {
		p.asleep = false
		p.kick()
	}
	return true
}

func (p *pump) dismiss(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lanes, l.id)
	if len(p.lanes) == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}

// take waits for room in the process's budget.
func (p *pump) take(ctx context.Context, l *lane, n int) error {
	budget := p.budgetOf(l)
	if budget.TryAcquire(int64(n)) {
		return nil
	}
	p.kick()
	if err := budget.Acquire(ctx, int64(n)); err != nil {
		return fmt.Errorf("output budget: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

func (p *pump) give(l *lane, n int) { p.budgetOf(l).Release(int64(n)) }

func (p *pump) budgetOf(l *lane) *semaphore.Weighted {
	if l.stored {
		return p.budget[1]
	}
	return p.budget[0]
}

// onAck hands a stream's answer to its lane.
func (p *pump) onAck(msg *nats.Msg) {
	words := strings.Split(strings.TrimPrefix(msg.Subject, p.inbox+"."), "-")
	if len(words) != 3 {
		return
	}
	var ids [3]uint64
	for i, word := range words {
		n, err := strconv.ParseUint(word, 36, 64)
		if err != nil {
			return
		}
		ids[i] = n
	}
	p.mu.Lock()
	l := p.lanes[ids[0]]
	p.mu.Unlock()
	if l != nil {
		l.answer(ids[1], ids[2], msg)
	}
}
