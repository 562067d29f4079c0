package leasepool_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

var (
	seed  = flag.Uint64("seed", 0, "run the simulation of this seed alone")
	seeds = flag.Uint64("seeds", 300, "run the simulations of the seeds from 1 to this")
)

// TestSimulation lets many holders use a pool whose provider, quarantine and
// reaper misbehave by chance, and balances the books all the time. A seed gives
// nearly the same story again (the order of what happens in the same nanosecond
// and the jitter of the pauses are not its own).
func TestSimulation(t *testing.T) {
	t.Parallel()
	first, last := uint64(1), *seeds
	if *seed != 0 {
		first, last = *seed, *seed
	}
	var sum simTotals
	for s := first; s <= last; s++ {
		t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { sum.add(simulate(t, s)) })
		})
	}
	t.Logf("%+v", sum)
	if *seed == 0 && last >= 100 {
		require.NotZero(t, min(sum.Acquired, sum.Reused, sum.Quarantined, sum.Reaped, sum.Evicted, sum.Expired, sum.Lost, sum.Stuck, sum.Errors, sum.Late,
			sum.Intents, sum.Overtaken, sum.Disowned, sum.Swept, sum.Closed),
			"the simulation does not reach everything: %+v", sum)
	}
}

// simTotals say how much the simulations covered.
type simTotals struct {
	Acquired, Reused, Quarantined, Reaped, Evicted, Expired, Lost, Stuck, Errors, Late uint64
	// Of the ledger: intents that were written, calls that lost, leases of a lapsed
	// epoch, entries that others took over, entries that ended.
	Intents, Overtaken, Disowned, Swept, Closed uint64
}

func (s *simTotals) add(o simTotals) {
	s.Acquired += o.Acquired
	s.Reused += o.Reused
	s.Quarantined += o.Quarantined
	s.Reaped += o.Reaped
	s.Evicted += o.Evicted
	s.Expired += o.Expired
	s.Lost += o.Lost
	s.Stuck += o.Stuck
	s.Errors += o.Errors
	s.Late += o.Late
	s.Intents += o.Intents
	s.Overtaken += o.Overtaken
	s.Disowned += o.Disowned
	s.Swept += o.Swept
	s.Closed += o.Closed
}

// world is the truth about all sandboxes, against which the pool is checked.
type world struct {
	t        *testing.T
	pool     *leasepool.Pool
	provider *provider
	capacity int
	// trouble is the chance of each kind of misbehaviour, by its name.
	trouble map[string]float64

	mu      sync.Mutex
	rng     *rand.Rand
	truth   map[string]*truth
	inUse   int
	errors  uint64
	late    uint64
	waiting []<-chan struct{}
	// epoch counts the epochs, from 1; lapsed is the last one that was disowned.
	epoch, lapsed int
	ledger        simTotals
}

// truth is what is so about one sandbox, whatever the pool thinks.
type truth struct {
	exists  bool
	held    bool
	doubted bool
	dirty   bool
	tenant  string
	uses    int
	// excused says that the reaper proved it gone, and the create call that may have
	// made it ended after that.
	reaped   bool
	excused  bool
	recorded bool
	refusals int
	// entry is what the ledger says of it.
	entry entry
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), truth: map[string]*truth{}, trouble: map[string]float64{}}
	for _, kind := range []string{
		"refused", "ambiguous", "made anyway", "create hangs", "reset fails", "reset hangs", "destroy fails",
		"destroy unproven", "destroy hangs", "publish fails", "lost", "unproven", "doubt", "impatient",
		"ledger fails", "ledger in doubt", "ledger hangs", "swept", "disowned",
	} {
		w.trouble[kind] = []float64{0, 0, 0.03, 0.1, 0.3}[w.rng.IntN(5)]
	}
	w.capacity = 1 + w.rng.IntN(6)
	w.epoch = 1
	w.provider = &provider{name: "fake", outlives: w.rng.IntN(3) > 0, onCreate: w.create, onReset: w.reset, onDestroy: w.destroy}
	return w
}

func (w *world) chance(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Float64() < w.trouble[kind]
}

func (w *world) upTo(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(d)))
}

func (w *world) pick(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.IntN(n)
}

// of runs change on the truth about a lease.
func (w *world) of(lease string, change func(s *truth)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.truth[lease] == nil {
		w.truth[lease] = &truth{}
	}
	change(w.truth[lease])
}

// doze sleeps like a call that honours its context, or like one that hangs.
func (w *world) doze(ctx context.Context, usual time.Duration, hangs bool) error {
	if hangs {
		time.Sleep(w.upTo(2 * time.Minute))
		return nil
	}
	timer := time.NewTimer(w.upTo(usual))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (w *world) create(ctx context.Context, lease string) error {
	if w.chance("refused") {
		return sandbox.Errorf(sandbox.Refused, "create", "by chance")
	}
	if err := w.doze(ctx, time.Second, w.chance("create hangs")); err != nil {
		return err
	}
	ambiguous := w.chance("ambiguous")
	made := !ambiguous || w.chance("made anyway")
	w.of(lease, func(s *truth) {
		s.exists, s.excused = made, s.reaped
		if w.provider.outlives && s.entry.state == "" {
			w.t.Errorf("lease %s is made without an intent", lease)
		}
	})
	w.countBoxes()
	if ambiguous {
		return sandbox.Errorf(sandbox.Ambiguous, "create", "by chance")
	}
	return nil
}

func (w *world) reset(ctx context.Context, lease string) error {
	err := w.doze(ctx, 50*time.Millisecond, w.chance("reset hangs"))
	if err == nil && w.chance("reset fails") {
		err = errDown
	}
	w.of(lease, func(s *truth) { s.dirty = s.dirty && err != nil })
	return err
}

func (w *world) destroy(ctx context.Context, lease string, _ int) (sandbox.Proof, error) {
	w.of(lease, func(s *truth) {
		if s.held {
			w.t.Errorf("lease %s is destroyed while somebody has it", lease)
		}
		s.doubted = true
	})
	if err := w.doze(ctx, time.Second, w.chance("destroy hangs")); err != nil {
		return sandbox.Proof{}, err
	}
	if w.chance("destroy fails") {
		return sandbox.Proof{}, errDown
	}
	if w.chance("destroy unproven") {
		return sandbox.Proof{}, nil
	}
	w.of(lease, func(s *truth) { s.exists = false })
	return proven, nil
}

// countBoxes checks that there are never more sandboxes than there is capacity.
func (w *world) countBoxes() {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, s := range w.truth {
		if s.exists && !s.excused {
			n++
		}
	}
	if n > w.capacity {
		w.t.Errorf("%d sandboxes exist with a capacity of %d", n, w.capacity)
	}
}

// Quarantine is the durable place. It refuses a lease three times at most, so
// that a shutdown has the time for it.
func (w *world) Quarantine(ctx context.Context, r leasepool.Record) error {
	if err := w.doze(ctx, time.Second, false); err != nil {
		return err
	}
	fails := w.chance("publish fails")
	w.of(r.Handle.Lease, func(s *truth) {
		if r.Reason == "" || r.Message == "" || r.FirstSeen.IsZero() {
			w.t.Errorf("an incomplete record: %+v", r)
		}
		fails = fails && s.refusals < 3
		s.refusals++
		if !fails {
			s.recorded = true
			if s.entry.state != "" {
				s.entry.state = "quarantined"
			}
		}
	})
	if fails {
		return errDown
	}
	return nil
}

// reap plays the reaper, until done.
func (w *world) reap(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(5*time.Second + w.upTo(10*time.Second)):
		}
		for _, info := range w.pool.Leases() {
			if info.State == sandbox.LeaseIdle && w.chance("lost") {
				w.provider.lose(info.ID)
			}
			recorded := false
			w.sweep(info.ID)
			w.of(info.ID, func(s *truth) {
				if recorded = s.recorded && !s.entry.promised; recorded {
					s.exists, s.reaped = false, true
					if s.entry.state != "" {
						s.entry.state, s.entry.evidence = "destroyed", proven.Evidence
					}
				}
			})
			if recorded && w.pool.Gone(info.ID, proven) && w.pool.Gone(info.ID, proven) {
				w.t.Errorf("lease %s was gone twice", info.ID)
			}
		}
	}
}

// hold is one caller: it takes leases and gives them back.
func (w *world) hold(jobs int, done <-chan struct{}) {
	for range jobs {
		select {
		case <-done:
			return
		default:
		}
		time.Sleep(w.upTo(2 * time.Second))
		want := leasepool.Want{
			Tenant:  []string{"a", "b", "c"}[w.pick(3)],
			Profile: []string{"reused", "reused", "once"}[w.pick(3)],
			Fresh:   w.pick(8) == 0,
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
		if w.chance("impatient") {
			ctx, cancel = context.WithTimeout(w.t.Context(), w.upTo(time.Second))
		}
		began, lapsed := time.Now(), w.lapsedEpoch()
		l, err := w.pool.Acquire(ctx, want)
		cancel()
		if waited := time.Since(began); waited > 40*time.Second && !w.provider.outlives || waited > 170*time.Second {
			w.t.Errorf("waited for %s", waited)
		}
		if err != nil {
			w.refused(err)
			continue
		}
		w.mayUse(l, want, lapsed)
		w.use(l, want)
	}
}

func (w *world) refused(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors++
	var provider *sandbox.Error
	switch {
	case errors.Is(err, leasepool.ErrNoCapacity), errors.Is(err, leasepool.ErrClosed), errors.As(err, &provider),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
	default:
		w.t.Errorf("a strange refusal: %v", err)
	}
}

func (w *world) use(l *leasepool.Lease, want leasepool.Want) {
	once := want.Fresh || want.Profile == "once"
	w.of(l.ID(), func(s *truth) {
		w.inUse++
		s.uses++
		switch {
		case !s.exists, s.held, s.doubted, s.dirty, s.recorded:
			w.t.Errorf("lease %s may not be used: %+v", l.ID(), *s)
		case s.tenant != "" && s.tenant != want.Tenant:
			w.t.Errorf("lease %s of %s serves %s", l.ID(), s.tenant, want.Tenant)
		case w.inUse > w.capacity:
			w.t.Errorf("%d leases in use with a capacity of %d", w.inUse, w.capacity)
		case s.uses != l.Use(), s.uses > 4, once && s.uses > 1:
			w.t.Errorf("lease %s: use %d is called %d", l.ID(), s.uses, l.Use())
		case l.Profile() != want.Profile:
			w.t.Errorf("lease %s is of profile %s", l.ID(), l.Profile())
		}
		s.tenant, s.held = want.Tenant, true
	})
	time.Sleep(w.upTo(3 * time.Second))
	lost := w.chance("lost")
	if lost {
		w.provider.lose(l.ID())
	}
	v := leasepool.Verdict{Proof: proven, Tenant: want.Tenant, Job: "j"}
	switch {
	case w.chance("unproven"):
		v.Proof = sandbox.Proof{}
	case w.chance("doubt"):
		v.Doubt = leasepool.QuarantineAmbiguousStart
	}
	doubt := v.Doubt != "" || !v.Proof.Proven
	w.of(l.ID(), func(s *truth) {
		w.inUse--
		s.entry.promised = false
		s.held, s.dirty = false, true
		s.doubted = s.doubted || doubt
	})
	released := w.pool.Release(l, v)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case released.Disposition == leasepool.Reusable && (doubt || once || lost),
		released.Disposition == leasepool.Destroyed && doubt,
		(released.Disposition == leasepool.Quarantined) != (released.Settled != nil):
		w.t.Errorf("%+v became %s", v, released.Disposition)
	}
	if released.Settled != nil {
		w.waiting = append(w.waiting, released.Settled)
	}
}

// balance checks the pool's own figures.
func (w *world) balance() {
	s := w.pool.Stats()
	held := s.Creating + s.Abandoned + s.Confirming + s.Idle + s.Reserved + s.InUse + s.Resetting + s.Destroying + s.Poisoned + s.Quarantined
	w.balanceLedger()
	if uint64(held) != s.Totals.Created-s.Totals.Gone {
		w.t.Errorf("%d of %d created and %d gone are held", held, s.Totals.Created, s.Totals.Gone)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	excused := 0
	for _, s := range w.truth {
		if s.excused {
			excused++
		}
	}
	if held > w.capacity+excused || s.InUse > w.capacity {
		w.t.Errorf("too much is held: %s", s)
	}
}

func simulate(t *testing.T, seed uint64) simTotals {
	w := newWorld(t, seed)
	pool, err := leasepool.New(w, zerolog.Nop(), leasepool.Config{
		Capacity: w.capacity,
		Profiles: []leasepool.Profile{
			{Name: "reused", Provider: w.provider, ReuseTenant: true, MaxUses: 4, MaxAge: time.Minute, IdleTTL: 10 * time.Second},
			{Name: "once", Provider: w.provider, Warm: w.pick(w.capacity + 1)},
		},
		AcquireTimeout: 40 * time.Second, CreateTimeout: 10 * time.Second, Ledger: w,
	})
	require.NoError(t, err)
	w.pool = pool
	ctx, end := context.WithCancel(t.Context())
	defer end()
	over := make(chan error, 1)
	go func() { over <- pool.Run(ctx) }()

	done, reaped := make(chan struct{}), make(chan struct{})
	go func() { defer close(reaped); w.reap(done) }()
	var holders sync.WaitGroup
	for range w.capacity + 3 {
		holders.Go(func() { w.hold(12, done) })
	}
	if w.pick(2) == 0 {
		for range 40 {
			time.Sleep(w.upTo(time.Second))
			w.disown()
			w.balance()
		}
	} else {
		holders.Wait()
		time.Sleep(10 * time.Minute) // all calls return, the reaper reaps
		w.balance()
	}
	end()
	err = <-over
	close(done)
	holders.Wait()
	<-reaped
	w.settle(err)
	time.Sleep(5 * time.Minute) // all calls return
	totals := pool.Stats().Totals
	return simTotals{
		totals.Acquired, totals.Reused, totals.Quarantined, totals.Reaped, totals.Evicted, totals.Expired, totals.Lost,
		totals.Stuck, w.errors, w.late,
		w.ledger.Intents, w.ledger.Overtaken, w.ledger.Disowned, w.ledger.Swept, w.ledger.Closed,
	}
}

// settle checks that every sandbox is gone or in quarantine after the end.
func (w *world) settle(err error) {
	// Run may tell of calls that hang. A lease may be left only where a late answer
	// to its create call brought it back; its record is durable then.
	if err != nil && !strings.HasPrefix(err.Error(), "the lease pool is left with: ") {
		w.t.Errorf("run: %v", err)
	}
	left := w.pool.Leases()
	w.balance()
	w.settleLedger(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	for lease, s := range w.truth {
		if s.exists && !s.recorded {
			w.t.Errorf("lease %s exists and nobody knows: %+v", lease, *s)
		}
		if s.excused {
			w.late++
		}
	}
	for _, info := range left {
		s := w.truth[info.ID]
		found := s.recorded && (!s.reaped || s.excused || !s.exists) // by the reaper, or nothing is there
		if info.State != sandbox.LeaseQuarantined && !found {
			w.t.Errorf("lease %s is left %s: %+v", info.ID, info.State, w.truth[info.ID])
		}
	}
	for _, settled := range w.waiting {
		if open(settled) {
			w.t.Errorf("a quarantine record never became durable")
		}
	}
}
