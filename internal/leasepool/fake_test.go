package leasepool_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider makes sandboxes in memory. Its hooks are its script: each may fail,
// take its time, or hang. They are set before use and nil where all goes well.
type provider struct {
	name     string
	noReset  bool
	outlives bool
	patience sandbox.Patience
	onCreate func(ctx context.Context, lease string) error
	onReset  func(ctx context.Context, lease string) error
	// onDestroy counts the tries of each lease from 1.
	onDestroy func(ctx context.Context, lease string, try int) (sandbox.Proof, error)
	// meddle is called in every method: it calls the pool, which deadlocks if the
	// pool calls the provider under its lock.
	meddle func()

	mu     sync.Mutex
	made   []string
	gone   []string
	tries  map[string]int
	resets map[string]int
	specs  map[string]sandbox.Spec
	boxes  map[string]*box
}

func (p *provider) enter() {
	if p.meddle != nil {
		p.meddle()
	}
}

func (p *provider) Name() string { p.enter(); return p.name }

func (p *provider) Capabilities() sandbox.Capabilities {
	p.enter()
	return sandbox.Capabilities{Scope: "kernel", Host: "h1", Reset: !p.noReset, OutlivesWorker: p.outlives, Patience: p.patience}
}

func (p *provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	p.enter()
	if p.onCreate != nil {
		if err := p.onCreate(ctx, spec.Lease); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.boxes == nil {
		p.boxes, p.tries, p.resets, p.specs = map[string]*box{}, map[string]int{}, map[string]int{}, map[string]sandbox.Spec{}
	}
	b := &box{p: p, lease: spec.Lease, lost: make(chan struct{})}
	p.boxes[spec.Lease], p.specs[spec.Lease] = b, spec
	p.made = append(p.made, spec.Lease)
	return b, nil
}

func (p *provider) Destroy(ctx context.Context, handle sandbox.Handle) (sandbox.Proof, error) {
	p.enter()
	p.mu.Lock()
	if p.tries == nil {
		p.tries = map[string]int{}
	}
	p.tries[handle.Lease]++
	try := p.tries[handle.Lease]
	p.mu.Unlock()
	proof := proven
	if p.onDestroy != nil {
		var err error
		if proof, err = p.onDestroy(ctx, handle.Lease, try); err != nil {
			return sandbox.Proof{}, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if proof.Proven && !slices.Contains(p.gone, handle.Lease) {
		p.gone = append(p.gone, handle.Lease)
	}
	return proof, nil
}

func (p *provider) Inventory(context.Context) ([]sandbox.Handle, error) { return nil, nil }

func (p *provider) Close() error { return nil }

func (p *provider) lose(lease string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.boxes[lease].lost:
	default:
		close(p.boxes[lease].lost)
	}
}

func (p *provider) counts() (made, gone int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.made), len(p.gone)
}

func (p *provider) destroyed() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.gone)
}

// destroyTries are the tries to destroy each lease.
func (p *provider) destroyTries() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.tries)
}

func (p *provider) resetsOf(lease string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resets[lease]
}

func (p *provider) specOf(lease string) sandbox.Spec {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.specs[lease]
}

type box struct {
	p     *provider
	lease string
	lost  chan struct{}
}

func (b *box) Handle() sandbox.Handle {
	b.p.enter()
	return sandbox.Handle{Provider: b.p.name, Lease: b.lease, Host: "h1", Detail: map[string]string{"made": "yes"}}
}

func (b *box) Isolation() sandbox.Isolation { return sandbox.Isolation{Level: "none"} }

func (b *box) Prepare(context.Context, sandbox.Process, sandbox.Sink) (sandbox.Run, error) {
	return nil, sandbox.Errorf(sandbox.Refused, "prepare", "nothing runs here")
}

func (b *box) Reset(ctx context.Context) error {
	b.p.enter()
	b.p.mu.Lock()
	b.p.resets[b.lease]++
	b.p.mu.Unlock()
	if b.p.onReset != nil {
		return b.p.onReset(ctx, b.lease)
	}
	return nil
}

func (b *box) Destroy(ctx context.Context) (sandbox.Proof, error) {
	return b.p.Destroy(ctx, sandbox.Handle{Provider: b.p.name, Lease: b.lease, Host: "h1"})
}

func (b *box) Lost() <-chan struct{} { b.p.enter(); return b.lost }

// quarantine keeps records; on is its script.
type quarantine struct {
	on func(ctx context.Context, try int) error

	mu      sync.Mutex
	tries   int
	records []leasepool.Record
}

func (q *quarantine) Quarantine(ctx context.Context, r leasepool.Record) error {
	q.mu.Lock()
	q.tries++
	try := q.tries
	q.mu.Unlock()
	if q.on != nil {
		if err := q.on(ctx, try); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.records = append(q.records, r)
	return nil
}

func (q *quarantine) all() []leasepool.Record {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.records)
}

var (
	errDown = errors.New("down")
	proven  = sandbox.Proof{Proven: true, Evidence: []sandbox.Evidence{{Kind: sandbox.EvidencePidfd}}}
	ended   = leasepool.Verdict{Proof: proven, Tenant: "acme", Job: "j1"}
	tenant  = leasepool.Want{Tenant: "acme", Profile: "default"}
	fresh   = leasepool.Want{Tenant: "acme", Profile: "default", Fresh: true}
)

// hang ignores its context.
func hang(context.Context) { time.Sleep(24 * time.Hour) }

// rig is a running pool in a bubble.
type rig struct {
	*leasepool.Pool
	t    *testing.T
	p    *provider
	q    *quarantine
	end  context.CancelFunc
	over chan error
}

// inBubble runs test on a running pool with one profile, default, and ends the
// pool, which then must leave nothing behind unless the test ended it itself.
func inBubble(t *testing.T, change func(cfg *leasepool.Config, p *provider, q *quarantine), test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, q := &provider{name: "fake"}, &quarantine{}
		cfg := leasepool.Config{Capacity: 2, Profiles: []leasepool.Profile{{Name: "default", Provider: p, ReuseTenant: true}}}
		if change != nil {
			change(&cfg, p, q)
		}
		pool, err := leasepool.New(q, zerolog.Nop(), cfg)
		require.NoError(t, err)
		p.meddle = func() { _ = pool.Stats() }
		ctx, cancel := context.WithCancel(t.Context())
		r := &rig{Pool: pool, t: t, p: p, q: q, end: cancel, over: make(chan error, 1)}
		go func() { r.over <- pool.Run(ctx) }()
		defer func() {
			if r.over != nil { // the test failed
				if err := r.stop(); err != nil {
					t.Log(err)
				}
			}
		}()
		synctest.Wait()
		test(t, r)
		if r.over != nil {
			require.NoError(t, r.stop())
		}
	})
}

func (r *rig) stop() error {
	r.end()
	err := <-r.over
	r.over = nil
	return err
}

func (r *rig) acquire(want leasepool.Want) *leasepool.Lease {
	r.t.Helper()
	l, err := r.Acquire(r.t.Context(), want)
	require.NoError(r.t, err)
	return l
}

// later acquires in the background.
func (r *rig) later(want leasepool.Want) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		l, err := r.Acquire(r.t.Context(), want)
		answers <- answer{l, err}
	}()
	return answers
}

type answer struct {
	lease *leasepool.Lease
	err   error
}

// release gives a lease back and lets the background settle.
func (r *rig) release(l *leasepool.Lease, v leasepool.Verdict) leasepool.Released {
	r.t.Helper()
	released := r.Release(l, v)
	synctest.Wait()
	return released
}

func (r *rig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (q *quarantine) attempts() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tries
}

func open(settled <-chan struct{}) bool {
	select {
	case <-settled:
		return false
	default:
		return true
	}
}
