package createos

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Provider makes CreateOS sandboxes. It implements sandbox.Provider.
type Provider struct {
	cfg  Config
	api  *client
	caps sandbox.Capabilities
	log  zerolog.Logger
	// alive is what outlives a call lives in; end ends it.
	alive context.Context //nolint:containedctx // of the provider that it is the life of
	end   context.CancelCauseFunc
	// tasks are the goroutines, which Close waits for.
	tasks sync.WaitGroup

	mu    sync.Mutex
	boxes map[string]*box // by lease
	// closed: nothing new is begun; ended: nothing goes on.
	closed, ended bool
	// making are the leases whose create call is out, doubted those whose create call
	// brought no answer, with the time since when nothing was sent for them.
	making  map[string]bool
	doubted map[string]time.Time
}

var _ sandbox.Provider = (*Provider)(nil)

// New makes a provider and returns all mistakes of cfg at once. Nothing is sent. What it
// does beyond its calls ends with Close, not with ctx.
func New(ctx context.Context, cfg Config) (*Provider, error) {
	cfg, key, err := cfg.resolve()
	if err != nil {
		return nil, fmt.Errorf("createos: %w", err)
	}
	p := &Provider{
		cfg: cfg, api: newClient(cfg, key), log: cfg.Log, caps: capabilities(cfg),
		boxes: map[string]*box{}, making: map[string]bool{}, doubted: map[string]time.Time{},
	}
	p.alive, p.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return p, nil
}

func capabilities(cfg Config) sandbox.Capabilities {
	const shape = "CreateOS limits a whole sandbox by its shape, not a run: choose the shape, and leave this limit out of the profile"
	const none = "CreateOS has no such limit: leave it out of the profile"
	sum := sha256.Sum256([]byte(cfg.APIURL + "\n" + cfg.Account + "\n" + cfg.NamePrefix))
	c := sandbox.Capabilities{
		Scope: "provider", Host: "createos-" + hex.EncodeToString(sum[:8]), OutlivesWorker: true, Reset: cfg.Reuse, Files: true,
		Unenforced: map[string]string{
			"cpu_ms": none, "pids": none, "inodes": none, "open_files": none,
			"memory_bytes": shape, "cpu_share": shape, "disk_bytes": shape,
		},
		Isolation: sandbox.Isolation{Level: "provider", Applied: []string{"CreateOS sandbox of shape " + cfg.Shape}},
		// Each call waits its turn, and what failed is cleaned up on its own clock.
		Patience: sandbox.Patience{
			Create: cfg.Timeout + cfg.CleanupTimeout, Setup: cfg.RequestTimeout + cfg.CleanupTimeout,
			Reset: cfg.RequestTimeout + cfg.CleanupTimeout, Destroy: cfg.RequestTimeout + cfg.CleanupTimeout, Proof: cfg.CleanupTimeout,
		},
	}
	if slices.Equal(cfg.Egress, []string{everything}) {
		c.Isolation.Missing = append(c.Isolation.Missing, "network: everything is reachable from inside")
	} else {
		c.Isolation.Applied = append(c.Isolation.Applied, fmt.Sprintf("egress: %d named targets, denied by default", len(cfg.Egress)))
	}
	if cfg.Reuse {
		c.Isolation.Missing = append(c.Isolation.Missing, "reset: what a job changes outside of "+cfg.Workspace+" and the temporary directories stays for its tenant's next one")
	}
	return c
}

const (
	everything = "*"
	// nowhere is a name that never resolves (RFC 2606). An empty list would allow
	// everything, and there is no word for nothing.
	nowhere = "sallyport.invalid"
)

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return p.cfg.Name }

// Capabilities implements sandbox.Provider.
func (p *Provider) Capabilities() sandbox.Capabilities {
	c := p.caps
	c.Unenforced = maps.Clone(c.Unenforced)
	return c
}

// Create implements sandbox.Provider. Spec.Root and Spec.Shape go before the
// configured ones.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	const op = "create"
	switch {
	case !token(spec.Lease, 64):
		return nil, sandbox.Errorf(sandbox.Refused, op, "the lease's id must be a token of letters, digits, - and _, at most 64")
	case spec.Network != "":
		return nil, sandbox.Errorf(sandbox.Refused, op, "network %q: what is reachable is the provider's setting egress", spec.Network)
	case ctx.Err() != nil:
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "not begun: %w", context.Cause(ctx))
	}
	if err := p.begin(op, spec.Lease); err != nil {
		return nil, err
	}
	caller := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, errTimeout)
	defer cancel()
	v, err := p.api.create(ctx, p.creation(spec))
	err = p.made(spec.Lease, err)
	if err != nil {
		return nil, fail(op, err)
	}
	b := newBox(p, spec.Lease, v.ID)
	if err := p.setUp(ctx, b, v.Status); err != nil {
		return nil, p.unmake(caller, b, err)
	}
	if !p.keep(b) {
		return nil, p.unmake(caller, b, errClosed)
	}
	p.log.Debug().Str("lease", spec.Lease).Str("sandbox", v.ID).Msg("sandbox created")
	return b, nil
}

// begin notes that a create call goes out.
func (p *Provider) begin(op, lease string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return sandbox.Errorf(sandbox.Unavailable, op, "%w", errClosed)
	case p.making[lease] || p.boxes[lease] != nil:
		return sandbox.Errorf(sandbox.Refused, op, "the lease's id is in use")
	}
	p.making[lease] = true
	return nil
}

// made notes that nothing more goes out for the lease, and whether that is the end of it.
func (p *Provider) made(lease string, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.making, lease)
	if err != nil {
		switch kindOf(err) {
		case sandbox.Ambiguous, sandbox.Protocol, sandbox.Gone:
			p.doubted[lease] = time.Now()
		case sandbox.Refused, sandbox.Busy, sandbox.Unavailable:
		}
	}
	return err
}

func (p *Provider) creation(spec sandbox.Spec) creation {
	c := creation{
		Shape: p.cfg.Shape, Rootfs: p.cfg.Rootfs, Region: p.cfg.Region, Name: p.cfg.NamePrefix + spec.Lease,
		DiskMiB: p.cfg.DiskBytes >> 20, Egress: p.cfg.Egress,
	}
	if spec.Root != "" {
		c.Rootfs = spec.Root
	}
	if spec.Shape != "" {
		c.Shape = spec.Shape
	}
	if len(c.Egress) == 0 {
		c.Egress = []string{nowhere}
	}
	if p.cfg.Reuse {
		c.AutoPause = int64(p.cfg.AutoPause / time.Second)
	}
	return c
}

// setUp waits until a sandbox runs and makes its workspace.
func (p *Provider) setUp(ctx context.Context, b *box, s status) error {
	if s != statusRunning {
		if err := p.transition(ctx, b.id, statusRunning); err != nil {
			return err
		}
	}
	args := scripted(setupScript, p.cfg.Workspace, b.own, b.marker)
	code, err := p.api.exec(ctx, b.id, args[0], args[1:]...)
	if err != nil {
		return err
	}
	if code != 0 {
		return errors.New("the workspace could not be prepared: the image must provide Bash and let its user make " + p.cfg.Workspace)
	}
	return nil
}

// unmake destroys a sandbox whose set-up ended with why, and returns the error of the
// create call.
func (p *Provider) unmake(ctx context.Context, b *box, why error) error {
	const op = "create"
	if ctx.Err() != nil { // the caller waits no longer, and has all that it takes to destroy it
		return sandbox.Errorf(sandbox.Ambiguous, op, "set-up of sandbox %s: %w", b.id, why)
	}
	ctx, cancel := cleanup(ctx, p.cfg.CleanupTimeout)
	defer cancel()
	if _, err := p.destroy(ctx, b.id); err != nil {
		return sandbox.Errorf(sandbox.Ambiguous, op, "set-up: %w; the cleanup of sandbox %s is unconfirmed: %w", why, b.id, err)
	}
	return sandbox.Errorf(sandbox.Unavailable, op, "set-up: %w", why)
}

func (p *Provider) keep(b *box) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.boxes[b.handle.Lease] = b
	return true
}

// transition brings a sandbox to running or paused.
func (p *Provider) transition(ctx context.Context, id string, target status) error {
	action, from := "resume", []status{statusPaused, statusError}
	if target == statusPaused {
		action, from = "pause", []status{statusRunning}
	}
	submitted := false
	for {
		v, err := p.api.get(ctx, id)
		if err != nil {
			return err
		}
		moving := slices.Contains([]status{statusCreating, statusPausing, statusResuming, statusForking}, v.Status)
		switch {
		case v.Status == target:
			return nil
		case slices.Contains(from, v.Status) && submitted:
			// It was accepted; the status lags.
		case slices.Contains(from, v.Status):
			err := p.api.submit(ctx, id, action)
			// A conflict is another transition that still goes on.
			submitted = statusOf(err) != http.StatusConflict
			if err != nil && submitted {
				return err
			}
		case !moving:
			return fmt.Errorf("%w: it did not become %s", errSandboxState, target)
		}
		if err := sleep(ctx, p.cfg.Poll); err != nil {
			return &callError{what: lifecycle, effect: looks, err: err}
		}
	}
}

// Destroy implements sandbox.Provider. A sandbox is gone when the service does not know it,
// or calls it destroyed or failed. One whose id the handle does not have is looked for by
// its name, twice.
func (p *Provider) Destroy(ctx context.Context, handle sandbox.Handle) (sandbox.Proof, error) {
	const op = "destroy"
	if handle.Provider != p.cfg.Name || handle.Host != p.caps.Host || !token(handle.Lease, 64) {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Refused, op, "not one of %s on %s", p.cfg.Name, p.caps.Host)
	}
	p.mu.Lock()
	b, making := p.boxes[handle.Lease], p.making[handle.Lease]
	p.mu.Unlock()
	if making {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "it is still being created")
	}
	if b != nil {
		b.close()
	}
	evidence, err := p.destroyBy(ctx, handle, b)
	if err != nil {
		if b != nil {
			b.reopen()
		}
		return sandbox.Proof{}, fail(op, err)
	}
	proof := sandbox.Proof{Proven: true, Evidence: evidence}
	if b != nil {
		b.destroyed(proof)
	}
	p.mu.Lock()
	delete(p.boxes, handle.Lease)
	delete(p.doubted, handle.Lease)
	p.mu.Unlock()
	return proof, nil
}

func (p *Provider) destroyBy(ctx context.Context, handle sandbox.Handle, b *box) ([]sandbox.Evidence, error) {
	id := handle.Detail["id"]
	switch {
	case b != nil:
		return p.destroy(ctx, b.id)
	case id == "":
		return p.destroyNamed(ctx, handle.Lease)
	case !resource(id):
		return nil, sandbox.Errorf(sandbox.Refused, "destroy", "the handle's sandbox id is invalid")
	}
	// The handle comes from a record: what it names must carry our mark.
	v, err := p.api.get(ctx, id)
	switch {
	case statusOf(err) == http.StatusNotFound:
		return notFound(), nil
	case err != nil:
		return nil, err
	case v.Name != p.cfg.NamePrefix+handle.Lease:
		return nil, sandbox.Errorf(sandbox.Refused, "destroy", "sandbox %s does not carry the name of this lease", id)
	case v.Status.over():
		return terminal(v.Status), nil
	}
	return p.destroy(ctx, id)
}

func notFound() []sandbox.Evidence {
	return []sandbox.Evidence{{Kind: sandbox.EvidenceNotFound, Detail: "CreateOS answers 404 for the sandbox"}}
}

func terminal(s status) []sandbox.Evidence {
	return []sandbox.Evidence{{Kind: sandbox.EvidenceSecondLook, Detail: "CreateOS calls the sandbox " + string(s)}}
}

// destroyNamed destroys what carries the lease's name. The service may still be making it
// when nobody waits for that any more: only a second look, later, that finds nothing, too,
// is proof.
func (p *Provider) destroyNamed(ctx context.Context, lease string) ([]sandbox.Evidence, error) {
	var first time.Time
	for {
		began := time.Now()
		all, err := p.api.list(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range all {
			if v.Name == p.cfg.NamePrefix+lease && !v.Status.over() {
				evidence, err := p.destroy(ctx, v.ID)
				found := sandbox.Evidence{Kind: sandbox.EvidenceDeleted, Detail: "sandbox " + v.ID + " carried the lease's name"}
				return append([]sandbox.Evidence{found}, evidence...), err
			}
		}
		p.mu.Lock()
		doubted := p.doubted[lease]
		p.mu.Unlock()
		if first.IsZero() {
			first = began
		}
		if doubted.After(first) {
			first = doubted
		}
		due := first.Add(p.cfg.SecondLook)
		if !began.Before(due) {
			return []sandbox.Evidence{
				{Kind: sandbox.EvidenceNotFound, Detail: "no sandbox carries the lease's name"},
				{Kind: sandbox.EvidenceSecondLook, Detail: fmt.Sprintf("nor did one %s later", p.cfg.SecondLook)},
			}, nil
		}
		if err := sleep(ctx, time.Until(due)); err != nil {
			return nil, &callError{what: "sandbox listing", effect: looks, err: err}
		}
	}
}

// looksPerDelete is how many looks may find a sandbox that is not being destroyed before
// it is asked for again: an answer to a DELETE is a claim.
const looksPerDelete = 4

// destroy deletes a sandbox and looks until it is gone.
func (p *Provider) destroy(ctx context.Context, id string) ([]sandbox.Evidence, error) {
	for look := 0; ; look++ {
		if look%looksPerDelete == 0 {
			err := p.api.remove(ctx, id)
			switch {
			case statusOf(err) == http.StatusNotFound:
				return notFound(), nil
			case statusOf(err) == http.StatusConflict || statusOf(err) == http.StatusGone:
				// Another transition goes on; or it is said to be gone, which the look shows.
			case err != nil:
				return nil, err
			}
		}
		v, err := p.api.get(ctx, id)
		switch {
		case statusOf(err) == http.StatusNotFound:
			return notFound(), nil
		case err != nil && !passing(err):
			return nil, err
		case err == nil && v.Status.over():
			return terminal(v.Status), nil
		case err == nil && v.Status == statusDestroying && look%looksPerDelete == looksPerDelete-1:
			look-- // it is on its way
		}
		if sleepErr := sleep(ctx, p.cfg.Poll); sleepErr != nil {
			return nil, &callError{what: lifecycle, effect: changes, sent: true, err: sleepErr}
		}
	}
}

// Inventory implements sandbox.Provider. A page that cannot be read fails all of it.
func (p *Provider) Inventory(ctx context.Context) ([]sandbox.Handle, error) {
	all, err := p.api.list(ctx)
	if err != nil {
		return nil, fail("inventory", err)
	}
	var handles []sandbox.Handle
	for _, v := range all {
		lease, ours := strings.CutPrefix(v.Name, p.cfg.NamePrefix)
		if ours && token(lease, 64) && !v.Status.over() {
			handles = append(handles, p.handle(lease, v.ID))
		}
	}
	return handles, nil
}

func (p *Provider) handle(lease, id string) sandbox.Handle {
	return sandbox.Handle{
		Provider: p.cfg.Name, Lease: lease, Host: p.caps.Host,
		Detail: map[string]string{"id": id, "name": p.cfg.NamePrefix + lease},
	}
}

// Probe makes a sandbox, runs a program in it, and destroys it: nil when all of that works.
func (p *Provider) Probe(ctx context.Context) error {
	lease := "probe-" + rand.Text()
	box, err := p.Create(ctx, sandbox.Spec{Lease: lease, Profile: "probe"})
	if err == nil {
		err = probe(ctx, box)
	} else if err = fmt.Errorf("create a sandbox: %w", err); sandbox.KindOf(err) != sandbox.Ambiguous && sandbox.KindOf(err) != sandbox.Protocol {
		return err
	}
	ctx, cancel := cleanup(ctx, p.cfg.CleanupTimeout)
	defer cancel()
	if _, destroyErr := p.Destroy(ctx, p.handle(lease, "")); destroyErr != nil {
		err = errors.Join(err, fmt.Errorf("a sandbox named %s may be left: %w", p.cfg.NamePrefix+lease, destroyErr))
	}
	return err
}

func probe(ctx context.Context, box sandbox.Sandbox) error {
	word := rand.Text()
	said := &heard{}
	run, err := box.Prepare(ctx, sandbox.Process{Argv: []string{"/bin/echo", word}}, said)
	if err != nil {
		return fmt.Errorf("prepare a process: %w", err)
	}
	if err := run.Open(ctx); err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	end, err := run.Wait(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("wait for a process: %w", err)
	case end.Exit == nil || *end.Exit != sandbox.Exit{} || said.text() != word+"\n":
		return errors.New("a program that writes a word did not do so")
	}
	return nil
}

// heard is a sink that keeps the little that a probe says.
type heard struct {
	mu   sync.Mutex
	data []byte
}

// Write implements sandbox.Sink.
func (h *heard) Write(_ sandbox.Stream, p []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.data)+len(p) > 1<<10 {
		return errors.New("a probe says more than it should")
	}
	h.data = append(h.data, p...)
	return nil
}

func (h *heard) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return string(h.data)
}

// Close implements sandbox.Provider. Runs that are going on are ended, for at most
// CleanupTimeout; sandboxes stay as they are.
func (p *Provider) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	boxes := slices.Collect(maps.Values(p.boxes))
	p.mu.Unlock()
	if first {
		var ending sync.WaitGroup
		for _, b := range boxes {
			ending.Go(func() { b.shutDown(p.alive) })
		}
		ending.Wait()
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.end(errClosed)
	}
	p.tasks.Wait()
	p.api.close()
	return nil
}

// spawn runs f until Close at the latest, which waits for it. After Close, f runs at once,
// in a context that has ended.
func (p *Provider) spawn(f func(ctx context.Context)) {
	p.mu.Lock()
	ended := p.ended
	if !ended {
		p.tasks.Go(func() { f(p.alive) })
	}
	p.mu.Unlock()
	if ended {
		f(p.alive)
	}
}

func (p *Provider) able(op string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return sandbox.Errorf(sandbox.Unavailable, op, "%w", errClosed)
	}
	return nil
}
