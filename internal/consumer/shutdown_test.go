package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestShutdownLetsRunningJobsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := sleeper(300 * time.Millisecond)
	wk := w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	require.NoError(t, wk.stop())
	require.Equal(t, wire.Exited, w.result(r).Outcome)
	require.Zero(t, w.queued(), "the ack is confirmed before Run returns")
}

func TestShutdownKillsAfterTheDrain(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]bool{"drain is over": false, "killed at once": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r, again := w.read(), w.read()
			h := sleeper(time.Minute)
			wk := w.work("w1", h, func(cfg *consumer.Config) {
				cfg.Drain = 100 * time.Millisecond
				if kill {
					cfg.Drain = time.Hour
				}
			})
			w.put(job("a"), trueBody, replyTo(r))
			w.put(job("b"), `{"v":1,"argv":["true"],"retry":{"if_lost":true}}`, replyTo(again))
			eventually(t, soon, func() bool { return h.started(job("a")) == 1 && h.started(job("b")) == 1 }, "not started")
			if kill {
				wk.Kill()
				wk.Kill()
			}
			require.NoError(t, wk.stop())
			res := w.result(r)
			require.Equal(t, []any{wire.Lost, wire.ReasonShutdown, wire.StartYes}, []any{res.Outcome, res.Reason, res.StartState})
			require.Equal(t, wire.RunReleased, w.record("b").Record.State)
			require.Equal(t, 2, w.record("b").Record.Attempt)

			began := time.Now()
			w.work("w2", sleeper(0), nil)
			res = w.result(again)
			require.Less(t, time.Since(began), ackWait, "waited for the ack wait")
			require.Equal(t, []any{wire.Exited, 2}, []any{res.Outcome, res.Attempt})
			w.empty()
		})
	}
}

func TestShutdownSendsBackWhatHasNotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	preparing := make(chan struct{}, 8)
	slow := &handler{run: func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		preparing <- struct{}{}
		<-ctx.Done()
		if err := g.Claim(context.WithoutCancel(ctx), "l"); err == nil {
			t.Error("claimed after the stop")
		}
		return run.Outcome{Abandoned: true, Err: context.Cause(ctx)}
	}}
	wk := w.work("w1", slow, func(cfg *consumer.Config) { cfg.Drain = time.Hour })
	w.put(job("a"), trueBody, replyTo(r))
	<-preparing
	w.work("w2", sleeper(0), nil)
	began := time.Now()
	require.NoError(t, wk.stop())
	require.Equal(t, wire.Exited, w.result(r).Outcome)
	require.Less(t, time.Since(began), ackWait)
	w.empty()
}

func TestRollingRestartsStrandNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := sleeper(2 * time.Millisecond)
	const jobs = 200
	for i := range jobs {
		w.put(job(fmt.Sprintf("j%d", i)), trueBody, nil)
	}
	for i := 0; i < 30 && w.queued() > 0; i++ {
		wk := w.work(fmt.Sprintf("w%d", i), h, nil)
		<-time.After(time.Duration(i%7) * 7 * time.Millisecond)
		require.NoError(t, wk.stop())
	}
	began := time.Now()
	last := w.work("last", h, nil)
	w.empty()
	require.Less(t, time.Since(began), ackWait, "messages were stranded until the ack wait")
	require.NoError(t, last.stop())
	for i := range jobs {
		require.Equal(t, 1, h.started(job(fmt.Sprintf("j%d", i))))
	}
}

func TestShutdownNamesWhatItCouldNotSettle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		<-release // a handler that ignores its context
		return exited(0)
	}
	wk := w.work("w1", h, func(cfg *consumer.Config) { cfg.Drain, cfg.SettleTimeout = 0, 200*time.Millisecond })
	w.put(job("stuck"), trueBody, nil)
	eventually(t, soon, func() bool { return h.started(job("stuck")) == 1 }, "not started")
	err := wk.stop()
	require.ErrorContains(t, err, "t1.stuck")
	close(release)
	eventually(t, soon, func() bool { return wk.Stats().Running == 0 }, "still running")
}

func TestShutdownWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := &handler{}
	end := make(chan struct{})
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		<-end
		return exited(0)
	}
	wk := w.work("w1", h, func(cfg *consumer.Config) { cfg.Drain, cfg.SettleTimeout = 0, 300*time.Millisecond })
	w.put(job("a"), trueBody, nil)
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	// It ends as the connection does: in time for its fence, too late for its record.
	require.NoError(t, w.DisableJetStream())
	close(end)
	w.stop()
	began := time.Now()
	require.ErrorContains(t, wk.stop(), "t1.a")
	require.Less(t, time.Since(began), 10*time.Second)
	w.start()
}

// TestACancelDuringTheKillIsKept: a publisher that is told "cancelling" never sees
// the job run again, although the shutdown was first.
func TestACancelDuringTheKillIsKept(t *testing.T) {
	t.Parallel()
	for name, started := range map[string]bool{"before the start": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.read()
			ending, release := make(chan struct{}), make(chan struct{})
			h := &handler{}
			h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
				if started {
					if o := h.start(ctx, a, g); o != nil {
						return *o
					}
				}
				if !started {
					close(ending)
				}
				<-ctx.Done()
				if started {
					close(ending)
				}
				<-release
				if !started {
					return run.Outcome{Abandoned: true, Err: context.Cause(ctx)}
				}
				return interrupted(context.Cause(ctx))
			}
			wk := w.work("w1", h, func(cfg *consumer.Config) { cfg.Drain = time.Millisecond })
			w.put(job("a"), `{"v":1,"argv":["true"],"retry":{"if_lost":true}}`, replyTo(r))
			if started {
				eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
			} else {
				<-ending
			}
			stopped := make(chan error, 1)
			go func() { stopped <- wk.stop() }()
			if started {
				<-ending
			} else {
				eventually(t, soon, func() bool { return wk.Ready() != nil }, "not stopping")
			}
			answer, err := w.nc.Request(w.bus.Subjects().Ctl("t1", "a"), []byte(`{"op":"cancel"}`), soon)
			require.NoError(t, err)
			require.Contains(t, string(answer.Data), "cancelling")
			close(release)
			require.NoError(t, <-stopped)
			res := w.result(r)
			if started {
				require.Equal(t, []any{wire.Lost, wire.ReasonShutdown, wire.StartYes}, []any{res.Outcome, res.Reason, res.StartState})
			} else {
				require.Equal(t, []any{wire.Cancelled, wire.StartNo}, []any{res.Outcome, res.StartState})
			}
			require.Equal(t, wire.RunDone, w.record("a").Record.State)
			w.work("w2", never(t), nil)
			w.empty()
		})
	}
}

// TestAShutdownHurriesWhatIsEndedAlready: a context that has ended for a cancel
// cannot say that the time for the grace period is over.
func TestAShutdownHurriesWhatIsEndedAlready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	cancelled := make(chan struct{})
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		<-ctx.Done()
		close(cancelled)
		<-a.Hurry
		return interrupted(context.Cause(ctx))
	}
	wk := w.work("w1", h, func(cfg *consumer.Config) { cfg.Drain = time.Millisecond })
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	_, err := w.nc.Request(w.bus.Subjects().Ctl("t1", "a"), []byte(`{"op":"cancel"}`), soon)
	require.NoError(t, err)
	<-cancelled
	require.NoError(t, wk.stop())
	require.Equal(t, wire.Cancelled, w.result(r).Outcome)
}
