package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/sandbox/local/seccomp"
)

// Name is the provider's name.
const Name = "local"

const (
	defaultWorkspaceBytes  = 64 << 20
	defaultWorkspaceInodes = 16 << 10
	defaultTmpBytes        = 64 << 20

	// setupTimeout bounds the making of a sandbox: a few milliseconds, as a rule.
	setupTimeout = 10 * time.Second
	// closeTimeout bounds the end of a lease whose last owner is the provider.
	closeTimeout = 5 * time.Second
)

// Config is what the operator says.
type Config struct {
	// StateDir is where the files stand by which a later worker on this host
	// finds what this one leaves. It is made if it is missing. Required.
	StateDir string
	// Host is this host's name as a token. Required.
	Host string
	// Instance is a token that names this worker among those that use StateDir at
	// the same time. Required.
	Instance string
	// Cgroup is the worker's group. Nil means that there are no control groups:
	// memory and CPU are then not limited, and a request that wants it is refused.
	Cgroup *cgroup.Group
	// WorkspaceBytes and WorkspaceInodes bound the workspace of a run that has no
	// limits of its own for it. Zero means 64 MiB and 16,384.
	WorkspaceBytes, WorkspaceInodes int64
	// TmpBytes bounds /tmp and, apart from it, /dev/shm of each run. Zero means
	// 64 MiB.
	TmpBytes int64
	Log      zerolog.Logger
}

// Provider is the local provider.
type Provider struct {
	config       Config
	log          zerolog.Logger
	host         host
	policy       seccomp.Policy
	capabilities sandbox.Capabilities
	launcher     *launcher
	state        *state
	null         *os.File
	buffers      chunkPool
	// cleaning is the dead instance whose lock is held, while New cleans up after it.
	cleaning string
	// runs counts goroutines of sandboxes and runs.
	runs sync.WaitGroup

	mu     sync.Mutex
	closed bool
	boxes  map[string]*box
	// leftovers are what dead workers left and the start could not prove gone.
	leftovers []sandbox.Handle // guarded by mu
	ranges    map[uint32]bool
}

var _ sandbox.Provider = (*Provider)(nil)

// New makes the provider and ends what dead workers with the same state directory
// left on this host. It starts one goroutine, which Close ends.
func New(config Config) (*Provider, error) {
	if config.StateDir == "" || config.Host == "" || config.Instance == "" {
		return nil, errors.New("local provider: StateDir, Host and Instance are required")
	}
	if config.WorkspaceBytes == 0 {
		config.WorkspaceBytes = defaultWorkspaceBytes
	}
	if config.WorkspaceInodes == 0 {
		config.WorkspaceInodes = defaultWorkspaceInodes
	}
	if config.TmpBytes == 0 {
		config.TmpBytes = defaultTmpBytes
	}
	p := &Provider{config: config, log: config.Log, policy: seccomp.New(seccomp.Native()), boxes: map[string]*box{}, ranges: map[uint32]bool{}}
	var err error
	if p.host, err = inspectHost(); err != nil {
		return nil, fmt.Errorf("local provider: %w", err)
	}
	if p.state, err = openState(config.StateDir, config.Instance, p.host.bootID); err != nil {
		return nil, fmt.Errorf("local provider: %w", err)
	}
	// First of all what an earlier worker of this instance left: it may stand in the
	// way of all that follows.
	p.reconcile()
	p.sweepGroups()
	if p.capabilities, err = p.findCapabilities(); err != nil {
		return nil, errors.Join(fmt.Errorf("local provider: %w", err), p.state.close())
	}
	if p.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("local provider: %w", err), p.state.close())
	}
	p.launcher = newLauncher(&p.runs)
	return p, nil
}

// Name is "local".
func (p *Provider) Name() string { return Name }

// Capabilities says what this host lets the provider do.
func (p *Provider) Capabilities() sandbox.Capabilities { return p.capabilities }

// Create makes a sandbox: some milliseconds.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Network != "" {
		return nil, sandbox.Errorf(sandbox.Refused, "create", "network %q: this provider has no network", spec.Network)
	}
	if !token(spec.Lease) {
		return nil, sandbox.Errorf(sandbox.Refused, "create", "lease id %q is not a token of [A-Za-z0-9_-]{1,64}", spec.Lease)
	}
	if err := p.unenforced(spec.Limits); err != nil {
		return nil, sandbox.Errorf(sandbox.Refused, "create", "%w", err)
	}
	b := newBox(p, spec)
	if err := p.admit(b); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	if err := b.create(ctx); err != nil {
		return nil, b.abandon(ctx, err)
	}
	return b, nil
}

// admit enters a sandbox into the books before anything of it exists.
func (p *Provider) admit(b *box) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return sandbox.Errorf(sandbox.Unavailable, "create", "the provider is closed")
	}
	if _, exists := p.boxes[b.spec.Lease]; exists {
		return sandbox.Errorf(sandbox.Refused, "create", "lease %s exists", b.spec.Lease)
	}
	slot, err := p.host.slot(b.spec.Lease, p.ranges)
	if err != nil {
		return sandbox.Errorf(sandbox.Busy, "create", "%w", err)
	}
	b.slot = slot
	p.ranges[slot] = true
	p.boxes[b.spec.Lease] = b
	return nil
}

// forget takes a sandbox that is surely gone out of the books.
func (p *Provider) forget(b *box) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.boxes, b.spec.Lease)
	delete(p.ranges, b.slot)
}

// Destroy ends the sandbox that handle names: one of this provider, or what is
// left of a dead worker's.
func (p *Provider) Destroy(ctx context.Context, handle sandbox.Handle) (sandbox.Proof, error) {
	if handle.Provider != Name || handle.Host != p.config.Host {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Refused, "destroy", "lease %s is of %s on %s, not of %s on %s",
			handle.Lease, handle.Provider, handle.Host, Name, p.config.Host)
	}
	p.mu.Lock()
	b := p.boxes[handle.Lease]
	p.mu.Unlock()
	if b != nil {
		return b.Destroy(ctx)
	}
	return p.destroyForeign(ctx, handle)
}

// Inventory lists the leases of this host that the state directory knows.
func (p *Provider) Inventory(context.Context) ([]sandbox.Handle, error) {
	records, err := p.state.all()
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "inventory", "%w", err)
	}
	handles := make([]sandbox.Handle, 0, len(records))
	for _, r := range records {
		handles = append(handles, p.handle(r))
	}
	return handles, nil
}

func (p *Provider) handle(r record) sandbox.Handle {
	return sandbox.Handle{Provider: Name, Lease: r.Lease, Host: p.config.Host, Detail: r.detail()}
}

// Close ends all sandboxes and returns when they are gone, or after a few
// seconds with what is not. The death of the forking thread then ends the rest.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	boxes := make([]*box, 0, len(p.boxes))
	for _, b := range p.boxes {
		boxes = append(boxes, b)
	}
	p.mu.Unlock()

	ctx, cancel := ownContext(closeTimeout)
	defer cancel()
	errs := make([]error, len(boxes))
	var all sync.WaitGroup
	for i, b := range boxes {
		all.Go(func() { _, errs[i] = b.Destroy(ctx) })
	}
	all.Wait()
	p.launcher.close()
	for _, b := range boxes {
		b.letGo()
	}
	p.runs.Wait()
	return errors.Join(append(errs, p.state.close(), p.null.Close())...)
}

// cleanup is a context for what has to be done although ctx has ended.
func cleanup(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

// ownContext is a context for what has no caller whose context it could take: the
// settling of a run, which goes on when nobody waits for it, and Close.
func ownContext(timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), timeout) //nolint:forbidigo // see above
}

// token is the form of names that come from outside and end up in a path.
func token(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// monotonic is CLOCK_MONOTONIC, which processes in all namespaces here share.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
