package leasepool_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

func TestALeaseServesItsTenantAgainAfterProofAndReset(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		a := r.acquire(tenant)
		require.Equal(t, 1, a.Use())
		require.Equal(t, "default", a.Profile())
		require.Equal(t, "fake", a.Provider())
		require.Regexp(t, "^[0-9a-f]{32}$", a.ID())
		require.Equal(t, a.ID(), a.Sandbox().Handle().Lease)
		require.Equal(t, sandbox.Spec{Lease: a.ID(), Profile: "default"}, r.p.specOf(a.ID()))
		released := r.release(a, ended)
		require.Equal(t, leasepool.Reusable, released.Disposition)
		require.Nil(t, released.Settled)
		require.Equal(t, 1, r.p.resetsOf(a.ID()))

		b := r.acquire(tenant)
		require.Equal(t, a.ID(), b.ID())
		require.Equal(t, 2, b.Use())
		require.EqualValues(t, 1, r.Stats().Totals.Reused)
		r.release(b, ended)
	})
}

func TestTheMostRecentlyUsedLeaseComesFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		a, b := r.acquire(tenant), r.acquire(tenant)
		r.release(b, ended)
		r.release(a, ended)
		require.Equal(t, a.ID(), r.acquire(tenant).ID())
		require.Equal(t, b.ID(), r.acquire(tenant).ID())
		require.NoError(t, r.stop())
	})
}

func TestALeaseNeverServesAnotherTenant(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, _ *provider, _ *quarantine) { cfg.Capacity = 1 }, func(t *testing.T, r *rig) {
		a := r.acquire(tenant)
		r.release(a, ended)
		b := r.acquire(leasepool.Want{Tenant: "rival", Profile: "default"})
		require.NotEqual(t, a.ID(), b.ID())
		require.Equal(t, 1, b.Use())
		require.Equal(t, []string{a.ID()}, r.p.destroyed(), "the idle lease of the other tenant made room")
		require.EqualValues(t, 1, r.Stats().Totals.Evicted)
		r.release(b, ended)
	})
}

func TestTheLeaseThatWasIdleForLongestMakesRoomAndSparesLast(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 3
		cfg.Profiles = append(cfg.Profiles, leasepool.Profile{Name: "warm", Provider: p, Warm: 1})
	}, func(t *testing.T, r *rig) {
		a, b := r.acquire(leasepool.Want{Tenant: "a", Profile: "default"}), r.acquire(leasepool.Want{Tenant: "b", Profile: "default"})
		r.release(a, ended)
		r.wait(time.Second)
		r.release(b, ended)
		c := r.acquire(leasepool.Want{Tenant: "c", Profile: "default"})
		require.Equal(t, []string{a.ID()}, r.p.destroyed())
		d := r.acquire(leasepool.Want{Tenant: "d", Profile: "default"})
		require.Equal(t, []string{a.ID(), b.ID()}, r.p.destroyed())
		require.Equal(t, 1, r.Stats().Warm)
		e := r.acquire(leasepool.Want{Tenant: "e", Profile: "default"})
		require.Zero(t, r.Stats().Warm)
		for _, l := range []*leasepool.Lease{c, d, e} {
			r.release(l, ended)
		}
	})
}

func TestWarmSparesAreReadyUntouchedAndRefilled(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 4
		cfg.Profiles[0].Warm = 2
		p.onCreate = func(context.Context, string) error { time.Sleep(time.Second); return nil }
	}, func(t *testing.T, r *rig) {
		r.wait(2 * time.Second)
		require.Equal(t, 2, r.Stats().Warm)
		began := time.Now()
		a := r.acquire(tenant)
		require.Zero(t, time.Since(began), "a spare is handed out at once")
		require.Equal(t, 1, r.Stats().Warm)
		r.wait(2 * time.Second)
		require.Equal(t, 2, r.Stats().Warm)
		r.release(a, ended)
		require.Equal(t, a.ID(), r.acquire(tenant).ID(), "its own lease goes before a spare")
		for _, info := range r.Leases() {
			require.Equal(t, info.State == sandbox.LeaseInUse, info.Tenant == "acme")
		}
		require.NoError(t, r.stop())
	})
}

func TestAFreshLeaseServesOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		used := r.acquire(tenant)
		r.release(used, ended)
		a := r.acquire(fresh)
		require.NotEqual(t, used.ID(), a.ID())
		require.Equal(t, leasepool.Destroyed, r.release(a, ended).Disposition)
		require.Equal(t, []string{a.ID()}, r.p.destroyed())
		require.Zero(t, r.p.resetsOf(a.ID()))
	})
}

func TestWhatIsUsedUpIsDestroyed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		profile func(p *leasepool.Profile)
		verdict leasepool.Verdict
		before  func(r *rig, l *leasepool.Lease)
	}{
		"max uses":     {profile: func(p *leasepool.Profile) { p.MaxUses = 1 }, verdict: ended},
		"max age":      {before: func(r *rig, _ *leasepool.Lease) { r.wait(time.Hour) }, verdict: ended},
		"never reused": {profile: func(p *leasepool.Profile) { p.ReuseTenant = false }, verdict: ended},
		"lost":         {before: func(r *rig, l *leasepool.Lease) { r.p.lose(l.ID()) }, verdict: ended},
		"verdict":      {verdict: leasepool.Verdict{Proof: proven, Fresh: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(cfg *leasepool.Config, _ *provider, _ *quarantine) {
				if tc.profile != nil {
					tc.profile(&cfg.Profiles[0])
				}
			}, func(t *testing.T, r *rig) {
				l := r.acquire(tenant)
				if tc.before != nil {
					tc.before(r, l)
				}
				released := r.release(l, tc.verdict)
				require.Equal(t, leasepool.Destroyed, released.Disposition)
				require.Nil(t, released.Settled)
				require.Equal(t, []string{l.ID()}, r.p.destroyed())
				require.Empty(t, r.Leases())
			})
		})
	}
}

func TestDoubtIsQuarantined(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		verdict leasepool.Verdict
		reason  leasepool.QuarantineReason
		message string
	}{
		"no proof":          {leasepool.Verdict{Job: "j1"}, leasepool.QuarantineUnproven, "unproven"},
		"doubt over proof":  {leasepool.Verdict{Proof: proven, Doubt: leasepool.QuarantineUnproven, Message: "hm", Job: "j1"}, leasepool.QuarantineUnproven, "hm"},
		"ambiguous start":   {leasepool.Verdict{Proof: proven, Doubt: leasepool.QuarantineAmbiguousStart, Job: "j1"}, leasepool.QuarantineAmbiguousStart, "ambiguous_start"},
		"the holder's word": {leasepool.Verdict{Doubt: leasepool.QuarantineResetFailed, Job: "j1"}, leasepool.QuarantineResetFailed, "unproven"},
		"long message":      {leasepool.Verdict{Message: strings.Repeat("é", 1000), Job: "j1"}, leasepool.QuarantineUnproven, strings.Repeat("é", 512)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, nil, func(t *testing.T, r *rig) {
				l := r.acquire(tenant)
				r.wait(time.Second)
				released := r.release(l, tc.verdict)
				require.Equal(t, leasepool.Quarantined, released.Disposition)
				require.False(t, open(released.Settled))
				require.Equal(t, []leasepool.Record{{
					Handle: l.Sandbox().Handle(), Tenant: "acme", Job: "j1", Reason: tc.reason, Message: tc.message,
					Evidence: tc.verdict.Proof.Evidence, FirstSeen: time.Now(),
				}}, r.q.all())
				require.Equal(t, 1, r.Stats().Quarantined)
				require.NotEqual(t, l.ID(), r.acquire(fresh).ID())
				require.Zero(t, r.p.destroyTries()[l.ID()], "it is the reaper's")
				require.NoError(t, r.stop())
			})
		})
	}
}

func TestQuarantineIsPublishedUntilItIsDurable(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, _ *provider, q *quarantine) {
		q.on = func(ctx context.Context, try int) error {
			switch {
			case try == 1:
				<-ctx.Done() // bounded by PublishTimeout
				return ctx.Err()
			case try < 100:
				return errDown
			}
			return nil
		}
	}, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		released := r.release(l, leasepool.Verdict{})
		r.wait(time.Minute)
		require.True(t, open(released.Settled))
		require.Greater(t, r.q.attempts(), 5, "one try that does not end is given up")
		require.Equal(t, 1, r.Stats().Poisoned)
		<-released.Settled
		synctest.Wait()
		require.Len(t, r.q.all(), 1)
		require.Equal(t, 1, r.Stats().Quarantined)
	})
}

func TestQuarantineHoldsCapacityUntilProof(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, _ *provider, _ *quarantine) { cfg.Capacity = 1 }, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		require.False(t, r.Gone(l.ID(), proven), "a lease in use is not the reaper's")
		r.release(l, leasepool.Verdict{})
		require.EqualError(t, r.Ready(), "no lease can be had: capacity 1: 1 quarantined")
		_, err := r.Acquire(t.Context(), tenant)
		require.ErrorIs(t, err, leasepool.ErrNoCapacity)
		require.EqualError(t, err, "no lease became free within 30s: capacity 1: 1 quarantined")
		var full *leasepool.NoCapacityError
		require.ErrorAs(t, err, &full)
		require.Equal(t, 1, full.Stats.Quarantined)

		require.False(t, r.Gone(l.ID(), sandbox.Proof{}))
		require.False(t, r.Gone("other", proven))
		require.Equal(t, 1, r.Stats().Quarantined)
		require.True(t, r.Gone(l.ID(), proven))
		require.False(t, r.Gone(l.ID(), proven), "once")
		require.NoError(t, r.Ready())
		require.EqualValues(t, 1, r.Stats().Totals.Reaped)
		require.NotEqual(t, l.ID(), r.acquire(fresh).ID())
		require.NoError(t, r.stop())
	})
}

func TestProofBeforeTheRecordSettlesToo(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, _ *provider, q *quarantine) {
		q.on = func(context.Context, int) error { return errDown }
	}, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		released := r.release(l, leasepool.Verdict{})
		require.True(t, open(released.Settled))
		require.True(t, r.Gone(l.ID(), proven), "an answer was lost: the record was durable after all")
		require.False(t, open(released.Settled))
		tries := r.q.attempts()
		r.wait(time.Minute)
		require.LessOrEqual(t, r.q.attempts(), tries+1)
	})
}

func TestALeaseIsNotAcquiredBeforeItsReset(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
		p.onReset = func(context.Context, string) error { time.Sleep(time.Second); return nil }
	}, func(t *testing.T, r *rig) {
		a := r.acquire(tenant)
		began := time.Now()
		require.Equal(t, leasepool.Reusable, r.release(a, ended).Disposition)
		require.Zero(t, time.Since(began), "the reset is not on the caller's path")
		require.Equal(t, 1, r.Stats().Resetting)
		b := r.acquire(tenant)
		require.Equal(t, a.ID(), b.ID())
		require.Equal(t, time.Second, time.Since(began))
		r.release(b, ended)
	})
}

func TestAResetThatIsNotProven(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reset   func(ctx context.Context, lease string) error
		message string
	}{
		"fails":            {func(context.Context, string) error { return errDown }, "down"},
		"takes too long":   {func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }, "context deadline exceeded"},
		"does not return":  {func(ctx context.Context, _ string) error { hang(ctx); return nil }, "the reset did not end in time"},
		"returns too late": {func(context.Context, string) error { time.Sleep(7 * time.Second); return nil }, "the reset did not end in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) { p.onReset = tc.reset }, func(t *testing.T, r *rig) {
				l := r.acquire(tenant)
				r.release(l, ended)
				r.wait(10 * time.Second)
				require.Equal(t, 1, r.Stats().Quarantined)
				require.Len(t, r.q.all(), 1)
				require.Equal(t, leasepool.QuarantineResetFailed, r.q.all()[0].Reason)
				require.Equal(t, tc.message, r.q.all()[0].Message)
				require.Equal(t, "j1", r.q.all()[0].Job)
				r.wait(24 * time.Hour)
			})
		})
	}
}

func TestASandboxLostInResetIsDestroyed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
		p.onReset = func(_ context.Context, lease string) error { p.lose(lease); return errDown }
	}, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		r.release(l, ended)
		require.Equal(t, []string{l.ID()}, r.p.destroyed())
		require.Empty(t, r.q.all())
	})
}

func TestCreateRefused(t *testing.T) {
	t.Parallel()
	for _, kind := range []sandbox.Kind{sandbox.Refused, sandbox.Busy, sandbox.Unavailable} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
				p.onCreate = func(context.Context, string) error { return sandbox.Errorf(kind, "create", "%w", errDown) }
			}, func(t *testing.T, r *rig) {
				_, err := r.Acquire(t.Context(), tenant)
				require.ErrorIs(t, err, errDown)
				require.Equal(t, kind, sandbox.KindOf(err))
				require.Empty(t, r.Leases())
				require.Empty(t, r.p.destroyTries())
				require.ErrorContains(t, r.Ready(), `no sandbox can be made: profile "default": create: `+kind.String())
				r.wait(time.Second)
				require.NoError(t, r.Ready(), "the next job tries")
			})
		})
	}
}

func TestCreateAmbiguous(t *testing.T) {
	t.Parallel()
	for _, kind := range []sandbox.Kind{sandbox.Ambiguous, sandbox.Protocol, sandbox.Gone} {
		for _, destroyed := range []bool{true, false} {
			t.Run(kind.String(), func(t *testing.T) {
				t.Parallel()
				inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
					p.onCreate = func(context.Context, string) error { return sandbox.Errorf(kind, "create", "%w", errDown) }
					p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) {
						return sandbox.Proof{Proven: destroyed}, nil
					}
				}, func(t *testing.T, r *rig) {
					_, err := r.Acquire(t.Context(), tenant)
					require.ErrorIs(t, err, errDown)
					synctest.Wait()
					require.Len(t, r.p.destroyTries(), 1)
					for lease, tries := range r.p.destroyTries() {
						require.Equal(t, 1, tries, "once: it may not even exist")
						if !destroyed {
							require.Equal(t, []leasepool.Record{{
								Handle: sandbox.Handle{Provider: "fake", Lease: lease, Host: "h1"},
								Reason: leasepool.QuarantineAmbiguousMake, Message: "create: " + kind.String() + ": down", FirstSeen: time.Now(),
							}}, r.q.all())
						}
					}
					require.Equal(t, destroyed, len(r.Leases()) == 0)
				})
			})
		}
	}
}

// A provider that is far away is waited for as long as it says that it may take.
func TestAProviderThatIsFarAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.DestroyTries = 1
		p.patience = sandbox.Patience{Create: 3 * time.Minute, Reset: time.Minute, Destroy: time.Minute}
		p.onCreate = func(context.Context, string) error { time.Sleep(2 * time.Minute); return nil }
		p.onReset = func(context.Context, string) error { time.Sleep(50 * time.Second); return nil }
		p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) {
			time.Sleep(50 * time.Second)
			return proven, nil
		}
	}, func(t *testing.T, r *rig) {
		l, err := r.Acquire(t.Context(), tenant)
		require.NoError(t, err)
		r.Release(l, leasepool.Verdict{Proof: proven})
		r.wait(55 * time.Second)
		l, err = r.Acquire(t.Context(), tenant)
		require.NoError(t, err)
		require.Equal(t, 2, l.Use(), "it was reset in its own time")
		r.Release(l, leasepool.Verdict{Proof: proven, Fresh: true})
		r.wait(time.Minute)
		require.Empty(t, r.q.all())
		require.Zero(t, r.Stats().Totals.Stuck)
	})
}

func TestACreateThatDoesNotReturnIsAbandoned(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		takes       time.Duration
		err         error
		quarantined bool
	}{
		"late sandbox":         {takes: 45 * time.Second},
		"late refusal":         {takes: 45 * time.Second, err: sandbox.Errorf(sandbox.Refused, "create", "no")},
		"late doubt":           {takes: 45 * time.Second, err: errDown},
		"sandbox much later":   {takes: 10 * time.Minute, quarantined: true},
		"refused much later":   {takes: 10 * time.Minute, quarantined: true, err: sandbox.Errorf(sandbox.Refused, "create", "no")},
		"ambiguous much later": {takes: 10 * time.Minute, quarantined: true, err: errDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
				cfg.Capacity, cfg.AcquireTimeout = 1, time.Minute
				p.onCreate = func(context.Context, string) error { time.Sleep(tc.takes); return tc.err }
			}, func(t *testing.T, r *rig) {
				began := time.Now()
				_, err := r.Acquire(t.Context(), tenant)
				require.EqualError(t, err, "create: ambiguous: no answer within 30s")
				require.Equal(t, 31*time.Second, time.Since(began))
				require.Equal(t, 1, r.Stats().Abandoned)
				require.ErrorContains(t, r.Ready(), "1 abandoned")
				r.wait(time.Minute)
				if tc.quarantined {
					require.Len(t, r.q.all(), 1)
					require.Equal(t, leasepool.QuarantineAmbiguousMake, r.q.all()[0].Reason)
					require.Equal(t, 1, r.Stats().Quarantined)
				}
				r.wait(10 * time.Minute)
				made, gone := r.p.counts()
				if made == 1 {
					require.Equal(t, 1, gone, "what came late is destroyed")
				}
				require.Equal(t, name == "refused much later", len(r.Leases()) == 1, "only proof ends quarantine, and doubt is looked at again")
				require.NotZero(t, r.Stats().Totals.Stuck)
			})
		})
	}
}

func TestASandboxThatAppearsAfterItsProofIsDestroyed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
		p.onCreate = func(context.Context, string) error { time.Sleep(time.Hour); return nil }
	}, func(t *testing.T, r *rig) {
		_, err := r.Acquire(t.Context(), tenant)
		require.ErrorIs(t, err, leasepool.ErrNoCapacity, "still being made")
		r.wait(time.Minute)
		require.True(t, r.Gone(r.q.all()[0].Handle.Lease, proven))
		require.Empty(t, r.Leases())
		r.wait(time.Hour)
		made, gone := r.p.counts()
		require.Equal(t, []int{1, 1}, []int{made, gone})
		require.Empty(t, r.Leases())
		require.Equal(t, r.Stats().Totals.Created, r.Stats().Totals.Gone)
	})
}

// What comes while its lease is in quarantine is a doubt of its own: the reaper may
// have ended the first record without having found it, and the pool not know yet.
func TestASandboxThatComesDuringItsQuarantineIsQuarantinedAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"made": nil, "ambiguous": errDown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
				p.onCreate = func(context.Context, string) error { time.Sleep(10 * time.Minute); return answer }
				p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) { return sandbox.Proof{}, errDown }
			}, func(t *testing.T, r *rig) {
				_, err := r.Acquire(t.Context(), tenant)
				require.ErrorIs(t, err, leasepool.ErrNoCapacity, "still being made")
				r.wait(2 * time.Minute)
				require.Len(t, r.q.all(), 1)
				r.wait(10 * time.Minute)
				records := r.q.all()
				require.Len(t, records, 2)
				require.True(t, records[1].FirstSeen.After(records[0].FirstSeen), "it would be taken for the first one's repetition")
				require.Equal(t, 1, r.Stats().Quarantined)
			})
		})
	}
}

func TestDestroyIsTriedAgainThenQuarantined(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		destroy     func(ctx context.Context, try int) (sandbox.Proof, error)
		tries       int
		quarantined string
	}{
		"third time":      {func(_ context.Context, try int) (sandbox.Proof, error) { return sandbox.Proof{Proven: try == 3}, nil }, 3, ""},
		"never proven":    {func(context.Context, int) (sandbox.Proof, error) { return sandbox.Proof{}, nil }, 3, "destroyed without proof"},
		"always fails":    {func(context.Context, int) (sandbox.Proof, error) { return sandbox.Proof{}, errDown }, 3, "down"},
		"does not end":    {func(ctx context.Context, _ int) (sandbox.Proof, error) { <-ctx.Done(); return proven, ctx.Err() }, 3, "context deadline exceeded"},
		"does not return": {func(ctx context.Context, _ int) (sandbox.Proof, error) { hang(ctx); return proven, nil }, 1, "the destroy did not end in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
				cfg.Capacity = 1
				p.onDestroy = func(ctx context.Context, _ string, try int) (sandbox.Proof, error) { return tc.destroy(ctx, try) }
			}, func(t *testing.T, r *rig) {
				l := r.acquire(fresh)
				require.Equal(t, leasepool.Destroyed, r.release(l, ended).Disposition)
				require.Equal(t, 1, r.Stats().Destroying, "capacity is held until there is proof")
				r.wait(time.Minute)
				require.Equal(t, tc.tries, r.p.destroyTries()[l.ID()])
				if tc.quarantined == "" {
					require.Empty(t, r.Leases())
					return
				}
				require.Equal(t, 1, r.Stats().Quarantined)
				require.Equal(t, leasepool.QuarantineDestroyFailed, r.q.all()[0].Reason)
				require.Equal(t, tc.quarantined, r.q.all()[0].Message)
				require.Equal(t, "j1", r.q.all()[0].Job)
				r.wait(48 * time.Hour)
				require.Equal(t, name == "does not return", len(r.Leases()) == 0, "late proof is proof")
			})
		})
	}
}

// TestADestroyThatFailsInEveryWayIsTakenForNothing: each try fails otherwise, the
// release does not wait for them, and the record comes once.
func TestADestroyThatFailsInEveryWayIsTakenForNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.DestroyTries = 4
		p.onDestroy = func(ctx context.Context, _ string, try int) (sandbox.Proof, error) {
			switch try {
			case 1:
				return sandbox.Proof{}, sandbox.Errorf(sandbox.Unavailable, "destroy", "500")
			case 2:
				return sandbox.Proof{}, sandbox.Errorf(sandbox.Busy, "destroy", "503")
			case 3:
				<-ctx.Done()
				return sandbox.Proof{}, ctx.Err()
			}
			return sandbox.Proof{}, sandbox.Errorf(sandbox.Refused, "destroy", "401")
		}
	}, func(t *testing.T, r *rig) {
		l := r.acquire(fresh)
		began := time.Now()
		require.Equal(t, leasepool.Destroyed, r.Release(l, ended).Disposition)
		require.Zero(t, time.Since(began))
		r.wait(time.Hour)
		require.Equal(t, 4, r.p.destroyTries()[l.ID()])
		require.Empty(t, r.p.destroyed())
		require.Len(t, r.q.all(), 1)
		require.Equal(t, "destroy: refused: 401", r.q.all()[0].Message)
		require.Equal(t, 1, r.Stats().Quarantined)
		require.Zero(t, r.Stats().Totals.Gone)
	})
}

func TestOneDestroyThatNeverReturnsHoldsNobodyElseBack(t *testing.T) {
	t.Parallel()
	const many = 20
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = many
		var stuck sync.Once
		p.onDestroy = func(ctx context.Context, _ string, _ int) (sandbox.Proof, error) {
			first := false
			stuck.Do(func() { first = true })
			if first {
				hang(ctx)
			}
			return proven, nil
		}
	}, func(t *testing.T, r *rig) {
		for range 3 {
			var held []*leasepool.Lease
			for range many - 1 {
				held = append(held, r.acquire(fresh))
			}
			for _, l := range held {
				r.release(l, ended)
			}
		}
		require.Len(t, r.p.destroyed(), 3*(many-1)-1, "at once, beside the one")
		r.wait(time.Hour)
		require.Len(t, r.q.all(), 1)
		require.NoError(t, r.Ready())
		require.Equal(t, 1, r.Stats().Quarantined, "it holds its own place, and no other")
		require.EqualValues(t, 1, r.Stats().Totals.Stuck)
		r.wait(48 * time.Hour)
	})
}

func TestWaitersAreServedInTurn(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, _ *provider, _ *quarantine) { cfg.Capacity = 1 }, func(t *testing.T, r *rig) {
		held := r.acquire(leasepool.Want{Tenant: "x", Profile: "default"})
		order := make(chan string, 8)
		// The tenant of the held lease waits too, but not first.
		for _, name := range []string{"a", "b", "x", "c"} {
			go func() {
				l, err := r.Acquire(t.Context(), leasepool.Want{Tenant: name, Profile: "default"})
				if err != nil {
					order <- err.Error()
					return
				}
				order <- name
				time.Sleep(time.Second)
				r.Release(l, ended)
			}()
			synctest.Wait()
		}
		require.Equal(t, 4, r.Stats().Waiters)
		r.Release(held, ended)
		for _, name := range []string{"a", "b", "x", "c"} {
			require.Equal(t, name, <-order)
		}
		r.wait(2 * time.Second)
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, _ *provider, _ *quarantine) {
		cfg.Capacity, cfg.MaxWaiters = 1, 1
	}, func(t *testing.T, r *rig) {
		held := r.acquire(tenant)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDown)
		defer cancel()
		second := make(chan error, 1)
		go func() { _, err := r.Acquire(ctx, tenant); second <- err }()
		synctest.Wait()
		_, err := r.Acquire(t.Context(), tenant)
		require.EqualError(t, err, "no lease became free within 0s: capacity 1: 1 in use", "the queue is bounded")
		require.ErrorIs(t, <-second, errDown)
		require.Zero(t, r.Stats().Waiters)
		r.release(held, ended)
		require.Equal(t, 1, r.Stats().Idle)
	})
}

func TestAFailedCreateIsToldToTheOneItWasFor(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 3
		cfg.Profiles[0].Warm = 1
		cfg.Profiles = append(cfg.Profiles, leasepool.Profile{Name: "other", Provider: p})
		p.onReset = func(context.Context, string) error { time.Sleep(2 * time.Second); return nil }
		calls := 0
		p.onCreate = func(context.Context, string) error {
			if calls++; calls == 1 {
				return nil
			}
			time.Sleep(time.Second)
			return sandbox.Errorf(sandbox.Refused, "create", "no")
		}
	}, func(t *testing.T, r *rig) {
		// The spare that replaces this one, and a lease for a waiter of another
		// profile, fail while the first waiter only waits for a reset.
		held := r.acquire(tenant)
		r.Release(held, ended)
		first := r.later(tenant)
		synctest.Wait()
		_, err := r.Acquire(r.t.Context(), leasepool.Want{Tenant: "acme", Profile: "other"})
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
		answer := <-first
		require.NoError(t, answer.err)
		require.Equal(t, held.ID(), answer.lease.ID())
		r.release(answer.lease, ended)
	})
}

func TestALeaseThatComesWhenItsContextEndsIsReturned(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Profiles[0].MaxUses = 1000
		calls := 0
		p.onCreate = func(context.Context, string) error {
			if calls++; calls > 1 {
				time.Sleep(10 * time.Second)
			}
			return nil
		}
	}, func(t *testing.T, r *rig) {
		mine := r.acquire(tenant)
		r.release(mine, ended)
		go func() {
			l, err := r.Acquire(t.Context(), leasepool.Want{Tenant: "slow", Profile: "default"})
			if err == nil {
				r.Release(l, ended)
			}
		}()
		synctest.Wait()
		// Behind somebody who waits, the answer and the end are there at once.
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 50 {
			l, err := r.Acquire(over, tenant)
			require.NoError(t, err)
			require.Equal(t, mine.ID(), l.ID())
			r.release(l, ended)
		}
		r.wait(10 * time.Second)
		require.Zero(t, r.Stats().InUse)
	})
}

func TestEachWaiterGetsItsOwnCreateCall(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 4
		p.onCreate = func(context.Context, string) error { time.Sleep(time.Second); return nil }
	}, func(t *testing.T, r *rig) {
		began := time.Now()
		waiting := []<-chan answer{r.later(tenant), r.later(tenant), r.later(tenant)}
		for _, answers := range waiting {
			answer := <-answers
			require.NoError(t, answer.err)
			require.Equal(t, time.Second, time.Since(began))
			defer r.Release(answer.lease, ended)
		}
		synctest.Wait()
		require.Len(t, r.Leases(), 3, "and no more than there are waiters")
	})
}

func TestOfOneTenantsLeasesTheOldestMakesRoom(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		a, b := r.acquire(tenant), r.acquire(tenant)
		r.release(b, ended)
		r.release(a, ended)
		c := r.acquire(leasepool.Want{Tenant: "rival", Profile: "default"})
		require.Equal(t, []string{b.ID()}, r.p.destroyed())
		r.release(c, ended)
	})
}

func TestCreatesThatFailAtOnceAreOneFailure(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 32
		p.onCreate = func(context.Context, string) error {
			time.Sleep(time.Second)
			return sandbox.Errorf(sandbox.Unavailable, "create", "%w", errDown)
		}
	}, func(t *testing.T, r *rig) {
		waiting := []<-chan answer{}
		for range 32 {
			waiting = append(waiting, r.later(tenant))
		}
		for _, answers := range waiting {
			require.ErrorIs(t, (<-answers).err, errDown)
		}
		require.EqualValues(t, 32, r.Stats().Totals.CreateErrors)
		require.ErrorIs(t, r.Ready(), errDown)
		r.wait(time.Second)
		require.NoError(t, r.Ready())
	})
}

func TestACreateThatEndsWithItsTimeIsInDoubt(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, p *provider, _ *quarantine) {
		p.onCreate = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	}, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := r.Acquire(ctx, tenant)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, r.Stats().Creating, "the call goes on without its waiter")
		r.wait(19 * time.Second)
		require.Empty(t, r.p.destroyTries())
		r.wait(time.Second)
		require.Len(t, r.p.destroyTries(), 1)
		require.Empty(t, r.Leases())
		require.Zero(t, r.Stats().Totals.Stuck)
	})
}

func TestALeaseCanComeIntoDoubtTwice(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, p *provider, q *quarantine) {
		p.onCreate = func(context.Context, string) error { time.Sleep(70 * time.Second); return nil }
		p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) { return sandbox.Proof{}, errDown }
		q.on = func(context.Context, int) error { time.Sleep(20 * time.Second); return nil } // both doubts are told at once
	}, func(t *testing.T, r *rig) {
		_, err := r.Acquire(t.Context(), tenant)
		require.ErrorIs(t, err, leasepool.ErrNoCapacity)
		r.wait(35 * time.Second)
		require.Equal(t, 1, r.Stats().Poisoned)
		lease := r.Leases()[0].ID
		require.True(t, r.Gone(lease, proven))
		r.wait(7 * time.Second) // it is made after all, and cannot be destroyed
		require.Equal(t, 1, r.Stats().Poisoned)
		r.wait(time.Minute)
		require.Equal(t, 1, r.Stats().Quarantined)
		require.Equal(t, lease, r.Leases()[0].ID)
	})
}

func TestIdleLeasesAgeAndSparesStay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, _ *provider, _ *quarantine) { cfg.Profiles[0].Warm = 1 }, func(t *testing.T, r *rig) {
		spare := r.Leases()[0].ID
		l := r.acquire(tenant)
		require.Equal(t, spare, l.ID())
		r.release(l, ended)
		r.wait(4 * time.Minute)
		require.Equal(t, 2, r.Stats().Idle)
		r.wait(time.Minute + 2*time.Second)
		require.Equal(t, []string{spare}, r.p.destroyed(), "idle for too long")
		require.Equal(t, 1, r.Stats().Warm)
		spare = r.Leases()[0].ID
		r.wait(time.Hour)
		require.Equal(t, 1, r.Stats().Warm)
		require.NotEqual(t, spare, r.Leases()[0].ID, "too old, and replaced")
		require.EqualValues(t, 2, r.Stats().Totals.Expired)
	})
}

func TestALostIdleLeaseIsDestroyed(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		a := r.acquire(tenant)
		r.release(a, ended)
		r.p.lose(a.ID())
		b := r.acquire(tenant)
		require.NotEqual(t, a.ID(), b.ID(), "seen when it would be handed out")
		r.release(b, ended)
		r.p.lose(b.ID())
		r.wait(time.Second)
		require.Equal(t, []string{a.ID(), b.ID()}, r.p.destroyed(), "seen within a second")
		require.EqualValues(t, 2, r.Stats().Totals.Lost)
	})
}

func TestFailingSparesAreNotMadeInALoop(t *testing.T) {
	t.Parallel()
	calls := 0
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Profiles[0].Warm = 1
		p.onCreate = func(context.Context, string) error {
			calls++
			if calls > 10 {
				return nil
			}
			return sandbox.Errorf(sandbox.Unavailable, "create", "%w", errDown)
		}
	}, func(t *testing.T, r *rig) {
		r.wait(time.Second)
		require.Less(t, calls, 6)
		require.Zero(t, r.Stats().Warm)
		r.wait(5 * time.Minute)
		require.Equal(t, 11, calls)
		require.Equal(t, 1, r.Stats().Warm)
		require.NoError(t, r.Ready())
	})
}

func TestASuccessEndsTheRestAfterAFailure(t *testing.T) {
	t.Parallel()
	calls := 0
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Profiles[0].Warm = 1
		p.onCreate = func(context.Context, string) error {
			if calls++; calls == 1 {
				return sandbox.Errorf(sandbox.Unavailable, "create", "%w", errDown)
			}
			return nil
		}
	}, func(t *testing.T, r *rig) {
		began := time.Now()
		require.Error(t, r.Ready())
		l := r.acquire(tenant)
		synctest.Wait()
		require.Equal(t, 1, r.Stats().Warm, "the spare is made without another pause")
		require.Zero(t, time.Since(began))
		r.release(l, ended)
	})
}

func TestDoubleReleasePanics(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		r.release(l, ended)
		again := r.acquire(tenant)
		require.Equal(t, l.ID(), again.ID())
		require.PanicsWithValue(t, "leasepool: lease "+l.ID()+" was released twice", func() { r.Release(l, ended) })
		require.Equal(t, leasepool.Reusable, r.release(again, ended).Disposition, "the other holder is untouched")
	})
}

func TestAcquireRefusals(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		_, err := r.Acquire(t.Context(), leasepool.Want{Tenant: "acme", Profile: "nosuch"})
		require.ErrorIs(t, err, leasepool.ErrUnknownProfile)
		require.ErrorContains(t, err, `"nosuch"`)
		_, err = r.Acquire(t.Context(), leasepool.Want{Profile: "default"})
		require.EqualError(t, err, "acquire a lease: a tenant is needed")
		require.EqualError(t, r.Run(t.Context()), "the lease pool was started before")
		require.NoError(t, r.stop())
		_, err = r.Acquire(t.Context(), tenant)
		require.ErrorIs(t, err, leasepool.ErrClosed)
		require.ErrorIs(t, r.Ready(), leasepool.ErrClosed)
	})
}

func TestNewTellsAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	p := &provider{name: "fake", noReset: true}
	_, err := leasepool.New(&quarantine{}, zerolog.Nop(), leasepool.Config{
		Capacity: 0, AcquireTimeout: -1, DestroyTries: 1000,
		Profiles: []leasepool.Profile{
			{Name: "a", Provider: p, ReuseTenant: true, Warm: 1},
			{Name: "a", MaxUses: -1, IdleTTL: -time.Second},
			{Provider: p},
		},
	})
	require.EqualError(t, err, strings.TrimSpace(`
lease pool: capacity: 0 is not between 1 and 4096
acquire timeout: -1ns is not between 0 and 720h0m0s
destroy tries: 1000 is not between 1 and 100
profile "a": warm: 1 is not between 0 and the capacity
profile "a": provider fake cannot reset a sandbox, so the profile cannot reuse it: set reuse to never
profile "a": the name is taken
profile "a": max uses: -1 is not between 1 and 1000000
profile "a": idle ttl: -1s is not between 0 and 720h0m0s
profile "a": a provider is needed
profile: a name is needed
profiles: 1 warm spares do not fit into a capacity of 0`))
	_, err = leasepool.New(&quarantine{}, zerolog.Nop(), leasepool.Config{Capacity: 1})
	require.EqualError(t, err, "lease pool: profiles: at least one is needed")
}

func TestNotReadyBeforeRun(t *testing.T) {
	t.Parallel()
	pool, err := leasepool.New(&quarantine{}, zerolog.Nop(), leasepool.Config{
		Capacity: 1, Profiles: []leasepool.Profile{{Name: "default", Provider: &provider{name: "fake"}}},
	})
	require.NoError(t, err)
	require.EqualError(t, pool.Ready(), "the lease pool does not run yet")
	require.Equal(t, "capacity 1: none held", pool.Stats().String())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, pool.Run(ctx))
	require.True(t, errors.Is(pool.Ready(), leasepool.ErrClosed))
}
