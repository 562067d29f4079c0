package leasepool_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

func TestShutdownDestroysAllAndAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 3
		cfg.Profiles[0].Warm = 1
		p.onDestroy = func(context.Context, string, int) (sandbox.Proof, error) { time.Sleep(time.Second); return proven, nil }
	}, func(t *testing.T, r *rig) {
		a, b := r.acquire(tenant), r.acquire(tenant)
		synctest.Wait()
		c := r.acquire(fresh)
		waiting := make(chan error, 1)
		go func() { _, err := r.Acquire(t.Context(), tenant); waiting <- err }()
		synctest.Wait()
		r.end()
		require.ErrorIs(t, <-waiting, leasepool.ErrClosed)
		time.Sleep(10 * time.Second)
		require.Equal(t, leasepool.Destroyed, r.Release(a, ended).Disposition, "nothing is reset any more")
		require.Equal(t, leasepool.Destroyed, r.Release(b, ended).Disposition)
		require.Equal(t, leasepool.Quarantined, r.Release(c, leasepool.Verdict{}).Disposition)
		require.NoError(t, r.stop())
		require.ElementsMatch(t, []string{a.ID(), b.ID()}, r.p.destroyed())
		require.Len(t, r.q.all(), 1)
		require.Equal(t, c.ID(), r.q.all()[0].Handle.Lease)
	})
}

func TestShutdownQuarantinesWhatIsNotGivenBack(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.release(r.acquire(tenant), ended)
		l := r.acquire(tenant)
		began := time.Now()
		require.NoError(t, r.stop(), "in quarantine is handed over")
		require.Equal(t, 20*time.Second, time.Since(began), "two thirds of the time")
		require.Len(t, r.q.all(), 1)
		require.Equal(t, leasepool.QuarantineOwnerGone, r.q.all()[0].Reason)
		require.Equal(t, "acme", r.q.all()[0].Tenant)
		require.Empty(t, r.q.all()[0].Job, "not the job before")
		released := r.Release(l, ended)
		require.Equal(t, leasepool.Quarantined, released.Disposition, "too late")
		require.False(t, open(released.Settled))
		require.Len(t, r.q.all(), 1)
	})
}

func TestShutdownNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *leasepool.Config, _ *provider, q *quarantine) {
		q.on = func(context.Context, int) error { return errDown }
	}, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		released := r.release(l, leasepool.Verdict{})
		began := time.Now()
		require.EqualError(t, r.stop(), "the lease pool is left with: lease "+l.ID()+" of provider fake is poisoned without a quarantine record: "+
			"it ends with the worker, and the next start on host h1 will find what is left of it")
		require.LessOrEqual(t, time.Since(began), 31*time.Second)
		require.True(t, open(released.Settled))
	})
}

func TestShutdownIsBoundedWhereCallsAreStuck(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity, cfg.ShutdownTimeout = 3, 6*time.Second
		slow := false
		p.onCreate = func(ctx context.Context, _ string) error {
			if slow {
				hang(ctx)
			}
			slow = true
			return nil
		}
		p.onDestroy = func(ctx context.Context, _ string, _ int) (sandbox.Proof, error) { hang(ctx); return proven, nil }
	}, func(t *testing.T, r *rig) {
		l := r.acquire(tenant)
		r.release(l, ended)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Acquire(ctx, fresh) // its create call hangs
		require.ErrorIs(t, err, context.DeadlineExceeded)
		began := time.Now()
		require.EqualError(t, r.stop(), "the lease pool is left with: 2 calls did not return")
		require.Equal(t, 7*time.Second, time.Since(began))
		reasons := []leasepool.QuarantineReason{}
		for _, record := range r.q.all() {
			reasons = append(reasons, record.Reason)
		}
		require.ElementsMatch(t, []leasepool.QuarantineReason{leasepool.QuarantineDestroyFailed, leasepool.QuarantineAmbiguousMake}, reasons)
		time.Sleep(48 * time.Hour) // let the calls end before the bubble does
	})
}

func TestShutdownEndsWhatIsBeingMade(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Profiles[0].Warm = 2
		p.onCreate = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	}, func(t *testing.T, r *rig) {
		require.Equal(t, 2, r.Stats().Creating)
		began := time.Now()
		require.NoError(t, r.stop())
		require.Zero(t, time.Since(began))
		require.Len(t, r.p.destroyTries(), 2, "what may have been made was destroyed")
		require.Empty(t, r.q.all())
	})
}

func TestShutdownDestroysWhatComesLate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(cfg *leasepool.Config, p *provider, _ *quarantine) {
		cfg.Capacity = 3
		p.onReset = func(context.Context, string) error { time.Sleep(1500 * time.Millisecond); return nil }
		calls := 0
		p.onCreate = func(context.Context, string) error {
			if calls++; calls > 1 {
				time.Sleep(2700 * time.Millisecond)
			}
			return nil
		}
	}, func(t *testing.T, r *rig) {
		r.release(r.acquire(tenant), ended)
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		_, err := r.Acquire(ctx, fresh)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		began := time.Now()
		require.NoError(t, r.stop())
		require.Equal(t, 2700*time.Millisecond-time.Nanosecond, time.Since(began), "at once when it is made, or reset")
		made, gone := r.p.counts()
		require.Equal(t, []int{2, 2}, []int{made, gone})
		require.Empty(t, r.q.all())
	})
}
