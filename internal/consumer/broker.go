package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/bus"
)

// lookEvery is how often the broker's clock and fullness are looked at: the
// clock of a host drifts by less than a millisecond in that time, and a stream
// does not fill its last fifth in it.
const lookEvery = 15 * time.Second

// lookBytes of results since the last look ask for another one at once: many
// results with output in them fill a stream faster than the clock would tell.
const lookBytes = 4 << 20

// brokerState is what was last seen of the broker.
type brokerState struct {
	mu       sync.Mutex
	skew     time.Duration // server's clock less ours
	full     error         // a stream is close to its bound
	deadFull error         // the dead letters take nothing
	ackWait  map[string]time.Duration
	written  int           // bytes of results since the last look
	soon     chan struct{} // has room for one word that a look is due
}

// wrote counts a result that went into the records.
func (s *brokerState) wrote(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written += n; s.written < lookBytes {
		return
	}
	s.written = 0
	select {
	case s.soon <- struct{}{}:
	default: // one is due already
	}
}

func (s *brokerState) pressure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full
}

func (s *brokerState) setPressure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = err
}

func (s *brokerState) deadLetters() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadFull
}

func (s *brokerState) setDeadLetters(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadFull = err
}

// age is how long ago the server stamped t, by its own clock as far as we know
// it, never negative.
func (s *brokerState) age(t time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, time.Now().Add(s.skew).Sub(t))
}

// wait is the effective ack wait of a queue.
func (s *brokerState) wait(queue string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ackWait[queue]
}

// shortest is the shortest ack wait of all queues.
func (s *brokerState) shortest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var d time.Duration
	for _, w := range s.ackWait {
		if d == 0 || w < d {
			d = w
		}
	}
	return d
}

// watch looks at the broker again and again until ctx ends.
func (c *Consumer) watch(ctx context.Context) {
	timer := time.NewTimer(jitter(lookEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-c.broker.soon:
		}
		c.look(ctx)
		timer.Reset(jitter(lookEvery))
	}
}

// look reads the broker's clock and whether its streams have room. What cannot be
// read stays as it was: readiness tells a lost connection.
func (c *Consumer) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.bus.Pressure(ctx); err == nil || errors.Is(err, bus.ErrPressure) {
		c.broker.setPressure(err)
	}
	asked := time.Now()
	now, err := c.bus.ServerTime(ctx)
	if err != nil {
		return
	}
	// The answer was stamped somewhere between: half of the way is the best guess.
	skew := now.Sub(asked.Add(time.Since(asked) / 2))
	c.broker.mu.Lock()
	c.broker.skew = skew
	c.broker.mu.Unlock()
}

// verifyAll verifies the consumers of all queues and reports all faults at once.
func (c *Consumer) verifyAll(ctx context.Context) error {
	var errs []error
	for _, q := range c.cfg.Queues {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := c.verify(ctx, q.Name)
		cancel()
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// verify reads what the server really does with a queue's consumer, and refuses
// what would make the fence unsafe or lose jobs.
func (c *Consumer) verify(ctx context.Context, queue string) (batch int, err error) {
	stream, name := c.bus.Streams().Jobs, bus.ConsumerName(queue)
	found, err := c.bus.JS().Consumer(ctx, stream, name)
	if err != nil {
		return 0, fmt.Errorf("queue %s: consumer %s of stream %s: %w (see `sallyport streams apply`)", queue, name, stream, err)
	}
	cfg := found.CachedInfo().Config
	need := 2 * (c.cfg.Margin + c.cfg.KillTime)
	switch {
	case len(cfg.BackOff) > 0:
		err = fmt.Errorf("backoff is set (%v): it replaces the ack wait; remove it", cfg.BackOff)
	case cfg.AckPolicy != jetstream.AckExplicitPolicy:
		err = fmt.Errorf("ack policy is %s: it must be explicit", cfg.AckPolicy)
	case cfg.MaxDeliver > 0:
		err = fmt.Errorf("max deliver is %d: jobs would be stranded; it must be -1", cfg.MaxDeliver)
	case cfg.AckWait < need:
		err = fmt.Errorf("ack wait is %s: with a kill time of %s and a margin of %s it must be at least %s", cfg.AckWait, c.cfg.KillTime, c.cfg.Margin, need)
	case cfg.MaxRequestExpires > 0 && cfg.MaxRequestExpires < c.cfg.PullExpires:
		err = fmt.Errorf("max request expires is %s: it must be at least %s", cfg.MaxRequestExpires, c.cfg.PullExpires)
	case cfg.FilterSubject != c.bus.Subjects().QueueJobs(queue):
		err = fmt.Errorf("filter is %q: it must be %q", cfg.FilterSubject, c.bus.Subjects().QueueJobs(queue))
	}
	if err != nil {
		return 0, fmt.Errorf("queue %s: consumer %s of stream %s: %w", queue, name, stream, err)
	}
	c.broker.mu.Lock()
	defer c.broker.mu.Unlock()
	if c.broker.ackWait == nil {
		c.broker.ackWait = map[string]time.Duration{}
	}
	c.broker.ackWait[queue] = cfg.AckWait
	return cfg.MaxRequestBatch, nil
}
