package simulation_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/executor"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/ledger"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// epochBound is within which a worker renews its epoch.
const epochBound = 20 * time.Second

// createDeadline is how long after its record a sandbox may still appear.
const createDeadline = 90 * time.Second

// worker is one start of a worker: the real pool, executor, ledger keeper and
// reaper around the model of the consumer.
type worker struct {
	*process
	plan     *workerPlan
	pool     *leasepool.Pool
	executor *executor.Executor
	consumer *consumer
	keeper   *ledger.Keeper
	reaper   *reaper.Reaper
	boxes    map[string]*provider

	stop  context.CancelFunc // asks for an orderly end
	asked context.Context    //nolint:containedctx // ends with stop
	ended chan struct{}
	left  error // what the pool's end said
}

// workerPlan is what a worker is like, the same at each of its starts.
type workerPlan struct {
	name            string
	slots, capacity int
	profiles        []profilePlan
}

type profilePlan struct {
	name, provider string
	reuse          bool
	warm           int
}

// hostOf is the host's token of a process: processes are called <host>.<start>.
func hostOf(process string) string {
	host, _, _ := strings.Cut(process, ".")
	return host
}

// ledgerBooks is a desk as the keeper's books.
type ledgerBooks struct{ *desk }

func (l ledgerBooks) Update(ctx context.Context, rec wire.LeaseRecord, expect uint64) (uint64, error) {
	return l.UpdateLease(ctx, rec, expect)
}

func (l ledgerBooks) Get(ctx context.Context, provider, lease string) (*bus.StoredLease, error) {
	return l.Lease(ctx, provider, lease)
}

func (p *process) desk() *desk { return &desk{b: p.s.books, call: p.call} }

// startWorker starts a worker in the background.
func startWorker(p *process, plan *workerPlan, all *sync.WaitGroup) *worker {
	asked, stop := context.WithCancel(p.ctx)
	w := &worker{process: p, plan: plan, boxes: map[string]*provider{}, asked: asked, stop: stop, ended: make(chan struct{})}
	w.build()
	all.Go(func() {
		defer close(w.ended)
		w.live()
		for _, v := range w.boxes {
			if err := v.Close(); err != nil {
				p.s.breach("close: %v", err)
			}
		}
		p.s.sweepHost(hostOf(p.name), !p.isDead() && w.left == nil)
	})
	return w
}

// build makes the graph, in the order of the daemon's.
func (w *worker) build() {
	t := w.s.t
	profiles, offered := []leasepool.Profile{}, map[string]executor.Profile{}
	boxes := map[string]sandbox.Provider{}
	remote := false
	for _, p := range w.plan.profiles {
		if w.boxes[p.provider] == nil {
			w.boxes[p.provider] = newProvider(w.process, p.provider, w.plan.capacity)
			boxes[p.provider] = newProvider(w.process, p.provider, 0).sharing(w.boxes[p.provider])
		}
		v := w.boxes[p.provider]
		remote = remote || v.outlives
		profiles = append(profiles, leasepool.Profile{
			Name: p.name, Provider: v, ReuseTenant: p.reuse, Warm: p.warm, MaxUses: 4, MaxAge: 3 * time.Minute, IdleTTL: 15 * time.Second,
		})
		offered[p.name] = offer(p, v)
	}
	cfg := leasepool.Config{
		Capacity: w.plan.capacity, Profiles: profiles, AcquireTimeout: 10 * time.Second, CreateTimeout: 10 * time.Second,
		DestroyTimeout: 5 * time.Second, DestroyTries: 2, ShutdownTimeout: 20 * time.Second,
	}
	var err error
	if remote {
		w.keeper, err = ledger.New(ledgerBooks{w.desk()}, zerolog.Nop(), ledger.Config{
			Worker: w.plan.name, Host: w.plan.name, Version: "test", Bound: epochBound, OnLapse: w.lapsed,
		})
		require.NoError(t, err)
		cfg.Ledger = w.keeper
	}
	doubt := ledger.Quarantiner{Records: w.desk(), Keeper: w.keeper, Worker: w.plan.name}
	w.pool, err = leasepool.New(doubt, zerolog.Nop(), cfg)
	require.NoError(t, err)
	w.executor, err = executor.New(w.pool, zerolog.Nop(), executor.Config{
		Profiles: offered, ProofTimeout: 2 * time.Second, ShutdownGrace: time.Second, SetupTimeout: 5 * time.Second,
		Worker: wire.WorkerRef{ID: w.name, Version: "test"},
	})
	require.NoError(t, err)
	w.consumer = newConsumer(w.process, w.executor, w.plan.slots)
	w.reaper = newReaper(w.process, boxes, func(lease string, proof sandbox.Proof) { w.pool.Gone(lease, proof) })
}

// offer is a profile as the executor has it.
func offer(p profilePlan, v *provider) executor.Profile {
	reuse := wire.ReuseNever
	if p.reuse {
		reuse = wire.ReuseTenant
	}
	limits := wire.Limits{WallMS: new(int64(5000)), GraceMS: new(int64(500)), OutputBytes: new(int64(256 << 10))}
	most := limits
	most.WallMS = new(int64(60_000))
	return executor.Profile{
		Profile:      wire.Profile{Name: p.name, Provider: p.provider, Reuse: reuse, Default: limits, Max: most},
		Capabilities: v.Capabilities(),
	}
}

func newReaper(p *process, boxes map[string]sandbox.Provider, gone func(string, sandbox.Proof)) *reaper.Reaper {
	r, err := reaper.New(p.desk(), boxes, zerolog.Nop(), reaper.Config{
		MinBackoff: time.Second, MaxBackoff: 15 * time.Second, ListInterval: 20 * time.Second, Overdue: 40 * time.Second,
		AttemptTimeout: 10 * time.Second, CreateDeadline: createDeadline, OnGone: gone,
		Sweep: true, SweepInterval: 15 * time.Second, SweepTimeout: 30 * time.Second,
	})
	require.NoError(p.s.t, err)
	return r
}

func (w *worker) lapsed() {
	w.s.count("epoch lapsed")
	w.s.tell(w.name, "its epoch has lapsed")
	w.pool.Disown()
}

// live runs the worker until it is asked to end, or dies.
func (w *worker) live() {
	base := context.WithoutCancel(w.ctx) // orderly ends take their time; death is the process's own
	keeping, stopKeeping := context.WithCancel(base)
	reaping, stopReaping := context.WithCancel(base)
	pooling, stopPooling := context.WithCancel(base)
	var keeper, reaping2, pooling2 sync.WaitGroup
	defer func() {
		stopPooling()
		pooling2.Wait()
		stopReaping()
		reaping2.Wait()
		stopKeeping()
		keeper.Wait()
	}()
	unhook := context.AfterFunc(w.ctx, func() { stopPooling(); stopReaping(); stopKeeping() })
	defer unhook()
	if w.keeper != nil {
		for w.keeper.Begin(w.asked) != nil {
			if pause(w.asked, time.Second) != nil {
				return
			}
		}
		keeper.Go(func() {
			if err := w.keeper.Run(keeping); err != nil {
				w.s.tell(w.name, "keeper: %v", err)
			}
		})
	}
	w.s.tell(w.name, "ready")
	pooling2.Go(func() { w.left = w.pool.Run(pooling) })
	reaping2.Go(func() {
		if err := w.reaper.Run(reaping); err != nil {
			w.s.breach("the reaper of %s: %v", w.name, err)
		}
	})
	w.consumer.run(w.asked)
}

// reaping is one start of a reaper service.
type reaping struct {
	*process
	reaper *reaper.Reaper
	ended  chan struct{}
}

func startReaper(p *process, names []string, all *sync.WaitGroup) *reaping {
	boxes := map[string]sandbox.Provider{}
	for _, name := range names {
		boxes[name] = newProvider(p, name, 0)
	}
	r := &reaping{process: p, reaper: newReaper(p, boxes, nil), ended: make(chan struct{})}
	all.Go(func() {
		defer close(r.ended)
		if err := r.reaper.Run(p.ctx); err != nil {
			p.s.breach("the reaper %s: %v", p.name, err)
		}
	})
	return r
}
