package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// Handler runs attempts. All methods are called concurrently.
type Handler interface {
	// Ready is nil when a job could be run now, else it says why not. It is called
	// often and must not block.
	Ready() error
	// Check refuses what this worker will never run, before anything is claimed.
	Check(r *wire.Request) *wire.Invalid
	// Handle runs one attempt and returns when nothing of it goes on. ctx ends
	// with one of package run's causes; Handle then ends the run and returns
	// within Config.KillTime. A run that ErrShutdown ended is Lost with
	// ReasonShutdown. No call of gate or out is in flight after it returned.
	Handle(ctx context.Context, a run.Attempt, gate run.Gate, out run.Output) run.Outcome
}

// Queue is one queue that the worker takes jobs from.
type Queue struct {
	Name string
	// Weight is the queue's share of the free slots while several have a backlog;
	// 0 means 1.
	Weight int
	// Concurrency is the most jobs of this queue at once; 0 means all slots.
	Concurrency int
}

// Config is what a Consumer is told. Zero durations take the defaults.
type Config struct {
	// Queues to take jobs from, at least one.
	Queues []Queue
	// Slots is the most jobs at once, at least 1.
	Slots int
	// Worker is named in records and results; its ID is one token.
	Worker wire.WorkerRef
	// Replies decides on the reply subjects of jobs, ServiceReplies on those of
	// control requests. The zero rules allow none.
	Replies, ServiceReplies wire.ReplyRule
	// ResultRetention is how long terminal records are kept; a message without a
	// record that is older, less RetentionMargin, may have had one. Defaults: the
	// bus's, and a tenth of the retention up to 1 h.
	ResultRetention, RetentionMargin time.Duration
	// KillTime is the longest time from the end of a handler's context to its
	// return: grace period, kill and proof. Default 10 s.
	KillTime time.Duration
	// Margin covers clock rates and the way of a message, in the fence of an owner
	// (before the ack wait) and in a takeover (after it). Default 5 s.
	Margin time.Duration
	// Drain is how long running jobs may go on after Run's context ended; 0 ends
	// them at once.
	Drain time.Duration
	// SettleTimeout bounds what follows: kills, finals, acks. It should exceed
	// KillTime. Default 15 s.
	SettleTimeout time.Duration
	// PingTimeout is how long an owner may take to answer. Default 2 s.
	PingTimeout time.Duration
	// RetryDelay is the first delay of a job that is given back; it doubles with
	// each delivery up to 60 times of it. Default 500 ms.
	RetryDelay time.Duration
	// LongDelay is the delay of a message that this worker must leave to others: a
	// newer request version, or no room in the dead letters. Default 1 min.
	LongDelay time.Duration
	// FlushTimeout is how long a result waits for the confirmation of its output
	// before that counts as lost. Default 30 s.
	FlushTimeout time.Duration
	// PullExpires and PullHeartbeat are of the parked pull requests. Defaults 5 s
	// and 1 s.
	PullExpires, PullHeartbeat time.Duration
}

func (cfg *Config) setDefaults() {
	for _, d := range []struct {
		value     *time.Duration
		otherwise time.Duration
	}{
		{&cfg.ResultRetention, bus.DefaultResultRetention},
		{&cfg.KillTime, 10 * time.Second},
		{&cfg.Margin, 5 * time.Second},
		{&cfg.SettleTimeout, 15 * time.Second},
		{&cfg.PingTimeout, 2 * time.Second},
		{&cfg.RetryDelay, 500 * time.Millisecond},
		{&cfg.LongDelay, time.Minute},
		{&cfg.FlushTimeout, 30 * time.Second},
		{&cfg.PullExpires, 5 * time.Second},
		{&cfg.PullHeartbeat, time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.otherwise
		}
	}
	if cfg.RetentionMargin <= 0 {
		cfg.RetentionMargin = min(cfg.ResultRetention/10, time.Hour)
	}
}

func (cfg *Config) check() error {
	var errs []error
	if len(cfg.Queues) == 0 {
		errs = append(errs, errors.New("no queue is configured"))
	}
	seen := map[string]bool{}
	for _, q := range cfg.Queues {
		if !wire.ValidToken(q.Name) || seen[q.Name] {
			errs = append(errs, fmt.Errorf("queue %q: the name is no valid token, or stands twice", q.Name))
		}
		if q.Weight < 0 || q.Concurrency < 0 {
			errs = append(errs, fmt.Errorf("queue %q: weight and concurrency must not be negative", q.Name))
		}
		seen[q.Name] = true
	}
	if cfg.Slots < 1 {
		errs = append(errs, fmt.Errorf("slots: must be at least 1, not %d", cfg.Slots))
	}
	if !wire.ValidToken(cfg.Worker.ID) {
		errs = append(errs, fmt.Errorf("worker id %q is no valid token", cfg.Worker.ID))
	}
	return errors.Join(errs...)
}

// Consumer takes jobs from the queues until it is told to stop.
type Consumer struct {
	bus     *bus.Bus
	handler Handler
	log     zerolog.Logger
	cfg     Config
	puller  *puller
	broker  brokerState
	count   counters

	running  atomic.Bool
	stopping atomic.Bool
	kill     chan struct{}
	killed   sync.Once

	mu        sync.Mutex
	here      map[string]*delivery // what is worked on, by job key
	unsettled []string
	versions  map[string]bool // request versions that were logged
}

// maxVersions bounds the versions that are remembered for the log.
const maxVersions = 64

// New makes a consumer. It does nothing before Run.
func New(b *bus.Bus, h Handler, log zerolog.Logger, cfg Config) (*Consumer, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	c := &Consumer{
		bus: b, handler: h, log: log, cfg: cfg, kill: make(chan struct{}),
		here: map[string]*delivery{}, versions: map[string]bool{}, broker: brokerState{soon: make(chan struct{}, 1)},
	}
	pull := pullConfig{
		API: b.APIPrefix(), Stream: b.Streams().Jobs, Slots: cfg.Slots, Expires: cfg.PullExpires, Heartbeat: cfg.PullHeartbeat,
		Ready: c.able, Verify: c.verify,
	}
	for _, q := range cfg.Queues {
		limit := cfg.Slots
		if q.Concurrency > 0 {
			limit = min(limit, q.Concurrency)
		}
		pull.Queues = append(pull.Queues, pullQueue{
			Queue: q.Name, Consumer: bus.ConsumerName(q.Name), Weight: max(1, q.Weight), Limit: limit,
		})
	}
	c.puller = newPuller(b.Control(), log, pull)
	return c, nil
}

// Run takes jobs until ctx ends or Kill is called. Then it stops pulling, gives
// back what has not started, lets the rest run for Config.Drain, ends what still
// runs with run.ErrShutdown, settles it within Config.SettleTimeout and returns;
// the error names what could not be settled. It returns at once, with words, when
// a queue's consumer is not fit to be worked on. It may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	if c.running.Swap(true) {
		return errors.New("consumer: runs already")
	}
	if err := c.verifyAll(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before anything began
		}
		return err
	}
	c.look(ctx)
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	control, err := c.listen()
	if err != nil {
		return err
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop(nil)
	parts.Go(func() { c.keep(work) })
	parts.Go(func() { c.watch(work) })

	c.puller.cfg.Start = func(queue string, m *nats.Msg, md *nats.MsgMetadata) { c.deliver(work, queue, m, md) }
	pulling, endPull := context.WithCancel(ctx)
	defer endPull()
	defer context.AfterFunc(ctx, c.stopTaking)()
	parts.Go(func() {
		select {
		case <-c.kill:
			c.stopTaking()
			endPull()
		case <-pulling.Done():
		}
	})
	err = c.puller.run(pulling)
	c.stopTaking()
	err = errors.Join(err, c.finish(work, stop))
	return errors.Join(err, unsubscribe(control))
}

// Kill ends the drain: running jobs are ended at once. It may be called at any
// time and more than once.
func (c *Consumer) Kill() {
	c.killed.Do(func() { close(c.kill) })
}

// stopTaking marks the end and sends back what has not started.
func (c *Consumer) stopTaking() {
	if c.stopping.Swap(true) {
		return
	}
	for _, d := range c.deliveries() {
		d.endUnclaimed()
	}
}

// finish waits for what runs, in the three steps that Run promises.
func (c *Consumer) finish(work context.Context, stop context.CancelCauseFunc) error {
	ended := make(chan struct{})
	var waiter sync.WaitGroup
	// It is left behind only where a handler does not return.
	waiter.Go(func() {
		c.puller.wait()
		close(ended)
	})
	drain := time.NewTimer(c.cfg.Drain)
	defer drain.Stop()
	select {
	case <-ended:
		return c.left(work)
	case <-drain.C:
	case <-c.kill:
	}
	for _, d := range c.deliveries() {
		d.cut(run.ErrShutdown)
	}
	settle := time.NewTimer(c.cfg.SettleTimeout)
	defer settle.Stop()
	select {
	case <-ended:
		return c.left(work)
	case <-settle.C:
	}
	stop(errNotSettled)
	last := time.NewTimer(c.cfg.PingTimeout)
	defer last.Stop()
	select {
	case <-ended:
	case <-last.C:
		for _, d := range c.deliveries() {
			c.unsettle(d, "its handler has not returned")
		}
	}
	return c.left(work)
}

// left is what could not be settled, as an error. What was given back without an
// answer is flushed first.
func (c *Consumer) left(work context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(work), c.cfg.PingTimeout)
	defer cancel()
	if err := c.bus.Control().FlushWithContext(ctx); err != nil {
		c.log.Warn().Err(err).Msg("jobs that were given back may return late")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unsettled) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errNotSettled, strings.Join(c.unsettled, "; "))
}

// errNotSettled is the cause with which the work is cut off at the very end.
var errNotSettled = errors.New("not settled before the worker had to end")

// unsettle notes what will be left behind.
func (c *Consumer) unsettle(d *delivery, why string) {
	c.mu.Lock()
	c.unsettled = append(c.unsettled, d.key+" ("+why+")")
	c.mu.Unlock()
	c.log.Error().Str("job", d.key).Str("why", why).Msg("job not settled")
}

// Ready is nil when jobs are taken now, else it says why not.
func (c *Consumer) Ready() error {
	switch {
	case !c.running.Load():
		return errors.New("not running")
	case c.stopping.Load():
		return errors.New("shutting down")
	case !c.bus.Connected():
		return errors.New("not connected to NATS")
	}
	return errors.Join(c.puller.ready(), c.broker.deadLetters())
}

// able says whether to ask for jobs at all.
func (c *Consumer) able() error {
	if err := c.handler.Ready(); err != nil {
		return err
	}
	return c.broker.pressure()
}

// enter puts d among what is worked on here. False means that the same job is
// here already.
func (c *Consumer) enter(d *delivery) (other *delivery, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, found := c.here[d.key]; found {
		return other, false
	}
	c.here[d.key] = d
	return nil, true
}

// leave takes d away. It may be called again.
func (c *Consumer) leave(d *delivery) {
	c.mu.Lock()
	if c.here[d.key] == d {
		delete(c.here, d.key)
	}
	c.mu.Unlock()
	d.end()
}

// find is the delivery of a job that is worked on here, or nil.
func (c *Consumer) find(key string) *delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.here[key]
}

func (c *Consumer) deliveries() []*delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.here))
}

// unsubscribe ends the control subscription, whatever state it is in.
func unsubscribe(sub *nats.Subscription) error {
	err := sub.Unsubscribe()
	if err == nil || errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
		return nil
	}
	return fmt.Errorf("end the control subscription: %w", err)
}
