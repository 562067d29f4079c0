package leasepool_test

import (
	"context"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

// entry is one in the simulation's ledger: "" (none), intent, ready, in_use,
// quarantined or destroyed.
type entry struct {
	state    string
	epoch    int
	evidence []sandbox.Evidence
	// promised says that a use was noted and its caller told so.
	promised bool
	// stale was written after its caller had stopped to wait.
	stale bool
	// refusals are the ends that were not taken.
	refusals int
}

// inLedger is one call: it may fail, hang, or be done although it fails.
func (w *world) inLedger(ctx context.Context, lease string, call func(s *truth, late bool) error) error {
	if err := w.doze(ctx, 300*time.Millisecond, w.chance("ledger hangs")); err != nil {
		return err
	}
	if w.chance("ledger fails") {
		return errDown
	}
	var err error
	w.of(lease, func(s *truth) { err = call(s, ctx.Err() != nil) })
	if err == nil && w.chance("ledger in doubt") {
		w.of(lease, func(s *truth) { s.entry.promised = false })
		return errDown
	}
	return err
}

func (w *world) overtaken() error {
	w.ledger.Overtaken++
	return leasepool.ErrOvertaken
}

func (w *world) Intend(ctx context.Context, h sandbox.Handle, profile string) error {
	return w.inLedger(ctx, h.Lease, func(s *truth, late bool) error {
		switch {
		case s.entry.state != "", s.exists, profile == "":
			w.t.Errorf("lease %s is intended twice, or after it was made", h.Lease)
		case s.recorded, s.reaped:
			late = true
		}
		w.ledger.Intents++
		s.entry.state, s.entry.epoch, s.entry.stale = "intent", w.epoch, late
		return nil
	})
}

func (w *world) Confirm(ctx context.Context, h sandbox.Handle) error {
	return w.inLedger(ctx, h.Lease, func(s *truth, _ bool) error {
		switch s.entry.state {
		case "intent", "ready":
			s.entry.state = "ready"
			return nil
		case "":
			w.t.Errorf("lease %s is confirmed without an intent", h.Lease)
		}
		return w.overtaken()
	})
}

func (w *world) Use(ctx context.Context, lease string, u leasepool.Use) error {
	return w.inLedger(ctx, lease, func(s *truth, _ bool) error {
		switch s.entry.state {
		case "ready", "in_use":
			if u.Use != s.uses+1 || s.tenant != "" && s.tenant != u.Tenant || s.held {
				w.t.Errorf("lease %s: %+v is noted for %+v", lease, u, *s)
			}
			s.entry.state, s.entry.promised = "in_use", true
			return nil
		case "", "intent":
			w.t.Errorf("lease %s is used before it was confirmed", lease)
		}
		return w.overtaken()
	})
}

// Destroyed refuses a lease three times at most, so that a shutdown has the time
// for it.
func (w *world) Destroyed(ctx context.Context, lease string, proof sandbox.Proof) error {
	hangs := false
	w.of(lease, func(s *truth) { s.entry.refusals++; hangs = s.entry.refusals <= 3 })
	if !hangs {
		w.of(lease, func(s *truth) { w.end(lease, s, proof) })
		return nil
	}
	return w.inLedger(ctx, lease, func(s *truth, _ bool) error { w.end(lease, s, proof); return nil })
}

func (w *world) end(lease string, s *truth, proof sandbox.Proof) {
	switch {
	case !proof.Proven || len(proof.Evidence) == 0:
		w.t.Errorf("lease %s ends without evidence", lease)
	case s.exists && !s.excused:
		w.t.Errorf("lease %s ends in the ledger and is there: %+v", lease, *s)
	case s.held:
		w.t.Errorf("lease %s ends in the ledger and is held", lease)
	case s.entry.state == "", s.entry.state == "quarantined", s.entry.state == "destroyed":
	default:
		w.ledger.Closed++
		s.entry.state, s.entry.evidence = "destroyed", proof.Evidence
	}
}

// sweep plays another worker that takes an entry over which is not in use, or
// whose owner's epoch has lapsed.
func (w *world) sweep(lease string) {
	swept := w.chance("swept")
	w.of(lease, func(s *truth) {
		e := &s.entry
		idle := e.state == "intent" || e.state == "ready"
		old := e.epoch <= w.lapsed && (idle || e.state == "in_use")
		if !s.held && !e.promised && (idle && swept || old) {
			w.ledger.Swept++
			e.state, s.recorded = "quarantined", true
		}
	})
}

// disown lets the worker's epoch lapse by chance.
func (w *world) disown() {
	if !w.provider.outlives || !w.chance("disowned") {
		return
	}
	w.mu.Lock()
	lapsing := w.epoch
	w.epoch++
	w.mu.Unlock()
	w.pool.Disown()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lapsed = lapsing
	w.ledger.Disowned++
}

func (w *world) lapsedEpoch() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lapsed
}

// mayUse checks that a lease is handed out by the ledger's leave, and not from an
// epoch that had lapsed when it was asked for.
func (w *world) mayUse(l *leasepool.Lease, want leasepool.Want, lapsed int) {
	if !w.provider.outlives {
		return
	}
	w.of(l.ID(), func(s *truth) {
		if s.entry.state != "in_use" || !s.entry.promised {
			w.t.Errorf("lease %s is handed out to %s, and the ledger says: %+v", l.ID(), want.Tenant, s.entry)
		}
		if s.entry.epoch <= lapsed {
			w.t.Errorf("lease %s of epoch %d is handed out after epoch %d lapsed", l.ID(), s.entry.epoch, lapsed)
		}
	})
}

// balanceLedger checks that every entry that is open belongs to a lease that
// holds capacity, or waits for its end to be written.
func (w *world) balanceLedger() {
	held := map[string]bool{}
	for _, info := range w.pool.Leases() {
		held[info.ID] = true
	}
	unclosed := w.pool.Stats().Unclosed
	w.mu.Lock()
	defer w.mu.Unlock()
	open := 0
	for lease, s := range w.truth {
		switch s.entry.state {
		case "intent", "ready", "in_use":
			if !held[lease] && !s.entry.stale {
				open++
			}
		case "destroyed":
			if len(s.entry.evidence) == 0 {
				w.t.Errorf("lease %s is destroyed in the ledger without evidence", lease)
			}
		}
	}
	if open > unclosed {
		w.t.Errorf("%d entries are open that belong to nobody, %d wait for their end", open, unclosed)
	}
}

// settleLedger checks that after the end every entry is destroyed, quarantined, or
// named.
func (w *world) settleLedger(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for lease, s := range w.truth {
		switch s.entry.state {
		case "", "quarantined", "destroyed":
			continue
		}
		if !s.entry.stale && (err == nil || !strings.Contains(err.Error(), lease)) {
			w.t.Errorf("lease %s is left open in the ledger and not named: %+v in %v", lease, *s, err)
		}
	}
}
