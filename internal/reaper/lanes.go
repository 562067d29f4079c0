package reaper

import (
	"context"
	"errors"
	"time"
)

// errCrowded ends a slow try when there are too many of them.
var errCrowded = errors.New("too many slow tries run at once")

// lanes bound the tries of one source. A try begins in the quick lane; one that
// takes long moves to the slow lane and frees its place. So tries that hang hold
// a new lease up for no longer than it takes to notice that they do. A channel's
// length is the number of tries in that lane.
type lanes struct {
	quick, slow chan struct{}
	slowAfter   time.Duration
}

func newLanes(cfg Config) *lanes {
	return &lanes{
		quick: make(chan struct{}, cfg.Parallel), slow: make(chan struct{}, cfg.MaxSlow), slowAfter: cfg.SlowAfter,
	}
}

// enter takes a place in the quick lane, which the caller gives back by leave or
// run.
func (l *lanes) enter(ctx context.Context) error {
	select {
	case l.quick <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *lanes) leave() { <-l.quick }

// run runs f in the place that its caller entered, and leaves. f's context ends
// with errCrowded when it is slow and the slow lane is full.
func (l *lanes) run(ctx context.Context, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lane := l.quick
	moved := make(chan struct{})
	timer := time.AfterFunc(l.slowAfter, func() {
		defer close(moved)
		select {
		case l.slow <- struct{}{}:
			<-l.quick
			lane = l.slow
		default:
			cancel(errCrowded)
		}
	})
	f(ctx)
	if !timer.Stop() {
		<-moved
	}
	<-lane
}
