package executor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

// TestAStartedEventThatNobodyTakes: a broker that takes no output holds neither
// the limits of the program back nor the end that others ask for.
func TestAStartedEventThatNobodyTakes(t *testing.T) {
	stalled := func() *output {
		return &output{stall: func(ev wire.Event) bool { return ev.Type == wire.EventStarted }}
	}
	t.Run("wall time", func(t *testing.T) {
		inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
			a := script("forever")
			a.out = stalled()
			a.request.Limits.WallMS = new(int64(3000))
			began := time.Now()
			r := b.handle(a).Result
			require.Equal(t, wire.TimedOut, r.Outcome)
			require.Equal(t, 3*time.Second, time.Since(began))
			require.Equal(t, []wire.LostRange{{From: 1, To: 1}}, r.Output.LostRanges)
		})
	})
	for name, cause := range map[string]error{"cancel": run.ErrCancelled, "shutdown": run.ErrShutdown, "fence": run.ErrFenced} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
				a := script("forever")
				a.out = stalled()
				ctx, cancel := context.WithCancelCause(t.Context())
				a.ctx = ctx
				time.AfterFunc(time.Second, func() { cancel(cause) })
				began := time.Now()
				r := b.handle(a).Result
				require.Contains(t, []wire.Outcome{wire.Cancelled, wire.Lost}, r.Outcome)
				require.Equal(t, time.Second, time.Since(began))
			})
		})
	}
	t.Run("late", func(t *testing.T) {
		inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
			a := script("print:hello", "sleep:10ms")
			a.out = &output{fail: func(ev wire.Event) error {
				if ev.Type == wire.EventStarted {
					<-time.After(2 * time.Second)
				}
				return nil
			}}
			h := b.handle(a)
			require.Equal(t, wire.Exited, h.Result.Outcome)
			require.Equal(t, "hello\n", h.data(wire.EventStdout))
			require.Equal(t, wire.EventStarted, h.events[0].Type)
		})
	})
}

// TestAHurryShortensTheGrace: who must give the job up, or shut down, cannot wait
// for the grace period of an end that was decided before.
func TestAHurryShortensTheGrace(t *testing.T) {
	for name, first := range map[string]error{"cancelled": run.ErrCancelled, "timed out": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
				a := script("ignore-term", "forever")
				a.request.Limits.GraceMS, a.request.Limits.WallMS = new(int64(10_000)), new(int64(60_000))
				ctx, cancel := context.WithCancelCause(t.Context())
				a.ctx = ctx
				if first == nil {
					a.request.Limits.WallMS = new(int64(1000))
				} else {
					time.AfterFunc(time.Second, func() { cancel(first) })
				}
				hurry := make(chan struct{})
				a.hurry = hurry
				time.AfterFunc(2*time.Second, func() {
					cancel(run.ErrShutdown)
					close(hurry)
				})
				began := time.Now()
				r := b.handle(a).Result
				require.Contains(t, []wire.Outcome{wire.Cancelled, wire.TimedOut}, r.Outcome, "the first decision stays")
				require.Equal(t, wire.Proven, r.Containment.Verdict)
				require.Equal(t, 7*time.Second, time.Since(began), "5 s of grace are left")
			})
		})
	}
	t.Run("no proof", func(t *testing.T) {
		inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
			a := script("terminate:unproven", "forever")
			a.request.Limits.GraceMS = new(int64(10_000))
			ctx, cancel := context.WithCancelCause(t.Context())
			a.ctx = ctx
			hurry := make(chan struct{})
			a.hurry = hurry
			close(hurry)
			time.AfterFunc(time.Second, func() { cancel(run.ErrCancelled) })
			began := time.Now()
			r := b.handle(a).Result
			require.Equal(t, wire.Unproven, r.Containment.Verdict)
			require.Equal(t, 10*time.Second, time.Since(began), "5 s of grace and 4 s for the proof")
		})
	})
}
