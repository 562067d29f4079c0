package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rs/zerolog"
)

// part is one long-lived part of a service: run blocks until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// runInOrder runs all parts at once. When ctx ends, or a part returns by itself,
// it stops them one after the other in the order given, each only when the one
// before it has returned: what others need stands later. It returns when all
// have returned, with what each had to say.
func runInOrder(ctx context.Context, log zerolog.Logger, parts ...part) error {
	var (
		all     sync.WaitGroup
		ended   = make(chan struct{}, len(parts)) // one word a part, nobody blocks
		errs    = make([]error, len(parts))
		done    = make([]chan struct{}, len(parts))
		stops   = make([]context.CancelFunc, len(parts))
		running = context.WithoutCancel(ctx)
	)
	for i, p := range parts {
		own, stop := context.WithCancel(running)
		stops[i], done[i] = stop, make(chan struct{})
		all.Go(func() {
			defer close(done[i])
			err := p.run(own)
			switch {
			case err != nil:
				errs[i] = fmt.Errorf("%s: %w", p.name, err)
			case own.Err() == nil && ctx.Err() == nil:
				errs[i] = fmt.Errorf("%s: ended by itself", p.name)
			}
			ended <- struct{}{}
		})
	}
	select {
	case <-ctx.Done():
		log.Info().Msg("stopping")
	case <-ended:
		log.Error().Msg("a part ended, stopping")
	}
	for i, p := range parts {
		stops[i]()
		<-done[i]
		log.Debug().Str("part", p.name).Msg("stopped")
	}
	all.Wait()
	return errors.Join(errs...)
}
