package fake

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// World is where the sandboxes are: the host or the account behind one or more
// providers. The zero value is not usable; see NewWorld.
type World struct {
	mu        sync.Mutex
	residents map[place]*resident
	used      map[place]bool
	calls     map[string]int
	created   int
	destroyed int
	vanished  int
	started   int
	looks     int
	outage    bool
}

// place is what makes a sandbox unique. A handle's detail is not part of it: a
// caller whose create was ambiguous knows no detail.
type place struct{ provider, host, lease string }

func placeOf(h sandbox.Handle) place { return place{h.Provider, h.Host, h.Lease} }

// resident is one sandbox in the world. All fields but the channels are guarded
// by World.mu.
type resident struct {
	handle sandbox.Handle
	// owner is the provider that made it; nil for one that was planted.
	owner        *Provider
	destroy      rule
	destroyDelay time.Duration
	files        map[string]item // of the workspace, by path
	// gone is closed when the sandbox has ended, lost when it ended without its
	// owner's doing, or broke.
	gone, lost chan struct{}
	isLost     bool
}

// NewWorld makes an empty world.
func NewWorld() *World {
	return &World{residents: map[place]*resident{}, used: map[place]bool{}, calls: map[string]int{}}
}

// Plant puts a sandbox into the world that no provider here made: the leftover of
// a crashed worker. The knobs are destroy steps ("destroy:fail*3",
// "delay:destroy:1s").
func (w *World) Plant(handle sandbox.Handle, knobs ...string) error {
	s, err := parse(knobs)
	if err != nil {
		return err
	}
	w.add(handle, nil, s)
	return nil
}

// Knob changes how destroying a living sandbox goes: "destroy:never", or
// "destroy:ok" for a cure. It reports whether there is such a lease.
func (w *World) Knob(lease string, knobs ...string) (bool, error) {
	s, err := parse(knobs)
	if err != nil {
		return false, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.residents {
		if r.handle.Lease == lease {
			r.destroy, r.destroyDelay = s.destroy, s.delay["destroy"]
			return true, nil
		}
	}
	return false, nil
}

// Vanish ends a sandbox from outside, as when its host dies: its owner sees it as
// lost. It reports whether there was such a lease.
func (w *World) Vanish(lease string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.residents {
		if r.handle.Lease == lease {
			w.remove(r, nil)
			w.vanished++
			return true
		}
	}
	return false
}

// Outage makes every call of every provider of this world Unavailable, or ends
// that.
func (w *World) Outage(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outage = on
}

// Live lists the leases of the sandboxes that exist, sorted.
func (w *World) Live() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var leases []string
	for _, r := range w.residents {
		leases = append(leases, r.handle.Lease)
	}
	slices.Sort(leases)
	return leases
}

// Created counts the sandboxes that ever existed, planted ones included.
func (w *World) Created() int { return w.count(&w.created) }

// Destroyed counts the sandboxes that were ended by a Destroy.
func (w *World) Destroyed() int { return w.count(&w.destroyed) }

// Vanished counts the sandboxes that ended in another way: with their worker, by
// Vanish or by a die step. Created = Destroyed + Vanished + len(Live).
func (w *World) Vanished() int { return w.count(&w.vanished) }

// Started counts the programs that ran.
func (w *World) Started() int { return w.count(&w.started) }

// Looks counts the inventories that were taken.
func (w *World) Looks() int { return w.count(&w.looks) }

// DestroyCalls counts the Destroy calls for a lease, failed ones included.
func (w *World) DestroyCalls(lease string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[lease]
}

func (w *World) count(n *int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *n
}

// reserve takes a lease's place, which is free once for ever.
func (w *World) reserve(h sandbox.Handle) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.used[placeOf(h)] {
		return false
	}
	w.used[placeOf(h)] = true
	return true
}

func (w *World) add(h sandbox.Handle, owner *Provider, s script) *resident {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &resident{
		handle: h, owner: owner, destroy: s.destroy, destroyDelay: s.delay["destroy"],
		files: map[string]item{}, gone: make(chan struct{}), lost: make(chan struct{}),
	}
	w.residents[placeOf(h)] = r
	w.used[placeOf(h)] = true
	w.created++
	return r
}

// arm gives a sandbox the destroy knobs of the process that it got.
func (w *World) arm(r *resident, s script) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.destroy.effect != "" {
		r.destroy = s.destroy
	}
	if d := s.delay["destroy"]; d > 0 {
		r.destroyDelay = d
	}
}

// remove ends a resident; w.mu is held. by is who asked for it.
func (w *World) remove(r *resident, by *Provider) {
	if w.residents[placeOf(r.handle)] != r {
		return
	}
	delete(w.residents, placeOf(r.handle))
	if by == nil || by != r.owner {
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.residents[placeOf(r.handle)] == r {
		w.remove(r, nil)
		w.vanished++
	}
}

// orphan ends what cannot outlive its owner. A sandbox that does not let itself
// be destroyed does not end with its worker either.
func (w *World) orphan(owner *Provider) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.residents {
		if r.owner == owner && !r.destroy.active() {
			w.remove(r, owner)
			w.vanished++
		}
	}
}

func (w *World) down() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outage
}

func (w *World) destroyBy(ctx context.Context, by *Provider, h sandbox.Handle) (sandbox.Proof, error) {
	const op = "destroy"
	w.mu.Lock()
	w.calls[h.Lease]++
	delay := time.Duration(0)
	if r := w.residents[placeOf(h)]; r != nil {
		delay = r.destroyDelay
	}
	w.mu.Unlock()
	if err := pause(ctx, delay); err != nil {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "waiting for the answer: %w", err)
	}
	if w.down() {
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Unavailable, op, "outage")
	}
	switch w.strike(by, h) {
	case "none":
		return proof(sandbox.EvidenceNotFound, "no such sandbox"), nil
	case "fail", "never":
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Unavailable, op, "told not to work")
	case "hang":
		<-ctx.Done()
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Ambiguous, op, "no answer: %w", context.Cause(ctx))
	case "unproven":
		return sandbox.Proof{}, nil
	default:
		return proof(sandbox.EvidenceTreeExited, "the sandbox was deleted"), nil
	}
}

// strike applies one destroy and says what became of it.
func (w *World) strike(by *Provider, h sandbox.Handle) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.residents[placeOf(h)]
	if r == nil {
		return "none"
	}
	if effect := r.destroy.next(); effect != "" {
		return effect
	}
	w.remove(r, by)
	w.destroyed++
	return "destroyed"
}

func (w *World) inventory(name, host string) []sandbox.Handle {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	var found []sandbox.Handle
	for _, r := range w.residents {
		if r.handle.Provider == name && r.handle.Host == host {
			found = append(found, r.handle)
		}
	}
	slices.SortFunc(found, func(a, b sandbox.Handle) int {
		if a.Lease < b.Lease {
			return -1
		}
		return 1
	})
	return found
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started++
}

func (w *World) clean(r *resident) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(r.files)
}
