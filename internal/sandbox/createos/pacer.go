package createos

import (
	"context"
	"sync"
	"time"
)

// Pacer spaces the starts of calls to one origin, in the order in which they come. All
// providers that share an origin share one, since the service counts by address.
type Pacer struct {
	interval time.Duration
	// turn is held by the one whose start is next. Those who wait for a channel are
	// served in their order, and one who gives up leaves no trace.
	turn chan struct{}

	mu   sync.Mutex
	next time.Time // guarded by mu
}

// NewPacer makes a pacer; interval is the least time between two starts.
func NewPacer(interval time.Duration) *Pacer {
	return &Pacer{interval: interval, turn: make(chan struct{}, 1)}
}

// Wait returns when it is the caller's turn, or with the cause of the context's end: then
// nothing was taken from those behind.
func (p *Pacer) Wait(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.turn }()
	for {
		rest := p.take()
		if rest <= 0 {
			return nil
		}
		if err := sleep(ctx, rest); err != nil {
			return err
		}
	}
}

// take takes the start that is due, or says how long it is until then.
func (p *Pacer) take() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if rest := p.next.Sub(now); rest > 0 {
		return rest
	}
	p.next = now.Add(p.interval)
	return 0
}

// Hold keeps everybody back for d: the service has said when to come again.
func (p *Pacer) Hold(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := time.Now().Add(d); until.After(p.next) {
		p.next = until
	}
}

// sleep waits for d, or returns the cause of the context's end.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
