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
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
)

// flushTimeout bounds one PING/PONG: a server that does not answer for so long
// will be found by the pings.
const flushTimeout = 10 * time.Second

// pump keeps the lanes moving: it flushes, sends again after a reconnect and
// after a pause, and hands the streams' answers to their lanes. One a
// connection; it sleeps while no lane holds anything.
type pump struct {
	nc     *nats.Conn
	log    zerolog.Logger
	inbox  string
	sub    *nats.Subscription
	budget *semaphore.Weighted
	kicked chan struct{} // one pending kick is enough

	mu     sync.Mutex
	lanes  map[uint64]*lane // those that hold something
	lastID uint64
	idle   chan struct{} // closed when lanes becomes empty; nil when nobody waits
	closed bool
}

func newPump(nc *nats.Conn, log zerolog.Logger) (*pump, error) {
	p := &pump{
		nc: nc, log: log, inbox: nc.NewInbox(), lanes: map[uint64]*lane{},
		budget: semaphore.NewWeighted(budgetBytes), kicked: make(chan struct{}, 1),
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
func (p *pump) epoch() uint64 { return p.nc.Stats().Reconnects }

// run tends the lanes until ctx ends.
func (p *pump) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.kicked:
		case <-timer.C:
		}
		timer.Reset(p.round(ctx))
	}
}

// round tends every lane once and returns how long to sleep.
func (p *pump) round(ctx context.Context) time.Duration {
	now := time.Now()
	next := now.Add(time.Hour)
	for _, l := range p.active() {
		if at := l.tend(now); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	p.flush(ctx, p.active()...)
	return max(time.Until(next), time.Millisecond)
}

// flush asks for a PONG behind what the lanes have on the wire and confirms it.
// It says whether anything was confirmed.
func (p *pump) flush(ctx context.Context, lanes ...*lane) bool {
	var marks []mark
	for _, l := range lanes {
		if m, ok := l.mark(); ok {
			marks = append(marks, m)
		}
	}
	if len(marks) == 0 {
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
			for _, l := range p.active() {
				l.discard()
			}
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

func (p *pump) active() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	lanes := make([]*lane, 0, len(p.lanes))
	for _, l := range p.lanes {
		lanes = append(lanes, l)
	}
	return lanes
}

// enlist and dismiss are called under the lane's mutex: a lane's lock is taken
// before the pump's, never the other way round.
func (p *pump) enlist(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes[l.id] = l
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
func (p *pump) take(ctx context.Context, n int) error {
	if p.budget.TryAcquire(int64(n)) {
		return nil
	}
	p.kick()
	if err := p.budget.Acquire(ctx, int64(n)); err != nil {
		return fmt.Errorf("output budget: %w", errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

func (p *pump) give(n int) { p.budget.Release(int64(n)) }

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
