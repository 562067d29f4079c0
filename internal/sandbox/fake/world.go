package fake

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// World is where the sandboxes are: the host or the account behind one or more
// providers. It lives in memory (NewWorld), or in a directory that several
// processes share (OpenWorld). The zero value is not usable.
type World struct {
	// shelf keeps it in a directory; nil in memory.
	shelf *shelf

	mu        sync.Mutex
	residents map[place]*resident
	used      map[place]bool
	calls     map[string]int
	state     state
	// err is why the directory could not be read or written the last time.
	err error
}

// state is what a world is beside its residents.
type state struct {
	Created, Destroyed, Vanished, Started, Looks int
	Outage                                       bool
	Inventory                                    rule
	InventoryDelay                               time.Duration
}

// place is what makes a sandbox unique. A handle's detail is not part of it: a
// caller whose create was ambiguous knows no detail.
type place struct{ provider, host, lease string }

func placeOf(h sandbox.Handle) place { return place{h.Provider, h.Host, h.Lease} }

// resident is one sandbox in the world. All fields but the channels are guarded
// by World.mu.
type resident struct {
	saved
	// owner is the provider that made it; nil for one that was planted, or made by
	// another process.
	owner *Provider
	files map[string]item // of the workspace, by path
	// gone is closed when the sandbox has ended, lost when it ended without its
	// owner's doing, or broke.
	gone, lost chan struct{}
	isLost     bool
}

// saved is what is kept of a resident where its world is kept.
type saved struct {
	Handle sandbox.Handle
	// Life counts how often it came back.
	Life int
	// From is when it will appear; zero once it is there.
	From time.Time
	// Stranger carries no mark of ours.
	Stranger     bool
	Destroy      rule
	DestroyDelay time.Duration
	// Back is how long after a destroy it appears again, so many times.
	Back  time.Duration
	Backs int
}

func newResident(s saved, owner *Provider) *resident {
	return &resident{saved: s, owner: owner, files: map[string]item{}, gone: make(chan struct{}), lost: make(chan struct{})}
}

// there says that it exists now.
func (r *resident) there() bool { return r.From.IsZero() }

// NewWorld makes an empty world in memory.
func NewWorld() *World {
	return &World{residents: map[place]*resident{}, used: map[place]bool{}, calls: map[string]int{}}
}

// Close lets go of the directory; the sandboxes in it stay. The world may not be
// used afterwards.
func (w *World) Close() error {
	if w.shelf == nil {
		return nil
	}
	return w.shelf.lock.Close()
}

// open brings the world up to date and keeps it so until it is closed. A world in
// a directory is locked against other processes meanwhile.
func (w *World) open() (done func()) {
	w.mu.Lock()
	if w.shelf != nil {
		w.err = w.shelf.load(w)
	}
	before := w.state
	now := time.Now()
	for _, r := range w.residents {
		if !r.there() && !now.Before(r.From) {
			r.From = time.Time{}
			w.state.Created++
			w.keep(r)
		}
	}
	return func() {
		if w.shelf != nil {
			w.fail(w.shelf.done(w.state, w.state != before && w.err == nil))
		}
		w.mu.Unlock()
	}
}

// keep makes a change of r last; the world is open.
func (w *World) keep(r *resident) {
	if w.shelf != nil && w.err == nil {
		w.fail(w.shelf.put(r.saved))
	}
}

func (w *World) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// Plant puts a sandbox into the world that no provider here made: the leftover of
// a crashed worker. The knobs are destroy steps ("destroy:fail*3",
// "delay:destroy:1s", "back:10s").
func (w *World) Plant(handle sandbox.Handle, knobs ...string) error {
	s, err := parseRoot(knobs)
	if err != nil {
		return err
	}
	defer w.open()()
	w.insert(saved{Handle: handle}.with(s), nil)
	return w.err
}

// PlantStranger puts a sandbox into the world that does not carry our mark: no
// inventory may list it, and no Destroy may end it.
func (w *World) PlantStranger(handle sandbox.Handle) error {
	defer w.open()()
	w.insert(saved{Handle: handle, Stranger: true}, nil)
	return w.err
}

// Knob changes how destroying a living sandbox goes: "destroy:never", or
// "destroy:ok" for a cure. It reports whether there is such a lease.
func (w *World) Knob(lease string, knobs ...string) (bool, error) {
	s, err := parseRoot(knobs)
	if err != nil {
		return false, err
	}
	defer w.open()()
	r := w.find(lease)
	if r == nil {
		return false, w.err
	}
	r.Destroy, r.DestroyDelay, r.Back, r.Backs = s.destroy, s.delay["destroy"], s.back, s.backs
	w.keep(r)
	return true, w.err
}

// Inventory changes how the next inventories go: "inventory:unavailable*2",
// "inventory:partial", "delay:inventory:1s", or "inventory:ok".
func (w *World) Inventory(knobs ...string) error {
	s, err := parseRoot(knobs)
	if err != nil {
		return err
	}
	return w.tune(s)
}

func (w *World) tune(s script) error {
	defer w.open()()
	w.state.Inventory, w.state.InventoryDelay = s.inventory, s.delay["inventory"]
	return w.err
}

// Vanish ends a sandbox from outside, as when its host dies: its owner sees it as
// lost. It reports whether there was such a lease.
func (w *World) Vanish(lease string) bool {
	defer w.open()()
	r := w.find(lease)
	if r != nil {
		w.remove(r, nil)
		w.state.Vanished++
	}
	return r != nil
}

// Outage makes every call of every provider of this world Unavailable, or ends
// that.
func (w *World) Outage(on bool) {
	defer w.open()()
	w.state.Outage = on
}

// Live lists the leases of the sandboxes that exist, sorted; strangers are not
// among them.
func (w *World) Live() []string { return w.leases(false) }

// Strangers lists the strangers' leases, sorted.
func (w *World) Strangers() []string { return w.leases(true) }

func (w *World) leases(strangers bool) []string {
	defer w.open()()
	var leases []string
	for _, r := range w.residents {
		if r.there() && r.Stranger == strangers {
			leases = append(leases, r.Handle.Lease)
		}
	}
	slices.Sort(leases)
	return leases
}

// Created counts the sandboxes that ever existed, planted ones and those that
// came back included, strangers not.
func (w *World) Created() int { return w.now().Created }

// Destroyed counts the sandboxes that were ended by a Destroy.
func (w *World) Destroyed() int { return w.now().Destroyed }

// Vanished counts the sandboxes that ended in another way: with their worker, by
// Vanish or by a die step. Created = Destroyed + Vanished + len(Live).
func (w *World) Vanished() int { return w.now().Vanished }

// Started counts the programs that ran.
func (w *World) Started() int { return w.now().Started }

// Looks counts the inventories that were taken.
func (w *World) Looks() int { return w.now().Looks }

func (w *World) now() state {
	defer w.open()()
	return w.state
}

// DestroyCalls counts the Destroy calls for a lease in this process, failed ones
// included.
func (w *World) DestroyCalls(lease string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[lease]
}

// able is nil where the world can be called.
func (w *World) able(op string) error {
	defer w.open()()
	switch {
	case w.err != nil:
		return sandbox.Errorf(sandbox.Unavailable, op, "the world's directory: %w", w.err)
	case w.state.Outage:
		return sandbox.Errorf(sandbox.Unavailable, op, "outage")
	}
	return nil
}

// reserve takes a lease's place, which is free once for ever.
func (w *World) reserve(op string, h sandbox.Handle) error {
	defer w.open()()
	taken := w.used[placeOf(h)]
	w.used[placeOf(h)] = true
	if w.shelf != nil {
		there, err := w.shelf.reserve(h)
		if err != nil {
			return sandbox.Errorf(sandbox.Unavailable, op, "the world's directory: %w", err)
		}
		taken = taken || there
	}
	if taken {
		return sandbox.Errorf(sandbox.Refused, op, "the lease id %s was used before", h.Lease)
	}
	return nil
}

// add makes a sandbox that appears late from now.
func (w *World) add(h sandbox.Handle, owner *Provider, s script, late time.Duration) (*resident, error) {
	defer w.open()()
	kept := saved{Handle: h}.with(s)
	if late > 0 {
		kept.From = time.Now().Add(late)
	}
	return w.insert(kept, owner), w.err
}

func (w *World) insert(kept saved, owner *Provider) *resident {
	r := newResident(kept, owner)
	w.residents[placeOf(kept.Handle)] = r
	w.used[placeOf(kept.Handle)] = true
	if r.there() && !r.Stranger {
		w.state.Created++
	}
	w.keep(r)
	return r
}

// with gives it the destroy knobs of s.
func (k saved) with(s script) saved {
	if s.destroy.Effect != "" {
		k.Destroy = s.destroy
	}
	if d := s.delay["destroy"]; d > 0 {
		k.DestroyDelay = d
	}
	if s.backs > 0 {
		k.Back, k.Backs = s.back, s.backs
	}
	return k
}

// arm gives a sandbox the destroy knobs of the process that it got.
func (w *World) arm(r *resident, s script) {
	defer w.open()()
	before := r.saved
	if r.saved = r.with(s); r.Destroy != before.Destroy || r.DestroyDelay != before.DestroyDelay || r.Backs != before.Backs || r.Back != before.Back {
		if w.residents[placeOf(r.Handle)] == r {
			w.keep(r)
		}
	}
}

// find returns a sandbox that is there.
func (w *World) find(lease string) *resident {
	for _, r := range w.residents {
		if r.Handle.Lease == lease && r.there() && !r.Stranger {
			return r
		}
	}
	return nil
}

// remove ends a resident; the world is open. by is who asked for it.
func (w *World) remove(r *resident, by *Provider) {
	if w.residents[placeOf(r.Handle)] != r {
		return
	}
	delete(w.residents, placeOf(r.Handle))
	if w.shelf != nil && w.err == nil {
		w.fail(w.shelf.drop(r.Handle))
	}
	r.end(by == nil || by != r.owner)
}

// end tells who holds r that it is gone.
func (r *resident) end(lost bool) {
	if lost {
		r.lose()
	}
	close(r.gone)
}

// lose marks r as lost; World.mu is held.
func (r *resident) lose() {
	if !r.isLost {
		r.isLost = true
		close(r.lost)
	}
}

// spoil marks a sandbox as lost that is still there.
func (w *World) spoil(r *resident) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.lose()
}

// vanish is remove for a sandbox that ends by itself.
func (w *World) vanish(r *resident) {
	defer w.open()()
	if w.residents[placeOf(r.Handle)] == r {
		w.remove(r, nil)
		w.state.Vanished++
	}
}

// orphan ends what cannot outlive its owner. A sandbox that does not let itself
// be destroyed does not end with its worker either.
func (w *World) orphan(owner *Provider) {
	defer w.open()()
	for _, r := range w.residents {
		if r.owner != owner || r.Destroy.active() {
			continue
		}
		if r.there() {
			w.state.Vanished++
		}
		w.remove(r, owner)
	}
}

func (w *World) destroyBy(ctx context.Context, by *Provider, h sandbox.Handle) (sandbox.Proof, error) {
	const op = "destroy"
	if err := pause(ctx, w.called(h)); err != nil {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "waiting for the answer: %w", err)
	}
	if err := w.able(op); err != nil {
		return sandbox.Proof{}, err
	}
	switch effect, err := w.strike(by, h); effect {
	case "broken":
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "the world's directory: %w", err)
	case "none":
		return proof(sandbox.EvidenceNotFound, "no such sandbox"), nil
	case "stranger":
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Refused, op, "the sandbox does not carry our mark")
	case "fail", "never":
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Unavailable, op, "told not to work")
	case "refuse":
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Refused, op, "told to refuse")
	case "ambiguous":
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "told to be ambiguous")
	case "hang":
		<-ctx.Done()
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "no answer: %w", context.Cause(ctx))
	case "unproven":
		return sandbox.Proof{}, nil
	default:
		return proof(sandbox.EvidenceTreeExited, "the sandbox was deleted"), nil
	}
}

// called counts a call to destroy, and says how long it takes.
func (w *World) called(h sandbox.Handle) time.Duration {
	defer w.open()()
	w.calls[h.Lease]++
	if r := w.residents[placeOf(h)]; r != nil {
		return r.DestroyDelay
	}
	return 0
}

// strike applies one destroy and says what became of it.
func (w *World) strike(by *Provider, h sandbox.Handle) (effect string, err error) {
	defer w.open()()
	r := w.residents[placeOf(h)]
	switch {
	case w.err != nil:
		return "broken", w.err
	case r == nil || !r.there():
		return "none", nil
	case r.Stranger:
		return "stranger", nil
	}
	effect = r.Destroy.next()
	if effect != "" && effect != "ambiguous" {
		w.keep(r)
		return effect, w.err
	}
	w.remove(r, by)
	w.state.Destroyed++
	if r.Backs > 0 {
		again := r.saved
		again.Backs, again.Life, again.From = r.Backs-1, r.Life+1, time.Now().Add(r.Back)
		w.insert(again, nil)
	}
	if w.err != nil {
		return "broken", w.err
	}
	return effect, nil
}

func (w *World) inventory(ctx context.Context, name, host string) ([]sandbox.Handle, error) {
	const op = "inventory"
	if err := pause(ctx, w.now().InventoryDelay); err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "no answer: %w", err)
	}
	if err := w.able(op); err != nil {
		return nil, err
	}
	found, effect := w.look(name, host)
	switch effect {
	case "unavailable":
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "told to be unavailable")
	case "hang":
		<-ctx.Done()
		return nil, sandbox.Errorf(sandbox.Unavailable, op, "no answer: %w", context.Cause(ctx))
	case "partial":
		return found[:len(found)/2], nil
	}
	return found, nil
}

func (w *World) look(name, host string) (found []sandbox.Handle, effect string) {
	defer w.open()()
	w.state.Looks++
	for _, r := range w.residents {
		if r.Handle.Provider == name && r.Handle.Host == host && r.there() && !r.Stranger {
			found = append(found, r.Handle)
		}
	}
	slices.SortFunc(found, func(a, b sandbox.Handle) int { return strings.Compare(a.Lease, b.Lease) })
	return found, w.state.Inventory.next()
}

func proof(kind sandbox.EvidenceKind, detail string) sandbox.Proof {
	return sandbox.Proof{Proven: true, Evidence: []sandbox.Evidence{{Kind: kind, Detail: detail}}}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *World) begin() {
	defer w.open()()
	w.state.Started++
}

func (w *World) clean(r *resident) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(r.files)
}
