package fake

import (
	"context"
	"errors"
	"strconv"
	"strings"
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
	roots  map[string]*script
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
	// Lie answers with a sandbox that is not there.
	Lie bool
	// Die makes the sandbox, which is lost at once.
	Die bool

	// times is how many calls it is for; zero is one.
	times int
}

// watchEvery is how often the owner of sandboxes in a directory looks whether
// another process ended one.
const watchEvery = 100 * time.Millisecond

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
	p := &Provider{
		world: world, name: cfg.Name, closing: make(chan struct{}), roots: map[string]*script{},
		caps: sandbox.Capabilities{
			Scope: cfg.Scope, Host: cfg.Host, OutlivesWorker: cfg.OutlivesWorker, Reset: !cfg.NoReset, Files: true,
			Enforces: sandbox.Enforced{
				CPU: can("cpu_ms"), Memory: can("memory_bytes"), Pids: can("pids"), Disk: can("disk_bytes"),
				Inodes: can("inodes"), OpenFiles: can("open_files"), CPUShare: can("cpu_share"),
			},
			Unenforced: cfg.Unenforced, Isolation: cfg.Isolation,
		},
	}
	if world.shelf != nil {
		p.running.Go(p.watch)
	}
	return p
}

// watch notices what other processes do to the world.
func (p *Provider) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.world.open()()
		case <-p.closing:
			return
		}
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

// Create implements sandbox.Provider. It goes as OnCreate says, then as the words of
// spec.Root say, which may have a slash in front as a path has.
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
	root, err := p.root(spec.Root)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Refused, op, "root: %w", err)
	}
	if err := p.world.reserve(op, h); err != nil {
		return nil, err
	}
	plan := p.plan(spec.Root)
	if plan.Hang {
		<-ctx.Done()
		return nil, p.behind(h, root, plan, sandbox.Errorf(sandbox.Ambiguous, op, "no answer: %w", context.Cause(ctx)))
	}
	if err := pause(ctx, plan.Delay+root.delay[op]); err != nil {
		return nil, p.behind(h, root, plan, sandbox.Errorf(sandbox.Ambiguous, op, "no answer yet: %w", err))
	}
	if plan.Kind != 0 {
		return nil, p.behind(h, root, plan, sandbox.Errorf(plan.Kind, op, "told to fail"))
	}
	h.Detail = map[string]string{"number": strconv.Itoa(p.world.Created() + 1)}
	b := &box{p: p, handle: h}
	if plan.Lie {
		b.resident = newResident(saved{Handle: h}, p)
		b.resident.end(false)
		return b, nil
	}
	if b.resident, err = p.world.add(h, p, root, 0); err != nil {
		return nil, sandbox.Errorf(sandbox.Ambiguous, op, "the world's directory: %w", err)
	}
	if plan.Die {
		p.world.vanish(b.resident)
	}
	return b, nil
}

// root is what the words of a root view say; its plans are used up once for all
// sandboxes with the same words.
func (p *Provider) root(text string) (script, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kept := p.roots[text]; kept != nil {
		return *kept, nil
	}
	s, err := parseRoot(strings.Fields(strings.TrimPrefix(text, "/")))
	if err != nil {
		return script{}, err
	}
	if len(p.roots) >= maxRoots {
		return script{}, errors.New("too many different ones")
	}
	p.roots[text] = &s
	if s.inventory.active() || s.delay["inventory"] > 0 {
		return s, p.world.tune(s)
	}
	return s, nil
}

// maxRoots bounds what is kept of roots: each profile has one.
const maxRoots = 1024

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
	return p.world.inventory(ctx, p.name, p.caps.Host)
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

// plan is how the next call of Create goes.
func (p *Provider) plan(root string) Create {
	p.mu.Lock()
	defer p.mu.Unlock()
	plans := &p.plans
	if kept := p.roots[root]; len(*plans) == 0 && kept != nil {
		plans = &kept.plans
	}
	if len(*plans) == 0 {
		return Create{}
	}
	plan := &(*plans)[0]
	if plan.times--; plan.times <= 0 {
		*plans = (*plans)[1:]
	}
	return *plan
}

// behind puts the sandbox of an unsuccessful create into the world.
func (p *Provider) behind(h sandbox.Handle, root script, plan Create, answer *sandbox.Error) error {
	if !plan.Exists {
		return answer
	}
	if _, err := p.world.add(h, p, root, plan.Late); err != nil {
		return sandbox.Errorf(sandbox.Ambiguous, "create", "the world's directory: %w", err)
	}
	return answer
}

// able is nil when the provider can be called.
func (p *Provider) able(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return sandbox.Errorf(sandbox.Unavailable, op, "the provider is closed")
	}
	return p.world.able(op)
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
