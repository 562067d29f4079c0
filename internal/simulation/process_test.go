package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
)

// busTimeout bounds a request to the broker, as the bus does.
const busTimeout = 5 * time.Second

var (
	errDead = errors.New("this process is dead")
	errDown = errors.New("not connected")
	errCall = errors.New("refused by the broker")
)

// process is one start of a worker or a reaper. Everything that it does outside
// of itself passes here: what is dead does nothing more, what is frozen waits.
type process struct {
	s    *sim
	name string
	ctx  context.Context //nolint:containedctx // ends with the process
	end  context.CancelFunc

	mu     sync.Mutex
	dead   bool
	died   chan struct{}
	thawed chan struct{} // nil while it runs
	cutOff bool
}

func newProcess(s *sim, name string) *process {
	ctx, end := context.WithCancel(s.t.Context())
	return &process{s: s, name: name, ctx: ctx, end: end, died: make(chan struct{})}
}

// pass lets a living process through, holds a frozen one, and stops a dead one.
func (p *process) pass() error {
	for {
		p.mu.Lock()
		dead, thawed := p.dead, p.thawed
		p.mu.Unlock()
		switch {
		case dead:
			return errDead
		case thawed == nil:
			return nil
		}
		select {
		case <-thawed:
		case <-p.died:
		}
	}
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// kill ends the process without a word.
func (p *process) kill() {
	p.mu.Lock()
	if !p.dead {
		p.dead = true
		close(p.died)
	}
	p.mu.Unlock()
	p.end()
}

func (p *process) freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.thawed == nil:
		p.thawed = make(chan struct{})
	case !on && p.thawed != nil:
		close(p.thawed)
		p.thawed = nil
	}
}

func (p *process) cut(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutOff = on
}

// answers says whether somebody who asks it over the broker would be answered.
func (p *process) answers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead && p.thawed == nil && !p.cutOff
}

func (p *process) connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.cutOff && !p.s.down()
}

// call carries a request to the broker and the answer back.
func (p *process) call(ctx context.Context, what string, effect func() error) error {
	if err := p.pass(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	err := p.carry(ctx, what, effect)
	if dead := p.pass(); dead != nil {
		return dead
	}
	return err
}

func (p *process) carry(ctx context.Context, what string, effect func() error) error {
	s := p.s
	way := s.upTo("way "+p.name, 20*time.Millisecond)
	if s.chance(faultSlow, p.name) {
		way = s.upTo("way "+p.name, busTimeout)
	}
	if err := pause(ctx, way/2); err != nil {
		return fmt.Errorf("%s: %w: %w", what, bus.ErrUnknown, err)
	}
	switch {
	case !p.connected():
		return fmt.Errorf("%s: %w", what, errDown)
	case s.chance(faultRefuse, p.name):
		return fmt.Errorf("%s: %w", what, errCall)
	case s.chance(faultHang, p.name):
		<-ctx.Done()
		return fmt.Errorf("%s: %w: %w", what, bus.ErrUnknown, context.Cause(ctx))
	case s.chance(faultHangDone, p.name):
		err := effect()
		s.tell(p.name, "%s: done (%v), no answer", what, err)
		<-ctx.Done()
		return fmt.Errorf("%s: %w: %w", what, bus.ErrUnknown, context.Cause(ctx))
	}
	// What was sent arrives, whether its sender has died meanwhile or not.
	err := effect()
	if s.chance(faultAnswer, p.name) {
		s.tell(p.name, "%s: done (%v), answer lost", what, err)
		return fmt.Errorf("%s: %w", what, bus.ErrUnknown)
	}
	if late := pause(ctx, way/2); late != nil {
		return fmt.Errorf("%s: %w: %w", what, bus.ErrUnknown, late)
	}
	return err
}
