package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/executor"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

const (
	margin   = 2 * time.Second // for clocks and messages
	killTime = 6 * time.Second // within which a run that must end has ended
	beat     = ackWait / 4
)

// errGone is why the attempts of a process that died end.
var errGone = errors.New("the process is gone")

// consumer is a model of the real one: the rules of the run record, redelivery
// and fencing, in their simplest form.
type consumer struct {
	p     *process
	s     *sim
	x     *executor.Executor
	slots chan struct{}

	mu       sync.Mutex
	attempts map[string]*attempt // by job
}

// attempt is one try at a job, and the run.Gate of its handler.
type attempt struct {
	c      *consumer
	j      *job
	number int
	cut    context.CancelCauseFunc
	hurry  chan struct{}
	rush   sync.Once

	mu      sync.Mutex
	base    uint64 // the record that is replaced next
	token   string
	lease   string
	owned   bool
	maybe   bool // the claim may stand there
	opened  bool
	fenced  bool
	over    bool
	renewed time.Time
}

func newConsumer(p *process, x *executor.Executor, slots int) *consumer {
	return &consumer{p: p, s: p.s, x: x, slots: make(chan struct{}, slots), attempts: map[string]*attempt{}}
}

// run takes jobs until ctx ends, then lets those that run end for a while, then
// ends them.
func (c *consumer) run(ctx context.Context) {
	var jobs sync.WaitGroup
	work, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(nil)
	unhook := context.AfterFunc(c.p.ctx, func() { kill(errGone) })
	defer unhook()
	for ctx.Err() == nil {
		if err := c.x.Ready(); err != nil {
			_ = pause(ctx, time.Second) //nolint:errcheck // the loop looks
			continue
		}
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		j, times, err := c.s.queue.take(ctx, c.p)
		if err != nil {
			<-c.slots
			_ = pause(ctx, 500*time.Millisecond) //nolint:errcheck // the loop looks
			continue
		}
		jobs.Go(func() {
			defer func() { <-c.slots }()
			c.handle(work, j, times)
		})
	}
	drained := make(chan struct{})
	go func() { jobs.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-time.After(c.s.upTo("drain "+c.p.name, 10*time.Second)):
		c.mu.Lock()
		for _, a := range c.attempts {
			a.cut(run.ErrShutdown)
			a.hasten()
		}
		c.mu.Unlock()
		<-drained
	case <-c.p.died:
		<-drained
	}
}

// retry repeats a write until it is decided; false when the process is gone.
func (c *consumer) retry(ctx context.Context, what string, try func() error) bool {
	for {
		err := c.p.call(ctx, what, try)
		if err == nil {
			return true
		}
		if errors.Is(err, bus.ErrConflict) || pause(ctx, 300*time.Millisecond) != nil {
			return false
		}
	}
}

func (c *consumer) nak(ctx context.Context, j *job, delay time.Duration) {
	// One that is lost comes again after the ack wait.
	_ = c.p.call(ctx, "nak "+j.ID, func() error { c.s.queue.delay(j, delay); return nil }) //nolint:errcheck // see above
}

// handle works on one message.
func (c *consumer) handle(ctx context.Context, j *job, times int) {
	c.s.tell(c.p.name, "%s delivered, time %d", j.ID, times)
	if times > 1 {
		c.s.count("redelivered")
	}
	c.mu.Lock()
	busy := c.attempts[j.ID] != nil
	c.mu.Unlock()
	if busy {
		return // whoever works on it keeps it alive and ends it
	}
	var rec *record
	if err := c.p.call(ctx, "read record of "+j.ID, func() error { rec = c.s.queue.get(j); return nil }); err != nil {
		c.nak(ctx, j, time.Second)
		return
	}
	switch {
	case rec == nil:
		c.try(ctx, j, 1, 0)
	case rec.state == wire.RunReleased:
		c.s.count("run again after a release")
		c.try(ctx, j, rec.attempt, rec.seq)
	case rec.state == wire.RunDone:
		c.s.count("final repeated")
		c.end(ctx, j, rec.result, nil, false)
	case time.Since(rec.at) <= ackWait+margin || c.owner(rec):
		c.nak(ctx, j, beat)
	case j.request.Retry.IfLost && rec.attempt < j.request.MaxAttempts():
		c.s.count("taken over")
		c.try(ctx, j, rec.attempt+1, rec.seq)
	default:
		c.s.count("closed as lost")
		r := wire.Result{Outcome: wire.Lost, Reason: wire.ReasonWorkerGone, StartState: wire.StartMaybe, Message: "its worker is gone"}
		c.decide(ctx, j, r, record{attempt: rec.attempt}, rec.seq, nil)
	}
}

// owner asks the owner of a claim whether it is still at it.
func (c *consumer) owner(rec *record) bool {
	w := rec.worker.s.workerOf(rec.worker)
	if w == nil || !rec.worker.answers() || !c.p.connected() {
		return false
	}
	return w.consumer.has(rec.token)
}

func (c *consumer) has(token string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.attempts {
		a.mu.Lock()
		has := a.token == token && !a.over
		a.mu.Unlock()
		if has {
			return true
		}
	}
	return false
}

// try runs one attempt on top of the record with sequence base.
func (c *consumer) try(ctx context.Context, j *job, number int, base uint64) {
	running, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	a := &attempt{
		c: c, cut: cut, j: j, number: number, base: base, hurry: make(chan struct{}),
		token: fmt.Sprintf("%s/%d/%d", c.p.name, number, c.s.pick("token", 1<<30)),
	}
	c.mu.Lock()
	if c.attempts[j.ID] != nil {
		c.mu.Unlock() // the same message once more: whoever works on it keeps it alive
		return
	}
	c.attempts[j.ID] = a
	c.mu.Unlock()
	var beats sync.WaitGroup
	stop := make(chan struct{})
	beats.Go(func() { a.keep(ctx, stop) })
	outcome := c.x.Handle(running, run.Attempt{
		Job: j.Job, Request: j.request, Number: number, Mode: wire.OutputReply, Hurry: a.hurry,
	}, a, &output{a: a})
	cut(nil)
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	c.conclude(ctx, a, outcome)
	close(stop)
	beats.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.attempts, j.ID)
}

// conclude does with an outcome what its claim allows.
func (c *consumer) conclude(ctx context.Context, a *attempt, outcome run.Outcome) {
	a.mu.Lock()
	owned, maybe, fenced, opened, base := a.owned, a.maybe, a.fenced, a.opened, a.base
	a.mu.Unlock()
	j := a.j
	c.s.tell(c.p.name, "%s attempt %d: %s %s, abandoned %v (%v), fenced %v", j.ID, a.number,
		outcome.Result.Outcome, outcome.Result.Reason, outcome.Abandoned, outcome.Err, fenced)
	if ctx.Err() == nil {
		c.s.truth.judged(a, outcome)
	}
	switch {
	case outcome.Abandoned && opened:
		c.s.breach("%s was abandoned after its gate was opened", j.ID)
	case fenced:
		c.s.count("fenced")
	case outcome.Abandoned:
		c.s.count("abandoned")
		if (owned || maybe) && !c.release(ctx, a, a.number) {
			return
		}
		c.nak(ctx, j, time.Second)
	case outcome.Result.Outcome == wire.Lost && j.request.Retry.IfLost && a.number < j.request.MaxAttempts():
		c.s.count("another attempt by its own worker")
		if c.await(ctx, outcome.Settled) && c.release(ctx, a, a.number+1) {
			c.nak(ctx, j, time.Second)
		}
	default:
		c.decide(ctx, j, outcome.Result, record{attempt: a.number, token: a.token, lease: a.lease}, base, outcome.Settled)
	}
}

// release gives the claim back; true when the message may be given back too.
func (c *consumer) release(ctx context.Context, a *attempt, next int) bool {
	return c.retry(ctx, "release "+a.j.ID, func() error {
		now := c.s.queue.get(a.j)
		if now == nil {
			return nil // the claim never came into being
		}
		if now.token != a.token {
			return nil
		}
		if now.state == wire.RunReleased {
			return nil // our own write, whose answer was lost
		}
		_, err := c.s.queue.put(a.j, record{state: wire.RunReleased, attempt: next, token: a.token, worker: c.p}, now.seq)
		return err
	})
}

// decide writes the final decision, and then ends the job.
func (c *consumer) decide(ctx context.Context, j *job, r wire.Result, rec record, base uint64, settled <-chan struct{}) {
	r.V, r.Tenant, r.ID, r.Queue, r.Attempt = wire.Version, j.Tenant, j.ID, j.Queue, rec.attempt
	r.Worker = wire.WorkerRef{ID: c.p.name, Version: "test"}
	result, err := wire.EncodeResult(&r)
	if err != nil {
		c.s.breach("the result of %s breaks its format: %v", j.ID, err)
		return
	}
	rec.state, rec.result, rec.worker = wire.RunDone, result, c.p
	written := c.retry(ctx, "final of "+j.ID, func() error {
		now := c.s.queue.get(j)
		if now != nil && now.state == wire.RunDone && string(now.result) == string(result) {
			return nil
		}
		if now != nil && now.token == rec.token && now.state == wire.RunClaimed && rec.token != "" {
			base = now.seq // a renewal of ours, whose answer was lost
		}
		_, err := c.s.queue.put(j, rec, base)
		return err
	})
	if written {
		c.end(ctx, j, result, settled, rec.lease != "")
	}
}

// end publishes a final and acknowledges, in that order. own says that the job ran
// here: then its lease's doubt is durable before the acknowledgement. Of another
// worker's lease only the ledger knows.
func (c *consumer) end(ctx context.Context, j *job, result []byte, settled <-chan struct{}, own bool) {
	if !c.retry(ctx, "result of "+j.ID, func() error { c.s.queue.announce(j, result); return nil }) {
		return
	}
	if c.await(ctx, settled) {
		c.retry(ctx, "ack "+j.ID, func() error { c.s.queue.ack(j, own); return nil })
	}
}

func (*consumer) await(ctx context.Context, settled <-chan struct{}) bool {
	if settled == nil {
		return true
	}
	select {
	case <-settled:
		return true
	case <-ctx.Done():
		return false
	}
}

// Claim implements run.Gate.
func (a *attempt) Claim(ctx context.Context, lease string) error {
	a.mu.Lock()
	a.maybe, a.lease = true, lease
	base := a.base
	a.mu.Unlock()
	var seq uint64
	sent := time.Now()
	err := a.c.p.call(context.WithoutCancel(ctx), "claim "+a.j.ID, func() (err error) {
		seq, err = a.c.s.queue.put(a.j, a.claimed(), base)
		return err
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == nil:
		a.owned, a.base, a.renewed = true, seq, sent
	case errors.Is(err, bus.ErrConflict):
		a.maybe = false
	}
	return err
}

func (a *attempt) claimed() record {
	return record{state: wire.RunClaimed, attempt: a.number, token: a.token, worker: a.c.p, lease: a.lease}
}

// Started implements run.Gate.
func (a *attempt) Started() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opened = true
}

func (a *attempt) hasten() { a.rush.Do(func() { close(a.hurry) }) }

// fence ends the run: the job may be another's.
func (a *attempt) fence(why string) {
	a.mu.Lock()
	fence := a.owned && !a.over && !a.fenced
	a.fenced = a.fenced || fence
	a.mu.Unlock()
	if fence {
		a.c.s.tell(a.c.p.name, "%s fenced: %s", a.j.ID, why)
		a.cut(run.ErrFenced)
		a.hasten()
	}
}

// keep keeps the message and the claim alive until stop.
func (a *attempt) keep(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(beat / 2)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		owned, over, fenced, base, renewed := a.owned, a.over, a.fenced, a.base, a.renewed
		a.mu.Unlock()
		if fenced {
			continue
		}
		// A heartbeat that is lost is the next one's concern.
		_ = a.c.p.call(ctx, "in progress "+a.j.ID, func() error { a.c.s.queue.delay(a.j, ackWait); return nil }) //nolint:errcheck // see above
		if !owned || over {
			continue
		}
		if time.Since(renewed) >= ackWait-margin-killTime {
			a.fence("no renewal was acknowledged in time")
			continue
		}
		a.renew(ctx, base)
	}
}

func (a *attempt) renew(ctx context.Context, base uint64) {
	var seq uint64
	sent := time.Now()
	err := a.c.p.call(ctx, "renew "+a.j.ID, func() (err error) {
		if now := a.c.s.queue.get(a.j); now != nil && now.token == a.token && now.state == wire.RunClaimed {
			base = now.seq // a renewal of ours, whose answer was lost
		}
		seq, err = a.c.s.queue.put(a.j, a.claimed(), base)
		return err
	})
	switch {
	case err == nil:
		a.mu.Lock()
		a.base, a.renewed = seq, sent
		a.mu.Unlock()
	case errors.Is(err, bus.ErrConflict):
		a.fence("taken over")
	}
}

// output takes an attempt's events.
type output struct {
	a    *attempt
	mu   sync.Mutex
	last uint64
}

// Emit implements run.Output.
func (o *output) Emit(ctx context.Context, ev wire.Event) error {
	s, who := o.a.c.s, o.a.c.p.name
	if err := o.a.c.p.pass(); err != nil {
		return err
	}
	o.mu.Lock()
	if ev.Seq != o.last+1 || ev.Attempt != o.a.number {
		s.breach("%s: event %d of attempt %d follows %d of %d", o.a.j.ID, ev.Seq, ev.Attempt, o.last, o.a.number)
	}
	if ev.Type == wire.EventStarted != (ev.Seq == 1) {
		s.breach("%s: event %d is %s", o.a.j.ID, ev.Seq, ev.Type)
	}
	o.last = ev.Seq
	o.mu.Unlock()
	if s.chance(outputHangs, who) {
		timer := time.NewTimer(s.upTo(outputHangs+who, 20*time.Second))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.a.c.p.died:
			return errDead
		}
	}
	if s.chance(outputFails, who) {
		return errCall
	}
	return nil
}

// MaxChunk implements run.Output.
func (*output) MaxChunk() int { return 64 << 10 }
