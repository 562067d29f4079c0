package simulation_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
)

// Names of the two providers: sandboxes that end with their worker, and those that
// do not.
const (
	localName  = "local"
	remoteName = "remote"
	account    = "account"
)

// provider is what a process has of a provider: the fake, behind the process's own
// fate and the story's faults, watched by the truth.
type provider struct {
	*fake.Provider
	p        *process
	s        *sim
	pool     bool // a pool's, not a reaper's
	capacity int
	outlives bool
}

func newProvider(p *process, name string, capacity int) *provider {
	cfg := fake.Config{Name: name, Host: account, OutlivesWorker: true}
	if name == localName {
		cfg = fake.Config{Name: name, Host: hostOf(p.name), Scope: "kernel"}
	}
	return &provider{
		Provider: fake.New(p.s.world, cfg), p: p, s: p.s, pool: capacity > 0, capacity: capacity, outlives: cfg.OutlivesWorker,
	}
}

// sharing makes v another view of the same provider: of one process.
func (v *provider) sharing(other *provider) *provider {
	v.Provider = other.Provider
	return v
}

func (v *provider) handle(lease string) sandbox.Handle {
	return sandbox.Handle{Provider: v.Name(), Lease: lease, Host: v.Capabilities().Host}
}

func (v *provider) away(op string) error {
	if err := v.p.pass(); err != nil {
		return sandbox.Errorf(sandbox.Ambiguous, op, "%w", err)
	}
	return nil
}

// Create implements sandbox.Provider.
func (v *provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	const op = "create"
	if err := v.away(op); err != nil {
		return nil, err
	}
	v.s.truth.of(spec.Lease, func(l *lease) { l.owner, l.capacity, l.outlives = v.p, v.capacity, v.outlives })
	if v.outlives {
		v.s.truth.intended(v.p, v.Name(), spec.Lease)
	}
	b, err := v.create(ctx, spec)
	v.s.tell(v.p.name, "create %s: %v", v.s.truth.name(spec.Lease), err)
	if dead := v.away(op); dead != nil {
		return nil, dead
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (v *provider) create(ctx context.Context, spec sandbox.Spec) (*box, error) {
	const op = "create"
	s, who := v.s, v.p.name
	ambiguous := func(why string) (*box, error) { return nil, sandbox.Errorf(sandbox.Ambiguous, op, "%s", why) }
	if s.chance(createRefused, who) {
		kind := []sandbox.Kind{sandbox.Refused, sandbox.Busy, sandbox.Unavailable}[s.pick(createRefused+who, 3)]
		return nil, sandbox.Errorf(kind, op, "by chance")
	}
	if err := pause(ctx, s.upTo("create "+who, 500*time.Millisecond)); err != nil {
		return ambiguous(err.Error())
	}
	switch {
	case s.chance(createAmbiguous, who):
		return ambiguous("by chance")
	case v.outlives && s.chance(createLate, who):
		late := s.upTo(createLate+who, createDeadline)
		time.AfterFunc(late, func() { v.plant(spec.Lease) })
		return ambiguous("by chance; made in " + late.String())
	case s.chance(createDeaf, who):
		time.Sleep(s.upTo(createDeaf+who, time.Minute))
	}
	if v.p.pass() != nil {
		return ambiguous("dead") // the request never left
	}
	inner, err := v.Provider.Create(context.WithoutCancel(ctx), spec)
	if err != nil {
		return nil, err
	}
	s.truth.came(spec.Lease, ctx.Err() != nil)
	switch {
	case s.chance(createMade, who):
		return ambiguous("by chance, it is there")
	case s.chance(createHang, who):
		<-ctx.Done()
		return ambiguous("no answer, it is there")
	}
	return &box{Sandbox: inner, v: v, id: spec.Lease}, nil
}

// plant lets a sandbox appear that nobody waits for any more.
func (v *provider) plant(lease string) {
	if v.s.isOver() {
		return
	}
	v.s.tell("world", "%s appears late", v.s.truth.name(lease))
	if err := v.s.world.Plant(v.handle(lease)); err != nil {
		v.s.breach("plant: %v", err)
	}
	v.s.truth.came(lease, true)
}

// Destroy implements sandbox.Provider.
func (v *provider) Destroy(ctx context.Context, h sandbox.Handle) (sandbox.Proof, error) {
	if err := v.away("destroy"); err != nil {
		return sandbox.Proof{}, err
	}
	if v.pool {
		v.s.truth.of(h.Lease, func(l *lease) {
			if l.run != nil && !l.run.over() {
				v.s.breach("%s destroys %s while %s has it", v.p.name, l.name, l.run.job)
			}
		})
	}
	v.s.truth.doubted(h.Lease, "it was to be destroyed")
	proof, err := v.destroy(ctx, h)
	v.s.tell(v.p.name, "destroy %s: proven %v, %v", v.s.truth.name(h.Lease), proof.Proven, err)
	if dead := v.away("destroy"); dead != nil {
		return sandbox.Proof{}, dead
	}
	return proof, err
}

func (v *provider) destroy(ctx context.Context, h sandbox.Handle) (sandbox.Proof, error) {
	const op = "destroy"
	s, who := v.s, v.p.name
	if s.chance(destroyFails, who) {
		kind := []sandbox.Kind{sandbox.Unavailable, sandbox.Busy, sandbox.Protocol, sandbox.Gone, sandbox.Ambiguous}[s.pick(destroyFails+who, 5)]
		return sandbox.Proof{}, sandbox.Errorf(kind, op, "by chance")
	}
	if err := pause(ctx, s.upTo("destroy "+who, 300*time.Millisecond)); err != nil {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "%w", err)
	}
	switch {
	case s.chance(destroyUnproven, who):
		return sandbox.Proof{}, nil
	case s.chance(destroyHangs, who):
		<-ctx.Done()
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "%w", context.Cause(ctx))
	case v.outlives && s.truth.exists(h.Lease) && s.chance(destroyLies, who):
		s.truth.of(h.Lease, func(l *lease) { l.lied = true })
		return sandbox.Proof{Proven: true, Evidence: []sandbox.Evidence{{Kind: sandbox.EvidenceTreeExited, Detail: "not true"}}}, nil
	}
	if v.p.pass() != nil {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "dead")
	}
	proof, err := v.Provider.Destroy(ctx, h)
	if s.chance(destroyDone, who) {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "answer lost (%v)", err)
	}
	return proof, err
}

// Inventory implements sandbox.Provider.
func (v *provider) Inventory(ctx context.Context) ([]sandbox.Handle, error) {
	if err := v.away("inventory"); err != nil {
		return nil, err
	}
	if v.s.chance(inventoryFails, v.p.name) {
		return nil, sandbox.Errorf(sandbox.Unavailable, "inventory", "by chance")
	}
	list, err := v.Provider.Inventory(ctx)
	if len(list) > 0 && v.s.chance(inventoryMisses, v.p.name) {
		i := v.s.pick(inventoryMisses+v.p.name, len(list))
		v.s.tell(v.p.name, "inventory without %s", v.s.truth.name(list[i].Lease))
		list = slices.Delete(list, i, i+1)
	}
	if dead := v.away("inventory"); dead != nil {
		return nil, dead
	}
	return list, err
}

// box is one sandbox as its process sees it.
type box struct {
	sandbox.Sandbox
	v  *provider
	id string
}

// Destroy implements sandbox.Sandbox.
func (b *box) Destroy(ctx context.Context) (sandbox.Proof, error) {
	return b.v.Destroy(ctx, b.Handle())
}

// Prepare implements sandbox.Sandbox.
func (b *box) Prepare(ctx context.Context, process sandbox.Process, sink sandbox.Sink) (sandbox.Run, error) {
	if err := b.v.away("prepare"); err != nil {
		return nil, err
	}
	r := &boxRun{b: b, program: !slices.Contains(process.Argv, "start:not_found")}
	r.job, r.tenant = ownerOf(process.Env)
	b.v.s.truth.prepared(b, r)
	var (
		inner sandbox.Run
		err   error
	)
	switch {
	case b.v.s.chance(prepareFails, b.v.p.name):
		err = sandbox.Errorf(sandbox.Unavailable, "prepare", "by chance")
	case b.v.s.chance(prepareHangs, b.v.p.name):
		<-ctx.Done()
		err = sandbox.Errorf(sandbox.Ambiguous, "prepare", "no answer")
	default:
		inner, err = b.Sandbox.Prepare(ctx, process, sink)
	}
	b.v.s.tell(b.v.p.name, "prepare %s for %s: %v", b.v.s.truth.name(b.id), r.job, err)
	if err == nil {
		err = b.v.away("prepare")
	}
	if err != nil {
		r.end(true)
		if doubtOf(err) {
			b.v.s.truth.doubted(b.id, "its set-up failed")
		}
		return nil, err
	}
	r.Run = inner
	return r, nil
}

// Reset implements sandbox.Sandbox.
func (b *box) Reset(ctx context.Context) error {
	err := b.v.away("reset")
	if err != nil {
		return err
	}
	s, who := b.v.s, b.v.p.name
	s.truth.of(b.id, func(l *lease) {
		if l.run != nil {
			s.breach("%s is reset while %s has it", l.name, l.run.job)
		}
	})
	switch {
	case s.chance(resetFails, who):
		err = sandbox.Errorf(sandbox.Unavailable, "reset", "by chance")
	case s.chance(resetHangs, who):
		<-ctx.Done()
		err = sandbox.Errorf(sandbox.Ambiguous, "reset", "no answer")
	default:
		err = b.Sandbox.Reset(ctx)
	}
	s.tell(who, "reset %s: %v", s.truth.name(b.id), err)
	s.truth.of(b.id, func(l *lease) {
		l.dirty = l.dirty && err != nil
		if err != nil && l.doubt == "" {
			l.doubt = "its reset failed"
		}
	})
	if dead := b.v.away("reset"); dead != nil {
		return dead
	}
	return err
}

// boxRun is one run as its process sees it.
type boxRun struct {
	sandbox.Run
	b           *box
	job, tenant string

	program bool // it has a program that runs if it is started

	mu      sync.Mutex
	started bool // the program may have run
	proven  bool
}

// end notes that nothing of the run is left, on somebody's word.
func (r *boxRun) end(proven bool) {
	if !proven {
		return
	}
	r.mu.Lock()
	r.proven = true
	r.mu.Unlock()
	r.b.v.s.truth.of(r.b.id, func(l *lease) {
		if l.run == r {
			l.run = nil
		}
	})
}

// over says that nobody works with the run any more: it is proven gone, or its
// worker has given it up.
func (r *boxRun) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proven
}

// Open implements sandbox.Run.
func (r *boxRun) Open(ctx context.Context) error {
	if err := r.b.v.away("open"); err != nil {
		return err
	}
	err := r.Run.Open(ctx)
	if r.program && (err == nil || doubtOf(err)) {
		r.mu.Lock()
		r.started = true
		r.mu.Unlock()
		r.b.v.s.queue.opened(r.b.v.p, r.job)
	}
	r.b.v.s.tell(r.b.v.p.name, "open %s for %s: %v", r.b.v.s.truth.name(r.b.id), r.job, err)
	if doubtOf(err) {
		r.b.v.s.truth.doubted(r.b.id, "nobody knows whether its job started")
	}
	if dead := r.b.v.away("open"); dead != nil {
		return dead
	}
	return err
}

// Wait implements sandbox.Run.
func (r *boxRun) Wait(ctx context.Context) (sandbox.End, error) {
	if err := r.b.v.away("wait"); err != nil {
		return sandbox.End{}, err
	}
	end, err := r.Run.Wait(ctx)
	if dead := r.b.v.away("wait"); dead != nil {
		return sandbox.End{}, dead
	}
	r.end(end.Proof.Proven)
	return end, err
}

// Terminate implements sandbox.Run.
func (r *boxRun) Terminate(ctx context.Context, grace time.Duration) (sandbox.Proof, error) {
	if err := r.b.v.away("terminate"); err != nil {
		return sandbox.Proof{}, err
	}
	proof, err := r.Run.Terminate(ctx, grace)
	if dead := r.b.v.away("terminate"); dead != nil {
		return sandbox.Proof{}, dead
	}
	r.end(proof.Proven)
	return proof, err
}

// ownerOf reads whose a process is from its environment.
func ownerOf(env []string) (job, tenant string) {
	word := func(name string) string {
		i := slices.IndexFunc(env, func(e string) bool { return len(e) > len(name) && e[:len(name)+1] == name+"=" })
		if i < 0 {
			return ""
		}
		return env[i][len(name)+1:]
	}
	return word("JOB"), word("TENANT")
}
