package fake

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Provider makes sandboxes in a World. It implements sandbox.Provider.
type Provider struct {
	world *World
	name  string
	caps  sandbox.Capabilities
	// closing is closed by Close; every program ends with it.
	closing chan struct{}
	// running counts the programs' goroutines, which Close waits for.
	running sync.WaitGroup

	mu     sync.Mutex
	plans  []Create
	closed bool
}

var _ sandbox.Provider = (*Provider)(nil)

// Config is what a Provider says of itself.
type Config struct {
	// Name in subjects and results; empty means "fake".
	Name string
	// Host is the token of the host or account; empty means "fake".
	Host string
	// OutlivesWorker leaves the sandboxes in the World when the provider closes.
	OutlivesWorker bool
	// NoReset takes the ability to reset away.
	NoReset bool
	// Scope of the proof, "kernel" or "provider"; empty means "provider".
	Scope string
	// Unenforced limits (a request's field name: what to do); all others are
	// said to be enforced.
	Unenforced map[string]string
	// Isolation is what it claims to apply; the zero value means level "none".
	Isolation sandbox.Isolation
}

// Create says how one call of Provider.Create goes. The zero value works at
// once.
type Create struct {
	// Delay is how much later the call answers.
	Delay time.Duration
	// Hang makes the call return only when its context ends, as Ambiguous.
	Hang bool
	// Kind of the error; zero means success.
	Kind sandbox.Kind
	// Exists puts a sandbox behind an error or a hanging call.
	Exists bool
	// Late is how long after the call's end that sandbox appears.
	Late time.Duration
}

// New makes a provider of the sandboxes in world.
func New(world *World, cfg Config) *Provider {
	if cfg.Name == "" {
		cfg.Name = "fake"
	}
	if cfg.Host == "" {
		cfg.Host = "fake"
	}
	if cfg.Scope == "" {
		cfg.Scope = "provider"
	}
	if cfg.Isolation.Level == "" {
		cfg.Isolation = sandbox.Isolation{Level: "none", Missing: []string{"everything: programs are simulated in memory"}}
	}
	can := func(field string) bool { _, cannot := cfg.Unenforced[field]; return !cannot }
	return &Provider{
		world: world, name: cfg.Name, closing: make(chan struct{}),
		caps: sandbox.Capabilities{
			Scope: cfg.Scope, Host: cfg.Host, OutlivesWorker: cfg.OutlivesWorker, Reset: !cfg.NoReset, Files: true,
			Enforces: sandbox.Enforced{
				CPU: can("cpu_ms"), Memory: can("memory_bytes"), Pids: can("pids"), Disk: can("disk_bytes"),
				Inodes: can("inodes"), OpenFiles: can("open_files"), CPUShare: can("cpu_share"),
			},
			Unenforced: cfg.Unenforced, Isolation: cfg.Isolation,
		},
	}
}

// World is where the provider's sandboxes live.
func (p *Provider) World() *World { return p.world }

// OnCreate tells how the next calls of Create go, one plan a call, in addition to
// plans that are still unused. Later calls work.
func (p *Provider) OnCreate(plans ...Create) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans = append(p.plans, plans...)
}

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return p.name }

// Capabilities implements sandbox.Provider.
func (p *Provider) Capabilities() sandbox.Capabilities { return p.caps }

// Create implements sandbox.Provider, as OnCreate says.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	const op = "create"
	h := sandbox.Handle{Provider: p.name, Lease: spec.Lease, Host: p.caps.Host}
	if spec.Lease == "" {
		return nil, sandbox.Errorf(sandbox.Refused, op, "the lease has no id")
	}
	if err := p.able(op); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "not begun: %w", context.Cause(ctx))
	}
	if !p.world.reserve(h) {
		return nil, sandbox.Errorf(sandbox.Refused, op, "the lease id %s was used before", spec.Lease)
	}
	plan := p.plan()
	if plan.Hang {
		<-ctx.Done()
		p.behind(h, plan)
		return nil, sandbox.Errorf(sandbox.Ambiguous, op, "no answer: %w", context.Cause(ctx))
	}
	if err := pause(ctx, plan.Delay); err != nil {
		p.behind(h, plan)
		return nil, sandbox.Errorf(sandbox.Ambiguous, op, "no answer yet: %w", err)
	}
	if plan.Kind != 0 {
		p.behind(h, plan)
		return nil, sandbox.Errorf(plan.Kind, op, "told to fail")
	}
	h.Detail = map[string]string{"number": strconv.Itoa(p.world.Created() + 1)}
	return &box{p: p, resident: p.world.add(h, p, script{}), handle: h}, nil
}

// Destroy implements sandbox.Provider.
func (p *Provider) Destroy(ctx context.Context, handle sandbox.Handle) (sandbox.Proof, error) {
	const op = "destroy"
	if handle.Provider != p.name || handle.Host != p.caps.Host || handle.Lease == "" {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Refused, op, "not one of %s on %s", p.name, p.caps.Host)
	}
	return p.world.destroyBy(ctx, p, handle)
}

// Inventory implements sandbox.Provider.
func (p *Provider) Inventory(ctx context.Context) ([]sandbox.Handle, error) {
	const op = "inventory"
	if ctx.Err() != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "not begun: %w", context.Cause(ctx))
	}
	if p.world.down() {
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "outage")
	}
	return p.world.inventory(p.name, p.caps.Host), nil
}

// Close implements sandbox.Provider. It ends every program and waits for it; a
// Stdin or a Sink that blocks holds it back. It is like the worker's death:
// sandboxes that cannot outlive it are gone, unless a destroy knob keeps them.
func (p *Provider) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	if first {
		close(p.closing)
	}
	p.running.Wait()
	if !p.caps.OutlivesWorker {
		p.world.orphan(p)
	}
	return nil
}

func (p *Provider) plan() Create {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.plans) == 0 {
		return Create{}
	}
	plan := p.plans[0]
	p.plans = p.plans[1:]
	return plan
}

// behind puts the sandbox of an unsuccessful create into the world.
func (p *Provider) behind(h sandbox.Handle, plan Create) {
	switch {
	case !plan.Exists:
	case plan.Late > 0:
		time.AfterFunc(plan.Late, func() { p.world.add(h, p, script{}) })
	default:
		p.world.add(h, p, script{})
	}
}

// able is nil when the provider can be called.
func (p *Provider) able(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return sandbox.Errorf(sandbox.Unavailable, op, "the provider is closed")
	}
	if p.world.down() {
		return sandbox.Errorf(sandbox.Unavailable, op, "outage")
	}
	return nil
}

// spawn runs f in a goroutine that Close waits for; false after Close.
func (p *Provider) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Go(f)
	return true
}
