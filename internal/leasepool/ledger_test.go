package leasepool_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

// ledger keeps entries in memory; on is its script.
type ledger struct {
	on func(ctx context.Context, call, lease string) error

	mu      sync.Mutex
	entries map[string]*record
	order   []string
	calls   []string
}

// record is one entry: intent, ready, in_use or destroyed.
type record struct {
	state    string
	profile  string
	handle   sandbox.Handle
	use      leasepool.Use
	evidence []sandbox.Evidence
}

func (l *ledger) call(ctx context.Context, call, lease string, change func(r *record)) error {
	l.mu.Lock()
	l.calls = append(l.calls, call)
	on := l.on
	l.mu.Unlock()
	if on != nil {
		if err := on(ctx, call, lease); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.entries[lease]
	switch {
	case call == "intend":
		if l.entries == nil {
			l.entries = map[string]*record{}
		}
		r = &record{}
		l.entries[lease] = r
		l.order = append(l.order, lease)
	case r == nil && call == "destroyed":
		return nil
	case r == nil || r.state == "destroyed" && call != "destroyed":
		return leasepool.ErrOvertaken
	}
	change(r)
	return nil
}

func (l *ledger) Intend(ctx context.Context, h sandbox.Handle, profile string) error {
	return l.call(ctx, "intend", h.Lease, func(r *record) { r.state, r.profile, r.handle = "intent", profile, h })
}

func (l *ledger) Confirm(ctx context.Context, h sandbox.Handle) error {
	return l.call(ctx, "confirm", h.Lease, func(r *record) { r.state, r.handle = "ready", h })
}

func (l *ledger) Use(ctx context.Context, lease string, u leasepool.Use) error {
	return l.call(ctx, "use", lease, func(r *record) { r.state, r.use = "in_use", u })
}

func (l *ledger) Destroyed(ctx context.Context, lease string, proof sandbox.Proof) error {
	return l.call(ctx, "destroyed", lease, func(r *record) { r.state, r.evidence = "destroyed", proof.Evidence })
}

// from here on, on is the script.
func (l *ledger) from(on func(ctx context.Context, call, lease string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = on
}

func (l *ledger) of(lease string) record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.entries[lease]
}

// story is the calls so far.
func (l *ledger) story() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func (l *ledger) count(call string) int {
	n := 0
	for _, c := range l.story() {
		if c == call {
			n++
		}
	}
	return n
}

// remote is a bubble whose sandboxes outlive the worker.
func remote(t *testing.T, change func(cfg *leasepool.Config, p *provider, l *ledger), test func(t *testing.T, r *rig, l *ledger)) {
	t.Helper()
	l := &ledger{}
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		p.outlives, cfg.Ledger = true, l
		if change != nil {
			change(cfg, p, l)
		}
	}, func(t *testing.T, r *rig) { test(t, r, l) })
}

// failing fails the calls of one name, as often as told.
func failing(call string, times int, err error) func(context.Context, string, string) error {
	return func(_ context.Context, c, _ string) error {
		if c != call || times == 0 {
			return nil
		}
		times--
		return err
	}
}

func TestTheLedgerKnowsEachStepBeforeItIsTaken(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, p *provider, l *ledger) {
		p.onCreate = func(_ context.Context, lease string) error {
			require.Equal(t, record{
				state: "intent", profile: "default", handle: sandbox.Handle{Provider: "fake", Lease: lease, Host: "h1"},
			}, l.of(lease))
			return nil
		}
		p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) {
			require.NotContains(t, l.story(), "destroyed")
			return proven, nil
		}
	}, func(t *testing.T, r *rig, l *ledger) {
		a := r.acquire(tenant)
		made := a.Sandbox().Handle()
		require.Equal(t, record{state: "in_use", profile: "default", handle: made, use: leasepool.Use{Tenant: "acme", Use: 1}}, l.of(a.ID()))
		r.release(a, ended)
		b := r.acquire(tenant)
		require.Equal(t, a.ID(), b.ID())
		require.Equal(t, 2, b.Use())
		require.Equal(t, leasepool.Use{Tenant: "acme", Use: 2}, l.of(a.ID()).use)
		r.release(b, leasepool.Verdict{Proof: proven, Fresh: true})
		require.Equal(t, []string{"intend", "confirm", "use", "use", "destroyed"}, l.story())
		require.Equal(t, proven.Evidence, l.of(a.ID()).evidence)
		require.Zero(t, r.Stats().Unclosed)
	})
}

func TestNothingIsMadeWithoutADurableIntent(t *testing.T) {
	t.Parallel()
	for name, on := range map[string]func(context.Context) error{
		"fails":            func(context.Context) error { return errDown },
		"does not answer":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"somebody else":    func(context.Context) error { return leasepool.ErrOvertaken },
		"far too late, ok": func(ctx context.Context) error { time.Sleep(3 * time.Minute); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			remote(t, func(_ *leasepool.Config, _ *provider, l *ledger) {
				l.on = func(ctx context.Context, call, _ string) error {
					if call == "intend" {
						return on(ctx)
					}
					return nil
				}
			}, func(t *testing.T, r *rig, l *ledger) {
				_, err := r.Acquire(t.Context(), tenant)
				require.Error(t, err)
				if name == "far too late, ok" {
					require.ErrorIs(t, err, leasepool.ErrNoCapacity, "it is being made for all that the caller knows")
					r.wait(10 * time.Minute)
					require.Len(t, r.q.all(), 1, "nobody knew whether it was made")
				} else {
					require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err), err)
					require.ErrorContains(t, r.Ready(), "note the intent in the ledger")
					synctest.Wait()
					require.Empty(t, r.Leases())
					require.Equal(t, []string{"intend", "destroyed"}, l.story(), "the intent may stand although its answer was lost")
				}
				made, _ := r.p.counts()
				require.Zero(t, made)
			})
		})
	}
}

func TestAnIntentOfUnknownFateEndsAsNeverMade(t *testing.T) {
	t.Parallel()
	remote(t, func(_ *leasepool.Config, p *provider, _ *ledger) {
		p.onCreate = func(context.Context, string) error { return sandbox.Errorf(sandbox.Refused, "create", "no") }
	}, func(t *testing.T, r *rig, l *ledger) {
		_, err := r.Acquire(t.Context(), tenant)
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
		synctest.Wait()
		require.Equal(t, []sandbox.Evidence{{Kind: sandbox.EvidenceNeverMade, Detail: "create: refused: no"}}, l.of(l.order[0]).evidence)
	})
}

func TestASandboxThatIsNotConfirmedIsDestroyedAndNeverUsed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		on    func(ctx context.Context) error
		takes time.Duration
	}{
		"overtaken":       {func(context.Context) error { return fmt.Errorf("entry: %w", leasepool.ErrOvertaken) }, 0},
		"fails":           {func(context.Context) error { return errDown }, 30 * time.Second},
		"does not answer": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 30 * time.Second},
		"does not return": {func(ctx context.Context) error { hang(ctx); return nil }, 31 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			remote(t, func(cfg *leasepool.Config, _ *provider, l *ledger) {
				cfg.AcquireTimeout = time.Minute
				l.on = func(ctx context.Context, call, _ string) error {
					if call == "confirm" {
						return tc.on(ctx)
					}
					return nil
				}
			}, func(t *testing.T, r *rig, l *ledger) {
				began := time.Now()
				_, err := r.Acquire(t.Context(), tenant)
				require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err), err)
				require.Equal(t, tc.takes, time.Since(began))
				require.Error(t, r.Ready(), "and no other is made at once")
				r.wait(time.Second)
				require.Equal(t, l.order, r.p.destroyed())
				require.Equal(t, "destroyed", l.of(l.order[0]).state)
				require.Empty(t, r.Leases())
				require.NotContains(t, l.story(), "use")
				r.wait(48 * time.Hour) // a late yes changes nothing
				require.Empty(t, r.Leases())
			})
		})
	}
}

func TestAConfirmIsTriedAgain(t *testing.T) {
	t.Parallel()
	remote(t, func(_ *leasepool.Config, _ *provider, l *ledger) { l.on = failing("confirm", 4, errDown) }, func(t *testing.T, r *rig, l *ledger) {
		a := r.acquire(tenant)
		require.Equal(t, 5, l.count("confirm"))
		require.Equal(t, "in_use", l.of(a.ID()).state)
		r.release(a, ended)
	})
}

// Not to find what a create call may still make proves nothing: the reaper waits until
// nothing can come any more. To have found and deleted it does.
func TestAnAbsenceClosesNoIntent(t *testing.T) {
	t.Parallel()
	evidence := func(kinds ...sandbox.EvidenceKind) (p sandbox.Proof) {
		p.Proven = true
		for _, kind := range kinds {
			p.Evidence = append(p.Evidence, sandbox.Evidence{Kind: kind})
		}
		return p
	}
	for name, tc := range map[string]struct {
		proof       sandbox.Proof
		quarantined bool
	}{
		"not found":            {evidence(sandbox.EvidenceNotFound), true},
		"not found, twice":     {evidence(sandbox.EvidenceNotFound, sandbox.EvidenceSecondLook), true},
		"deleted, then absent": {evidence(sandbox.EvidenceDeleted, sandbox.EvidenceNotFound), false},
		"never made":           {evidence(sandbox.EvidenceNeverMade), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			remote(t, func(_ *leasepool.Config, p *provider, _ *ledger) {
				p.onCreate = func(context.Context, string) error { return errDown } // of no kind: in doubt
				p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) { return tc.proof, nil }
			}, func(t *testing.T, r *rig, l *ledger) {
				_, err := r.Acquire(t.Context(), tenant)
				require.Error(t, err)
				r.wait(time.Minute)
				if !tc.quarantined {
					require.Empty(t, r.q.all())
					require.Equal(t, 1, l.count("destroyed"))
					return
				}
				require.Len(t, r.q.all(), 1)
				require.Equal(t, leasepool.QuarantineAmbiguousMake, r.q.all()[0].Reason)
				require.Zero(t, l.count("destroyed"), "its entry is the reaper's to end")
			})
		})
	}
}

func TestASandboxThatIsConfirmedInVainCanBeQuarantined(t *testing.T) {
	t.Parallel()
	remote(t, func(_ *leasepool.Config, p *provider, l *ledger) {
		l.on = failing("confirm", 1, leasepool.ErrOvertaken)
		p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) { return sandbox.Proof{}, errDown }
	}, func(t *testing.T, r *rig, l *ledger) {
		_, err := r.Acquire(t.Context(), tenant)
		require.Error(t, err)
		r.wait(time.Minute)
		require.Len(t, r.q.all(), 1)
		require.Equal(t, map[string]string{"made": "yes"}, r.q.all()[0].Handle.Detail, "what is needed to destroy it")
		require.Equal(t, leasepool.QuarantineDestroyFailed, r.q.all()[0].Reason)
		require.Zero(t, l.count("destroyed"))
		require.True(t, r.Gone(r.q.all()[0].Handle.Lease, proven))
		r.wait(time.Minute)
		require.Zero(t, l.count("destroyed"), "the reaper ends the entry with its own record")
	})
}

func TestALeaseThatSomebodyElseDecidedAboutIsDroppedForAnother(t *testing.T) {
	t.Parallel()
	remote(t, nil, func(t *testing.T, r *rig, l *ledger) {
		a := r.acquire(tenant)
		r.release(a, ended)
		l.from(failing("use", 1, fmt.Errorf("entry: %w", leasepool.ErrOvertaken)))
		b := r.acquire(tenant)
		require.NotEqual(t, a.ID(), b.ID())
		require.Equal(t, 1, b.Use())
		synctest.Wait()
		require.Equal(t, []string{a.ID()}, r.p.destroyed())
		require.EqualValues(t, 2, r.Stats().Totals.Acquired)
		require.Zero(t, r.Stats().Totals.Reused)
		r.release(b, ended)
	})
}

func TestALeaseWhoseUseIsNotNotedStaysIdle(t *testing.T) {
	t.Parallel()
	for name, on := range map[string]func(context.Context) error{
		"fails":           func(context.Context) error { return errDown },
		"does not answer": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := false
			remote(t, func(cfg *leasepool.Config, _ *provider, l *ledger) {
				cfg.Capacity, cfg.Profiles[0].Warm = 1, 1
				l.on = func(ctx context.Context, call, _ string) error {
					if call == "use" && broken {
						return on(ctx)
					}
					return nil
				}
			}, func(t *testing.T, r *rig, l *ledger) {
				spare := r.Leases()[0].ID
				broken = true
				began := time.Now()
				_, err := r.Acquire(t.Context(), leasepool.Want{Tenant: "rival", Profile: "default"})
				require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err), err)
				require.ErrorContains(t, err, "note it in the ledger")
				require.LessOrEqual(t, time.Since(began), 5*time.Second)
				require.Equal(t, 1, r.Stats().Warm, "nobody had it")
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDown)
				defer cancel()
				if name == "does not answer" {
					_, err = r.Acquire(ctx, tenant)
					require.ErrorIs(t, err, errDown, "the caller's own end is no one's fault")
					require.EqualError(t, err, "note the use of a lease: down")
				}
				broken = false
				a := r.acquire(tenant)
				require.Equal(t, spare, a.ID(), "it was never the rival's")
				require.Equal(t, 1, a.Use())
				require.Equal(t, leasepool.Use{Tenant: "acme", Use: 1}, l.of(a.ID()).use)
				r.release(a, ended)
			})
		})
	}
}

func TestAUseThatDoesNotReturnCostsTheLease(t *testing.T) {
	t.Parallel()
	slow := true
	remote(t, func(cfg *leasepool.Config, _ *provider, l *ledger) {
		cfg.Capacity = 1
		l.on = func(_ context.Context, call, _ string) error {
			if call == "use" && slow {
				slow = false
				time.Sleep(10 * time.Second)
			}
			return nil
		}
	}, func(t *testing.T, r *rig, _ *ledger) {
		first := r.later(tenant)
		r.wait(5 * time.Second)
		require.Equal(t, 1, r.Stats().Reserved)
		r.wait(2 * time.Second)
		require.Zero(t, r.Stats().Reserved)
		require.Len(t, r.p.destroyed(), 1)
		a := <-first // its yes came when the lease was gone
		require.NoError(t, a.err)
		require.NotContains(t, r.p.destroyed(), a.lease.ID())
		r.release(a.lease, ended)
	})
}

func TestWhoLostALeaseIsServedFirst(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, _ *provider, l *ledger) {
		cfg.Capacity, cfg.MaxWaiters = 1, 1
		l.on = func(_ context.Context, call, _ string) error {
			if call == "use" && l.count("use") == 1 {
				time.Sleep(time.Second)
				return leasepool.ErrOvertaken
			}
			return nil
		}
	}, func(t *testing.T, r *rig, _ *ledger) {
		first := r.later(leasepool.Want{Tenant: "first", Profile: "default"})
		synctest.Wait()
		second := r.later(leasepool.Want{Tenant: "second", Profile: "default"})
		a := <-first
		require.NoError(t, a.err)
		r.release(a.lease, ended)
		b := <-second
		require.NoError(t, b.err)
		r.release(b.lease, ended)
	})
}

func TestTheEndIsWrittenUntilItIsDurableAndHoldsNoCapacity(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, _ *provider, l *ledger) {
		cfg.Capacity = 1
		l.on = failing("destroyed", -1, errDown)
	}, func(t *testing.T, r *rig, l *ledger) {
		for n := range 64 {
			a := r.acquire(fresh)
			r.release(a, ended)
			require.Equal(t, n+1, r.Stats().Unclosed)
			require.Empty(t, r.Leases())
			require.EqualValues(t, n+1, r.Stats().Totals.Gone)
			require.Equal(t, "in_use", l.of(a.ID()).state)
		}
		_, err := r.Acquire(t.Context(), tenant)
		require.EqualError(t, err, "create: unavailable: 64 sandboxes are gone whose entries the ledger does not take the end of",
			"what the ledger does not take is bounded")
		require.Equal(t, 64, l.count("intend"), "nothing was begun")
		require.Error(t, r.Ready())
		r.wait(3 * time.Minute)
		tries := l.count("destroyed")
		require.Greater(t, tries, 64*20)
		l.from(nil)
		r.wait(10 * time.Second)
		require.Zero(t, r.Stats().Unclosed)
		require.Equal(t, tries+64, l.count("destroyed"))
		for _, lease := range l.order {
			require.Equal(t, "destroyed", l.of(lease).state)
		}
		b := r.acquire(tenant)
		r.release(b, ended)
	})
}

func TestShutdownNamesWhatTheLedgerDoesNotSay(t *testing.T) {
	t.Parallel()
	remote(t, func(_ *leasepool.Config, _ *provider, l *ledger) { l.on = failing("destroyed", -1, errDown) }, func(t *testing.T, r *rig, _ *ledger) {
		a := r.acquire(fresh)
		r.release(a, ended)
		b := r.acquire(tenant)
		r.q.on = func(context.Context, int) error { return errDown }
		r.release(b, leasepool.Verdict{})
		began := time.Now()
		require.EqualError(t, r.stop(), "the lease pool is left with: "+
			"lease "+b.ID()+" of provider fake is poisoned without a quarantine record: the sweep will find its entry in the ledger\n"+
			"lease "+a.ID()+" of provider fake is gone and the ledger does not say so: the sweep will find its entry")
		require.LessOrEqual(t, time.Since(began), 31*time.Second)
	})
}

func TestShutdownIsBoundedWhereTheLedgerIsStuck(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"intend", "confirm", "use", "destroyed"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			remote(t, func(_ *leasepool.Config, _ *provider, l *ledger) {
				l.on = func(ctx context.Context, c, _ string) error {
					if c == call {
						hang(ctx)
					}
					return nil
				}
			}, func(t *testing.T, r *rig, l *ledger) {
				answers := r.later(fresh)
				synctest.Wait()
				if call == "destroyed" {
					r.release((<-answers).lease, ended)
				}
				began := time.Now()
				err := r.stop()
				require.LessOrEqual(t, time.Since(began), 31*time.Second)
				switch call {
				case "use":
					require.NoError(t, err, "it is destroyed while its caller waits for the ledger")
				default:
					require.ErrorContains(t, err, "1 calls did not return")
				}
				r.wait(48 * time.Hour)
				if call != "destroyed" {
					require.Error(t, (<-answers).err)
				}
				made, gone := r.p.counts()
				require.Equal(t, made, gone)
			})
		})
	}
}

func TestALateSandboxEndsItsEntry(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, p *provider, _ *ledger) {
		cfg.AcquireTimeout = time.Minute
		p.onCreate = func(context.Context, string) error { time.Sleep(45 * time.Second); return nil }
	}, func(t *testing.T, r *rig, l *ledger) {
		_, err := r.Acquire(t.Context(), tenant)
		require.EqualError(t, err, "create: ambiguous: no answer within 30s")
		r.wait(time.Minute)
		require.Equal(t, l.order, r.p.destroyed())
		require.Equal(t, []string{"intend", "destroyed"}, l.story(), "never confirmed, never used")
		require.Empty(t, r.Leases())
	})
}

// Its end stands in the ledger while it comes back: the entry is ended again.
func TestASandboxThatComesAfterItsEndIsEndedAgain(t *testing.T) {
	t.Parallel()
	remote(t, func(_ *leasepool.Config, p *provider, _ *ledger) {
		p.onCreate = func(context.Context, string) error { time.Sleep(time.Hour); return nil }
	}, func(t *testing.T, r *rig, l *ledger) {
		_, err := r.Acquire(t.Context(), tenant)
		require.ErrorIs(t, err, leasepool.ErrNoCapacity)
		r.wait(time.Minute)
		require.True(t, r.Gone(r.q.all()[0].Handle.Lease, proven))
		require.Zero(t, l.count("destroyed"))
		r.wait(time.Hour)
		made, gone := r.p.counts()
		require.Equal(t, []int{1, 1}, []int{made, gone})
		require.Equal(t, 1, l.count("destroyed"))
	})
}

func TestDisownDropsEveryLeaseOfTheLedger(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, p *provider, _ *ledger) {
		cfg.Capacity = 8
		cfg.Profiles = append(cfg.Profiles, leasepool.Profile{Name: "local", Provider: &provider{name: "local"}, ReuseTenant: true})
	}, func(t *testing.T, r *rig, l *ledger) {
		local := r.acquire(leasepool.Want{Tenant: "acme", Profile: "local"})
		r.release(local, ended)
		idle, used, doubted := r.acquire(tenant), r.acquire(tenant), r.acquire(tenant)
		r.release(idle, ended)
		r.Disown()
		_, err := r.Acquire(t.Context(), leasepool.Want{Tenant: "acme", Profile: "local"})
		require.NoError(t, err)
		fresh := r.acquire(tenant)
		require.NotContains(t, []string{idle.ID(), used.ID()}, fresh.ID(), "made after it")
		synctest.Wait()
		require.Equal(t, []string{idle.ID()}, r.p.destroyed())
		require.Equal(t, leasepool.Destroyed, r.release(used, ended).Disposition, "serves nobody afterwards")
		require.Equal(t, leasepool.Quarantined, r.release(doubted, leasepool.Verdict{}).Disposition)
		require.Equal(t, leasepool.Reusable, r.release(fresh, ended).Disposition)
		require.ElementsMatch(t, []string{idle.ID(), used.ID()}, r.p.destroyed())
		require.Equal(t, "destroyed", l.of(used.ID()).state)
		require.Equal(t, fresh.ID(), r.acquire(tenant).ID())
		require.NoError(t, r.stop())
	})
}

func TestDisownAtEachStepOfMakingAndUsing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		step    string
		created int
		story   []string
	}{
		{"intend", 0, []string{"intend", "intend", "destroyed", "confirm", "use"}},
		{"create", 1, []string{"intend", "intend", "confirm", "use", "destroyed"}},
		{"confirm", 1, []string{"intend", "confirm", "intend", "destroyed", "confirm", "use"}},
		{"use", 1, []string{"intend", "confirm", "use", "destroyed", "intend", "confirm", "use"}},
	} {
		t.Run(tc.step, func(t *testing.T) {
			t.Parallel()
			var answer chan struct{} // of the first call of the step
			var held atomic.Bool
			hold := func(what string) {
				if what == tc.step && held.CompareAndSwap(false, true) {
					<-answer
				}
			}
			remote(t, func(_ *leasepool.Config, p *provider, l *ledger) {
				answer = make(chan struct{})
				p.onCreate = func(context.Context, string) error { hold("create"); return nil }
				l.on = func(_ context.Context, call, _ string) error { hold(call); return nil }
			}, func(t *testing.T, r *rig, l *ledger) {
				answers := r.later(tenant)
				synctest.Wait()
				r.Disown()
				synctest.Wait()
				close(answer)
				a := <-answers
				require.NoError(t, a.err)
				synctest.Wait()
				require.Len(t, l.order, 2)
				old := l.order[0]
				if old == a.lease.ID() {
					old = l.order[1] // its intent was the later one to return
				}
				require.Contains(t, l.order, a.lease.ID())
				require.ElementsMatch(t, tc.story, l.story())
				made, gone := r.p.counts()
				require.Equal(t, []int{tc.created + 1, tc.created}, []int{made, gone})
				require.Equal(t, "destroyed", l.of(old).state)
				r.release(a.lease, ended)
			})
		})
	}
}

func TestDisownEndsAReset(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"late yes": nil, "late no": errDown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			remote(t, func(_ *leasepool.Config, p *provider, _ *ledger) {
				p.onReset = func(context.Context, string) error { time.Sleep(time.Second); return err }
				p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) {
					time.Sleep(2 * time.Second)
					return proven, nil
				}
			}, func(t *testing.T, r *rig, _ *ledger) {
				a := r.acquire(tenant)
				r.release(a, ended)
				require.Equal(t, 1, r.Stats().Resetting)
				r.Disown()
				require.Equal(t, 1, r.Stats().Destroying)
				r.wait(3 * time.Second)
				require.Equal(t, []string{a.ID()}, r.p.destroyed())
				require.Empty(t, r.q.all(), "its job was proven gone before")
			})
		})
	}
}

func TestALedgerIsNeededWhereSandboxesOutliveTheWorker(t *testing.T) {
	t.Parallel()
	_, err := leasepool.New(&quarantine{}, zerolog.Nop(), leasepool.Config{
		Capacity: 1, LedgerTimeout: -1, Profiles: []leasepool.Profile{{Name: "default", Provider: &provider{name: "fake", outlives: true}}},
	})
	require.EqualError(t, err, "lease pool: ledger timeout: -1ns is not between 0 and 720h0m0s\n"+
		`profile "default": the sandboxes of its provider outlive the worker, so a ledger is needed`)
}

// TestQuarantineThatEatsTheCapacityStopsTheWorkAndItRecovers: the worker says so,
// asks for nothing meanwhile, and goes on by itself.
func TestQuarantineThatEatsTheCapacityStopsTheWorkAndItRecovers(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, _ *provider, _ *ledger) {
		cfg.Capacity, cfg.Profiles[0].Warm = 3, 2
	}, func(t *testing.T, r *rig, l *ledger) {
		var doubted []string
		for range 3 {
			require.NoError(t, r.Ready())
			a := r.acquire(fresh)
			doubted = append(doubted, a.ID())
			r.release(a, leasepool.Verdict{})
		}
		require.EqualError(t, r.Ready(), "no lease can be had: capacity 3: 3 quarantined")
		require.Equal(t, 3, r.Stats().Quarantined)
		calls, tries := len(l.story()), r.q.attempts()
		waiting := r.later(tenant)
		r.wait(29 * time.Second)
		require.Len(t, l.story(), calls, "nothing is tried while nothing can be had")
		require.Equal(t, tries, r.q.attempts())
		require.EqualValues(t, 3, r.Stats().Totals.Created)
		require.True(t, r.Gone(doubted[1], proven))
		require.NoError(t, r.Ready())
		a := <-waiting
		require.NoError(t, a.err)
		r.release(a.lease, ended)
		require.NoError(t, r.stop())
	})
}

func TestALateProofOfALeaseInDoubtEndsItsEntry(t *testing.T) {
	t.Parallel()
	remote(t, func(cfg *leasepool.Config, p *provider, _ *ledger) {
		cfg.DestroyTries = 1
		p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) { time.Sleep(time.Minute); return proven, nil }
	}, func(t *testing.T, r *rig, l *ledger) {
		r.q.on = func(context.Context, int) error { return errDown }
		a := r.acquire(fresh)
		r.release(a, ended)
		r.wait(30 * time.Second)
		require.Equal(t, 1, r.Stats().Poisoned)
		require.Zero(t, l.count("destroyed"))
		r.wait(31 * time.Second)
		require.Empty(t, r.Leases())
		require.Equal(t, "destroyed", l.of(a.ID()).state)
	})
}

func TestNothingIsHandedOutWhenThePoolClosesMeanwhile(t *testing.T) {
	t.Parallel()
	remote(t, func(_ *leasepool.Config, _ *provider, l *ledger) {
		l.on = func(_ context.Context, call, _ string) error {
			if call == "use" {
				time.Sleep(time.Second)
			}
			return nil
		}
	}, func(t *testing.T, r *rig, l *ledger) {
		answers := r.later(tenant)
		synctest.Wait()
		require.NoError(t, r.stop())
		require.ErrorIs(t, (<-answers).err, leasepool.ErrClosed)
		require.Equal(t, "destroyed", l.of(l.order[0]).state)
	})
}
