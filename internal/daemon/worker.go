package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/executor"
	"github.com/sallyport/sallyport/internal/gateway"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/ledger"
	"github.com/sallyport/sallyport/internal/observe"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// RunWorker takes jobs and runs them until ctx ends, then drains: what runs may
// go on for the configured time, or until hurry ends. With withGateway it also
// serves publishers.
func RunWorker(ctx, hurry context.Context, cfg *config.Config, log zerolog.Logger, build Build, withGateway bool) (err error) {
	inst, err := TakeInstance(cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	log = log.With().Str(observe.KeyWorker, inst.Worker).Logger()
	b, err := Connect(ctx, cfg, log, "sallyport worker "+inst.Worker)
	if err != nil {
		return unlessStopped(ctx, log, err)
	}
	defer closeBus(ctx, b, log)
	if err := CheckStreams(ctx, b, cfg); err != nil {
		return unlessStopped(ctx, log, err)
	}
	w, err := newWorker(ctx, cfg, log, build, inst, b, ownHost)
	if err != nil {
		return unlessStopped(ctx, log, err)
	}
	defer func() { err = errors.Join(err, w.sandboxes.close()) }()
	if w.sandboxes.outlive() {
		log.Info().Msg("this worker makes sandboxes that outlive it: what is in doubt among them is left to `sallyport reaper`, which has to run somewhere")
	}
	desk, err := newDesk(cfg, b, build, log)
	if err != nil {
		return err
	}
	with := []part{desk}
	if withGateway {
		gw, err := newGateway(b, w.metrics, log, cfg, inst.Worker, build)
		if err != nil {
			return err
		}
		with = append(with, gw)
	}
	return serve(ctx, cfg, log, w.metrics, w.health(), w.parts(hurry, with...))
}

// unlessStopped is the error of a start, or nil where it was told to stop meanwhile:
// what fails then fails because of that.
func unlessStopped(ctx context.Context, log zerolog.Logger, err error) error {
	if ctx.Err() == nil {
		return err
	}
	log.Info().Err(err).Msg("stopped before it served")
	return nil
}

// worker is the graph of a service that runs jobs.
type worker struct {
	id        string
	bus       *bus.Bus
	sandboxes *sandboxes
	pool      *leasepool.Pool
	consumer  *consumer.Consumer
	// reaper is nil where all sandboxes are remote ones.
	reaper *reaper.Reaper
	// service answers operators.
	service  *service.Service
	registry *registry
	metrics  *observe.Set
	log      zerolog.Logger
	// doubt makes quarantine records durable.
	doubt leasepool.Quarantiner
	// ledger is nil where no sandbox outlives this worker.
	ledger *ledger.Keeper
}

// reach is whose sandboxes a worker's own reaper ends.
type reach int

const (
	// ownHost: those that live and die on this host. Remote ones are the reaper
	// service's, one for all workers.
	ownHost reach = iota + 1
	// everywhere: all of them.
	everywhere
)

func newWorker(ctx context.Context, cfg *config.Config, log zerolog.Logger, build Build, inst *Instance, b *bus.Bus, reaps reach) (_ *worker, err error) {
	w := &worker{id: inst.Worker, bus: b, log: log}
	if w.metrics, err = observe.NewSet(build.Version); err != nil {
		return nil, err
	}
	if w.sandboxes, err = openSandboxes(ctx, cfg, inst, build, log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.sandboxes.close())
		}
	}()
	if err := w.sandboxes.probe(ctx, cfg, log); err != nil {
		return nil, err
	}
	ref := wire.WorkerRef{ID: inst.Worker, Version: build.Version}
	if err := w.openPool(ctx, cfg, inst, build, log); err != nil {
		return nil, err
	}
	handler, err := newHandler(cfg, w.pool, w.sandboxes.providers, b.Files(), ref, w.metrics, log)
	if err != nil {
		return nil, err
	}
	if w.consumer, err = newConsumer(cfg, b, handler, ref, log); err != nil {
		return nil, err
	}
	gone := func(lease string, proof sandbox.Proof) { w.pool.Gone(lease, proof) }
	if own := w.sandboxes.within(reaps); len(own) > 0 {
		if w.reaper, err = newReaper(cfg, b, own, log, gone); err != nil {
			return nil, err
		}
	}
	if w.service, err = w.serveOperators(cfg, inst, build, log); err != nil {
		return nil, err
	}
	w.registry = newRegistry(w, cfg, inst, build, log)
	return w, w.measure()
}

// openPool makes the pool, and begins this worker's part of the ledger where its
// sandboxes may outlive it.
func (w *worker) openPool(ctx context.Context, cfg *config.Config, inst *Instance, build Build, log zerolog.Logger) (err error) {
	q := ledger.Quarantiner{Records: w.bus.Quarantines(), Worker: inst.Worker}
	var book leasepool.Ledger // not a nil pointer in an interface
	if w.sandboxes.outlive() {
		w.ledger, err = ledger.New(w.bus.Ledger(), log, ledger.Config{
			Worker: inst.Worker, Host: inst.Host, Version: build.Version, Bound: cfg.EpochBound, OnLapse: func() { w.pool.Disown() },
		})
		if err != nil {
			return err
		}
		q.Keeper, book = w.ledger, w.sandboxes.crash.ledger(w.ledger)
	}
	w.doubt = q
	if w.pool, err = newPool(cfg, w.sandboxes.providers, w.sandboxes.crash.quarantiner(q), book, log); err != nil || w.ledger == nil {
		return err
	}
	return w.ledger.Begin(ctx)
}

// parts in the order of their end: no new jobs, and those that run drained; then
// what serves publishers until then; then no sandboxes; then the reaper, which
// may still end what the pool has just put into quarantine; then the entry in the
// registry, which has said until now that jobs are drained.
func (w *worker) parts(hurry context.Context, with ...part) []part {
	parts := []part{{"consumer", func(ctx context.Context) error {
		defer context.AfterFunc(hurry, w.consumer.Kill)()
		return w.consumer.Run(ctx)
	}}, {"operators' questions", w.service.Run}}
	parts = append(append(parts, with...), part{"lease pool", w.pool.Run})
	if w.reaper != nil {
		parts = append(parts, part{"leftovers", w.handOver}, part{"reaper", w.reaper.Run})
	}
	if w.ledger != nil {
		parts = append(parts, part{"ended elsewhere", w.follow}, part{"ledger", w.ledger.Run})
	}
	parts = append(parts, part{"registry", w.registry.run})
	return append(parts, orphans(w.sandboxes)...)
}

// ready is nil when jobs are taken, else it says why not.
func (w *worker) ready() error {
	errs := []error{w.consumer.Ready(), w.pool.Ready()}
	if w.ledger != nil {
		errs = append(errs, w.ledger.Ready())
	}
	return errors.Join(errs...)
}

// health is what /readyz says.
func (w *worker) health() observe.Health {
	h := observe.Health{Ready: w.ready}
	if w.sandboxes.report != nil {
		h.Detail = w.sandboxes.report
	}
	return h
}

// whenReady waits until jobs are taken; false when ctx ends before that.
func (w *worker) whenReady(ctx context.Context) bool {
	const look = 10 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	for w.ready() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// newPool sizes the pool: each slot can have its lease while as many of other
// tenants stay warm beside it.
func newPool(cfg *config.Config, providers map[string]sandbox.Provider, q leasepool.Quarantiner, book leasepool.Ledger, log zerolog.Logger) (*leasepool.Pool, error) {
	const most = 4096 // the pool's own bound
	pool := leasepool.Config{Capacity: 2 * cfg.Slots, Ledger: book}
	for _, name := range cfg.ProfileNames() {
		p := cfg.Profiles[name]
		pool.Profiles = append(pool.Profiles, poolProfile(p, providers[p.Provider]))
		pool.Capacity += p.Warm
	}
	pool.Capacity = min(pool.Capacity, most)
	return leasepool.New(q, log, pool)
}

// newHandler is the executor, observed.
func newHandler(cfg *config.Config, pool *leasepool.Pool, providers map[string]sandbox.Provider, objects run.Objects, ref wire.WorkerRef, metrics *observe.Set, log zerolog.Logger) (consumer.Handler, error) {
	kill, _ := fence(cfg.AckWait)
	x := executor.Config{Profiles: map[string]executor.Profile{}, Worker: ref, ShutdownGrace: kill / 2, Objects: objects}
	for name, p := range cfg.Profiles {
		x.Profiles[name] = executorProfile(p, providers[p.Provider].Capabilities(), log)
	}
	handler, err := executor.New(pool, log, x)
	if err != nil {
		return nil, err
	}
	return metrics.Jobs(handler)
}

// fence is the time within which a run that must end has ended, and the margin
// for clocks and messages: 10 s and 5 s at the usual ack wait of a minute, and
// a share of it where it is shorter.
func fence(ackWait time.Duration) (kill, margin time.Duration) {
	return min(10*time.Second, ackWait*3/10), min(5*time.Second, ackWait/10)
}

func newConsumer(cfg *config.Config, b *bus.Bus, handler consumer.Handler, ref wire.WorkerRef, log zerolog.Logger) (*consumer.Consumer, error) {
	replies, err := wire.NewReplyRule(b.Subjects(), cfg.ReplyAllow)
	if err != nil {
		return nil, err
	}
	service, err := serviceReplies(cfg, b, log)
	if err != nil {
		return nil, err
	}
	c := consumer.Config{
		Slots: cfg.Slots, Worker: ref, Replies: replies, ServiceReplies: service,
		ResultRetention: cfg.ResultRetention, Drain: cfg.Drain,
	}
	c.KillTime, c.Margin = fence(cfg.AckWait)
	for _, q := range cfg.Queues {
		c.Queues = append(c.Queues, consumer.Queue{Name: q.Name, Weight: q.Weight, Concurrency: q.Concurrency})
	}
	return consumer.New(b, handler, log, c)
}

// serviceReplies is the rule for control requests, which gateways send with their
// own inboxes: those are allowed beside the tenants' where the services have an
// inbox prefix of their own. Where they share the tenants' default one, the
// operator's list alone decides, so that no tenant borrows a service's rights.
func serviceReplies(cfg *config.Config, b *bus.Bus, log zerolog.Logger) (wire.ReplyRule, error) {
	allow := slices.Clone(cfg.ReplyAllow)
	inbox := b.Control().NewInbox()
	own := inbox[:strings.LastIndex(inbox, ".")] + ".>"
	// The roles may have an inbox prefix each, such as _INBOX_exec.gateway, so that none
	// reads another's answers: below their common one all are services.
	if first, _, _ := strings.Cut(own, "."); strings.HasPrefix(first, "_INBOX_") {
		own = first + ".>"
	}
	switch {
	case !strings.HasPrefix(own, "_INBOX."):
		allow = append(allow, own)
	case !slices.Contains(allow, "_INBOX.>"):
		log.Warn().Msg("reply_allow does not cover the services' own inboxes, so gateways cannot ask workers: set inbox_prefix for the services, for instance _INBOX_exec")
	}
	return wire.NewReplyRule(b.Subjects(), allow)
}

func newGateway(b *bus.Bus, metrics *observe.Set, log zerolog.Logger, cfg *config.Config, id string, build Build) (part, error) {
	replies, err := wire.NewReplyRule(b.Subjects(), cfg.ReplyAllow)
	if err != nil {
		return part{}, err
	}
	gw := gateway.Config{
		Profiles: wireProfiles(cfg), DefaultProfile: executor.DefaultProfile, Replies: replies,
		Worker: wire.WorkerRef{ID: id, Version: build.Version},
	}
	for _, q := range cfg.Queues {
		gw.Queues = append(gw.Queues, q.Name)
	}
	g, err := gateway.New(b, log, gw)
	if err != nil {
		return part{}, err
	}
	count := func(name, help string, read func(gateway.Stats) uint64) observe.Metric {
		return observe.Metric{
			Name: name, Help: help, Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(read(g.Stats()))) },
		}
	}
	return part{"gateway", g.Run}, metrics.Add(
		count("gateway_submitted_total", "Requests stored in a queue.", func(s gateway.Stats) uint64 { return s.Submitted }),
		count("gateway_refused_total", "Requests answered with what is wrong with them.", func(s gateway.Stats) uint64 { return s.Refused }),
		count("gateway_replies_refused_total", "Requests met with silence for their reply subject.", func(s gateway.Stats) uint64 { return s.RepliesRefused }),
		count("gateway_failed_total", "Requests that could not be served.", func(s gateway.Stats) uint64 { return s.Failed }),
	)
}

// serve runs the parts, with the health endpoints around them where they are
// asked for.
func serve(ctx context.Context, cfg *config.Config, log zerolog.Logger, metrics *observe.Set, health observe.Health, parts []part) error {
	if cfg.HTTP != "" {
		server, err := observe.Listen(ctx, cfg.HTTP, metrics, health)
		if err != nil {
			return err
		}
		log.Info().Str("address", server.Address()).Msg("health and metrics")
		parts = append(parts, part{"health and metrics", server.Run})
	}
	log.Info().Strs("profiles", slices.Sorted(maps.Keys(cfg.Profiles))).Msg("started")
	if err := runInOrder(ctx, log, parts...); err != nil {
		return fmt.Errorf("stopped with errors: %w", err)
	}
	log.Info().Msg("stopped")
	return nil
}
