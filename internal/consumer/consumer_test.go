package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// The times of the tests: a claim lapses 1.1 s after its last renewal, as short
// as a loaded machine allows.
const (
	ackWait  = 1500 * time.Millisecond
	margin   = 150 * time.Millisecond
	killTime = 250 * time.Millisecond
	soon     = 10 * time.Second
)

// world is a broker with the streams, and a bus to look at them.
type world struct {
	t *testing.T
	*broker
	bus *bus.Bus
	nc  *nats.Conn
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, broker: newBroker(t)}
	w.bus = w.newBus()
	w.nc = w.connect()
	plan, err := bus.Plan(bus.PlanConfig{Queues: []bus.QueuePlan{{Name: "q"}, {Name: "other"}}, AckWait: ackWait})
	require.NoError(t, err)
	_, err = w.bus.Apply(t.Context(), plan)
	require.NoError(t, err)
	return w
}

func (w *world) newBus() *bus.Bus {
	w.t.Helper()
	b, err := bus.Connect(w.t.Context(), bus.Options{Servers: w.ClientURL(), Log: zerolog.Nop(), NATS: []nats.Option{nats.Timeout(time.Second)}})
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		// Output of a worker that was cut off may be left: that is its test's matter.
		if err := b.Close(ctx); err != nil {
			w.t.Logf("close: %v", err)
		}
	})
	return b
}

// handler is a scripted consumer.Handler.
type handler struct {
	ready func() error
	check func(*wire.Request) *wire.Invalid
	run   func(ctx context.Context, a run.Attempt, g run.Gate, out run.Output) run.Outcome
	gauge gauge
	mu    sync.Mutex
	ran   map[string]int // attempts that opened the gate, by job
}

func (h *handler) Ready() error {
	if h.ready == nil {
		return nil
	}
	return h.ready()
}

func (h *handler) Check(r *wire.Request) *wire.Invalid {
	if h.check == nil {
		return nil
	}
	return h.check(r)
}

func (h *handler) Handle(ctx context.Context, a run.Attempt, g run.Gate, out run.Output) run.Outcome {
	h.gauge.enter()
	defer h.gauge.leave()
	return h.run(ctx, a, g, out)
}

func (h *handler) started(job wire.Job) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ran[job.Key()]
}

// start claims and opens the gate; nil means that the program runs.
func (h *handler) start(ctx context.Context, a run.Attempt, g run.Gate) *run.Outcome {
	if err := g.Claim(ctx, "lease1"); err != nil {
		return &run.Outcome{Abandoned: true, Err: err}
	}
	if ctx.Err() != nil {
		return &run.Outcome{Abandoned: true, Err: context.Cause(ctx)}
	}
	g.Started()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ran == nil {
		h.ran = map[string]int{}
	}
	h.ran[a.Job.Key()]++
	return nil
}

// sleeper runs every job for d and obeys its context as the executor does.
func sleeper(d time.Duration) *handler {
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, out run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		if err := out.Emit(ctx, wire.Event{Type: wire.EventStdout, Seq: 1, Data: []byte("hi")}); err != nil {
			return run.Outcome{Result: wire.Result{Outcome: wire.Lost, Reason: wire.ReasonInternal, StartState: wire.StartYes, Message: err.Error()}}
		}
		select {
		case <-time.After(d):
			return exited(1)
		case <-ctx.Done():
			return interrupted(context.Cause(ctx))
		}
	}
	return h
}

func exited(lastSeq uint64) run.Outcome {
	code := 0
	return run.Outcome{Result: wire.Result{
		Outcome: wire.Exited, ExitCode: &code, StartState: wire.StartYes,
		Output: wire.OutputSummary{LastSeq: lastSeq, StdoutBytes: 2, StdoutProduced: 2},
	}}
}

func interrupted(cause error) run.Outcome {
	r := wire.Result{Outcome: wire.Lost, Reason: wire.ReasonInternal, StartState: wire.StartYes, Output: wire.OutputSummary{LastSeq: 1}}
	switch {
	case errors.Is(cause, run.ErrCancelled):
		r.Outcome, r.Reason = wire.Cancelled, ""
	case errors.Is(cause, run.ErrShutdown):
		r.Reason = wire.ReasonShutdown
	}
	return run.Outcome{Result: r}
}

// worker is a running consumer.
type worker struct {
	*consumer.Consumer
	stop func() error // ends the context and waits for Run
}

func (w *world) config(id string) consumer.Config {
	w.t.Helper()
	replies, err := wire.NewReplyRule(w.bus.Subjects(), []string{"_INBOX.>", "reply.{tenant}.>"})
	require.NoError(w.t, err)
	services, err := wire.NewReplyRule(w.bus.Subjects(), []string{"_INBOX.>"})
	require.NoError(w.t, err)
	return consumer.Config{
		Queues: []consumer.Queue{{Name: "q"}}, Slots: 4, Worker: wire.WorkerRef{ID: id, Version: "test"},
		Replies: replies, ServiceReplies: services, KillTime: killTime, Margin: margin, Drain: 5 * time.Second,
		SettleTimeout: 3 * time.Second, PingTimeout: 100 * time.Millisecond, RetryDelay: 20 * time.Millisecond,
		LongDelay: 10 * time.Second, FlushTimeout: 2 * time.Second,
		PullExpires: 2 * time.Second, PullHeartbeat: 200 * time.Millisecond,
	}
}

// work starts a worker; change may be nil.
func (w *world) work(id string, h *handler, change func(*consumer.Config)) *worker {
	w.t.Helper()
	cfg := w.config(id)
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(w.newBus(), h, zerolog.Nop(), cfg)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	var result error
	wk := &worker{Consumer: c}
	wk.stop = func() error {
		once.Do(func() {
			cancel()
			select {
			case result = <-done:
			case <-time.After(30 * time.Second):
				require.Fail(w.t, "Run did not return")
			}
		})
		return result
	}
	w.t.Cleanup(func() {
		// A test that expects an error has asked for it before.
		if err := wk.stop(); err != nil {
			w.t.Logf("stop: %v", err)
		}
	})
	return wk
}

// reader collects what arrives on a reply subject.
type reader struct {
	subject string
	mu      sync.Mutex
	msgs    []*nats.Msg
}

func (w *world) read() *reader {
	w.t.Helper()
	return w.readFrom(nats.NewInbox())
}

func (w *world) readFrom(subject string) *reader {
	w.t.Helper()
	r := &reader{subject: subject}
	_, err := w.nc.Subscribe(subject, func(m *nats.Msg) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.msgs = append(r.msgs, m)
	})
	require.NoError(w.t, err)
	require.NoError(w.t, w.nc.Flush())
	return r
}

// results are the result events that came.
func (r *reader) results() []*nats.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*nats.Msg
	for _, m := range r.msgs {
		if m.Header.Get(wire.HeaderEvent) == string(wire.EventResult) {
			out = append(out, m)
		}
	}
	return out
}

func (r *reader) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.msgs)
}

// result waits for the first result.
func (w *world) result(r *reader) wire.Result {
	w.t.Helper()
	eventually(w.t, soon+ackWait, func() bool { return len(r.results()) > 0 }, "no result")
	return decode(w.t, r.results()[0].Data)
}

func decode(t *testing.T, data []byte) wire.Result {
	t.Helper()
	res, err := wire.DecodeResult(data)
	require.NoError(t, err)
	return *res
}

func job(id string) wire.Job { return wire.Job{Tenant: "t1", Queue: "q", ID: id} }

const trueBody = `{"v":1,"argv":["true"]}`

// put queues a message as it is and returns its sequence.
func (w *world) put(j wire.Job, body string, header nats.Header) uint64 {
	w.t.Helper()
	ack, err := w.bus.JS().PublishMsg(w.t.Context(), &nats.Msg{Subject: w.bus.Subjects().Job(j), Data: []byte(body), Header: header})
	require.NoError(w.t, err)
	return ack.Sequence
}

func replyTo(r *reader) nats.Header { return nats.Header{wire.HeaderReplyTo: {r.subject}} }

// queued is the number of messages in the jobs stream.
func (w *world) queued() int {
	w.t.Helper()
	s, err := w.bus.JS().Stream(w.t.Context(), w.bus.Streams().Jobs)
	if err != nil {
		return -1
	}
	return int(s.CachedInfo().State.Msgs)
}

func (w *world) empty() {
	w.t.Helper()
	eventually(w.t, soon+ackWait, func() bool { return w.queued() == 0 }, "messages left in the queue")
}

func (w *world) record(id string) *bus.Stored {
	w.t.Helper()
	s, err := w.bus.Runs().Get(w.t.Context(), "t1", id)
	require.NoError(w.t, err)
	return s
}

func (w *world) digest(body string) string {
	w.t.Helper()
	d, err := wire.Digest("q", []byte(body))
	require.NoError(w.t, err)
	return d
}

func (w *world) dead(j wire.Job) *bus.StoredDeadLetter {
	w.t.Helper()
	d, err := w.bus.Dead().Get(w.t.Context(), j)
	require.NoError(w.t, err)
	return d
}

// stored are the events in the output stream.
func (w *world) stored(id string) []bus.StoredEvent {
	w.t.Helper()
	events, _, err := w.bus.ReadOutput(w.t.Context(), "t1", id, 0, 256)
	require.NoError(w.t, err)
	return events
}

func TestRunsAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wk := w.work("w1", sleeper(0), nil)
	r := w.read()
	w.put(job("a"), `{"v":1,"argv":["true"],"meta":{"k":"v"}}`, replyTo(r))
	res := w.result(r)
	require.Equal(t, wire.Exited, res.Outcome)
	require.Equal(t, []any{"t1", "a", "q", 1, "w1", "v"}, []any{res.Tenant, res.ID, res.Queue, res.Attempt, res.Worker.ID, res.Meta["k"]})
	require.GreaterOrEqual(t, res.Timing.QueuedMS, 0.0)
	w.empty()
	eventually(t, soon, func() bool { return r.count() == 3 }, "stdout, result and end")
	require.Equal(t, "2", r.msgs[1].Header.Get(wire.HeaderSeq))
	require.Equal(t, "end", r.msgs[2].Header.Get(wire.HeaderEvent))
	rec := w.record("a")
	require.Equal(t, wire.RunDone, rec.Record.State)
	require.Equal(t, []byte(rec.Record.Result), r.msgs[1].Data)
	require.Equal(t, "lease1", rec.Record.Lease)
	eventually(t, soon, func() bool { return wk.Ready() == nil }, "not ready")
	require.NoError(t, wk.stop())
	require.Error(t, wk.Ready())
	s := wk.Stats()
	require.Equal(t, uint64(1), s.Finals[wire.Exited])
	require.Zero(t, s.Running+s.Asked-s.Asked)
}

func TestStoredOutputIsConfirmedBeforeTheResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.work("w1", sleeper(0), nil)
	w.put(job("a"), trueBody, nil)
	w.empty()
	events := w.stored("a")
	require.Len(t, events, 2)
	require.Equal(t, wire.Exited, decode(t, events[1].Data).Outcome)
}

func TestNeverMoreThanSlotsAndAFairShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := []*handler{sleeper(30 * time.Millisecond), sleeper(30 * time.Millisecond)}
	var workers []*worker
	for i := range h {
		workers = append(workers, w.work(fmt.Sprintf("w%d", i), h[i], func(cfg *consumer.Config) { cfg.Slots = 2 }))
	}
	for _, wk := range workers {
		eventually(t, soon, func() bool { return wk.Stats().Asked == 2 }, "nothing asked")
	}
	for i := range 20 {
		w.put(job(fmt.Sprintf("j%d", i)), trueBody, nil)
	}
	w.empty()
	for i := range h {
		require.LessOrEqual(t, h[i].gauge.max.Load(), int64(2))
		require.GreaterOrEqual(t, h[i].gauge.total.Load(), int64(7), "share of worker %d", i)
	}
	require.Equal(t, int64(20), h[0].gauge.total.Load()+h[1].gauge.total.Load())
}

func TestVerifyRefusesUnfitConsumers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		change func(*jetstream.ConsumerConfig)
		words  string
	}{
		"backoff": {func(c *jetstream.ConsumerConfig) {
			c.BackOff = []time.Duration{ackWait}
			c.MaxDeliver = 2
		}, "backoff is set"},
		"deliver":  {func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 }, "max deliver is 3"},
		"ack wait": {func(c *jetstream.ConsumerConfig) { c.AckWait = 500 * time.Millisecond }, "ack wait is 500ms"},
	} {
		info, err := w.bus.JS().Consumer(t.Context(), w.bus.Streams().Jobs, "w-q")
		require.NoError(t, err)
		before := info.CachedInfo().Config
		cfg := before
		c.change(&cfg)
		_, err = w.bus.JS().UpdateConsumer(t.Context(), w.bus.Streams().Jobs, cfg)
		require.NoError(t, err, name)
		worker, err := consumer.New(w.bus, sleeper(0), zerolog.Nop(), w.config("w1"))
		require.NoError(t, err)
		require.ErrorContains(t, worker.Run(t.Context()), c.words, name)
		_, err = w.bus.JS().UpdateConsumer(t.Context(), w.bus.Streams().Jobs, before)
		require.NoError(t, err, name)
	}
	cfg := w.config("w1")
	cfg.Queues = []consumer.Queue{{Name: "q"}, {Name: "missing"}}
	worker, err := consumer.New(w.bus, sleeper(0), zerolog.Nop(), cfg)
	require.NoError(t, err)
	require.ErrorContains(t, worker.Run(t.Context()), "queue missing")
}

func TestConfigMistakesAreReportedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := consumer.New(w.bus, sleeper(0), zerolog.Nop(), consumer.Config{
		Queues: []consumer.Queue{{Name: "a b"}, {Name: "x", Weight: -1}}, Worker: wire.WorkerRef{ID: "host.name"},
	})
	for _, words := range []string{`"a b"`, `"x": weight`, "slots", `"host.name"`} {
		require.ErrorContains(t, err, words)
	}
}
