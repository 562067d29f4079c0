package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// ghost writes a record of job a by a worker that does not exist.
func (w *world) ghost(change func(*wire.RunRecord)) uint64 {
	w.t.Helper()
	rec := wire.RunRecord{
		V: wire.Version, State: wire.RunClaimed, Attempt: 1, Queue: "q", Worker: "ghost", Token: "ghosttoken",
		Digest: w.digest(trueBody),
	}
	change(&rec)
	seq, err := w.bus.Runs().Create(w.t.Context(), "t1", "a", rec)
	require.NoError(w.t, err)
	return seq
}

func (w *world) storedResult(id string) []byte {
	w.t.Helper()
	code := 7
	data, err := wire.EncodeResult(&wire.Result{
		Tenant: "t1", ID: id, Queue: "q", Attempt: 1, Outcome: wire.Exited, ExitCode: &code, StartState: wire.StartYes,
		Output: wire.OutputSummary{LastSeq: 4},
	})
	require.NoError(w.t, err)
	return data
}

func never(t *testing.T) *handler {
	return &handler{run: func(_ context.Context, a run.Attempt, _ run.Gate, _ run.Output) run.Outcome {
		t.Errorf("job %s was run", a.Job.ID)
		return run.Outcome{Abandoned: true}
	}}
}

// tooLate prepares, and finds at its claim that it may not start.
func tooLate(t *testing.T) *handler {
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		t.Errorf("job %s was started", a.Job.ID)
		return exited(0)
	}
	return h
}

func TestWorkerThatDiedBetweenRecordAndResult(t *testing.T) {
	t.Parallel()
	for _, state := range []wire.RunState{wire.RunDone, wire.RunCancelled} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.read()
			seq := w.put(job("a"), trueBody, replyTo(r))
			result := w.storedResult("a")
			w.ghost(func(rec *wire.RunRecord) { rec.State, rec.JobSeq, rec.Result = state, seq, result })
			w.work("w1", tooLate(t), nil)
			w.empty()
			w.result(r)
			require.Len(t, r.results(), 1)
			require.Equal(t, result, r.results()[0].Data)
			require.Equal(t, "5", r.results()[0].Header.Get(wire.HeaderSeq))
		})
	}
}

func TestDuplicateSubmissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	result := w.storedResult("a")
	w.ghost(func(rec *wire.RunRecord) { rec.State, rec.JobSeq, rec.Result = wire.RunDone, 9999, result })
	h := sleeper(0)
	w.work("w1", h, nil)
	same, other, broken := w.read(), w.read(), w.read()

	w.put(job("a"), " "+trueBody+"\n", replyTo(same))
	w.empty()
	w.result(same)
	require.Equal(t, result, same.results()[0].Data)

	w.put(job("a"), `{"v":1,"argv":["false"]}`, replyTo(other))
	w.empty()
	res := w.result(other)
	require.Equal(t, wire.ReasonIDConflict, res.Reason)
	require.Equal(t, wire.ReasonIDConflict, w.dead(job("a")).Letter.Reason)

	w.put(job("a"), `{"v":1,"argv":[]}`, replyTo(broken))
	w.empty()
	require.Equal(t, wire.ReasonField, w.result(broken).Reason)
	require.Empty(t, w.stored("a"), "nothing of a refused duplicate on the id's own output")
	require.Zero(t, h.started(job("a")))
}

func TestDuplicateOfARunningJobWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := sleeper(500 * time.Millisecond)
	w.work("w1", h, nil)
	first, second := w.read(), w.read()
	seq := w.put(job("a"), trueBody, replyTo(first))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	// The first message leaves the stream while its job runs.
	s, err := w.bus.JS().Stream(t.Context(), w.bus.Streams().Jobs)
	require.NoError(t, err)
	require.NoError(t, s.DeleteMsg(t.Context(), seq))
	w.put(job("a"), trueBody, replyTo(second))
	w.result(second)
	w.result(first)
	require.Equal(t, first.results()[0].Data, second.results()[0].Data)
	require.Equal(t, 1, h.started(job("a")))
	w.empty()
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body    string
		started bool
		attempt int
		outcome wire.Outcome
		start   wire.StartState
	}{
		"lost":             {trueBody, false, 1, wire.Lost, wire.StartMaybe},
		"lost, started":    {trueBody, true, 1, wire.Lost, wire.StartYes},
		"next attempt":     {`{"v":1,"argv":["true"],"retry":{"if_lost":true}}`, true, 1, wire.Exited, wire.StartYes},
		"no attempts left": {`{"v":1,"argv":["true"],"retry":{"if_lost":true}}`, true, 2, wire.Lost, wire.StartYes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.read()
			h := sleeper(0)
			seq := w.put(job("a"), c.body, replyTo(r))
			w.ghost(func(rec *wire.RunRecord) {
				rec.JobSeq, rec.Started, rec.Attempt, rec.Digest = seq, c.started, c.attempt, w.digest(c.body)
			})
			began := time.Now()
			w.work("w1", h, nil)
			res := w.result(r)
			waited := time.Since(began)
			require.GreaterOrEqual(t, waited, ackWait, "taken over too early")
			require.Less(t, waited, 3*ackWait, "taken over late")
			require.Equal(t, c.outcome, res.Outcome)
			require.Equal(t, c.start, res.StartState)
			if c.outcome == wire.Lost {
				require.Equal(t, wire.ReasonWorkerGone, res.Reason)
				require.Zero(t, h.started(job("a")))
			} else {
				require.Equal(t, 2, res.Attempt)
			}
			w.empty()
			require.Len(t, r.results(), 1)
		})
	}
}

func TestNoTakeoverFromAnOwnerThatAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seq := w.put(job("a"), trueBody, nil)
	w.ghost(func(rec *wire.RunRecord) { rec.JobSeq = seq })
	var pings atomic.Int64
	sub, err := w.nc.Subscribe(w.bus.Subjects().Ctl("t1", "a"), func(m *nats.Msg) {
		pings.Add(1)
		if err := m.Respond([]byte(`{"state":"running"}`)); err != nil {
			t.Errorf("answer: %v", err)
		}
	})
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	w.work("w1", tooLate(t), nil)
	eventually(t, soon, func() bool { return pings.Load() >= 3 }, "owner not asked")
	require.Equal(t, wire.RunClaimed, w.record("a").Record.State)
	require.NoError(t, sub.Unsubscribe())
	w.empty()
	require.Equal(t, wire.RunDone, w.record("a").Record.State)
}

func TestReleasedRecordIsTakenBySequence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	// As a redrive leaves it: of an older message.
	w.ghost(func(rec *wire.RunRecord) { rec.State, rec.JobSeq, rec.Attempt = wire.RunReleased, 4711, 3 })
	w.put(job("a"), trueBody, replyTo(r))
	w.work("w1", sleeper(0), nil)
	res := w.result(r)
	require.Equal(t, 3, res.Attempt)
	require.Equal(t, wire.Exited, res.Outcome)
}

func TestTakenOverWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := sleeper(time.Minute)
	wk := w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	mine := w.record("a")
	theirs := mine.Record
	theirs.Worker, theirs.Token, theirs.Attempt = "ghost", "ghosttoken", 2
	eventually(t, soon, func() bool {
		_, err := w.bus.Runs().Update(t.Context(), "t1", "a", theirs, w.record("a").Seq)
		return err == nil
	}, "no takeover")
	eventually(t, soon, func() bool { return wk.Stats().Fenced == 1 && h.gauge.now.Load() == 0 }, "not fenced")
	require.Empty(t, r.results())
	require.Equal(t, "ghost", w.record("a").Record.Worker)
	require.Equal(t, 1, w.queued(), "a fenced worker neither acks nor terminates")
}

func TestHeartbeatsKeepALongJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := sleeper(3 * ackWait)
	began := time.Now()
	wk := []*worker{w.work("w1", h, nil), w.work("w2", h, nil)}
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	eventually(t, soon, func() bool { rec := w.record("a").Record; return rec.Renewals >= 2 && rec.Started }, "record not renewed")
	require.Equal(t, wire.Exited, w.result(r).Outcome)
	require.GreaterOrEqual(t, time.Since(began), 3*ackWait)
	w.empty()
	require.Equal(t, 1, h.started(job("a")))
	require.Zero(t, wk[0].Stats().Redelivered+wk[1].Stats().Redelivered)
}

// TestRedeliveryWhileRunning makes the server forget who has the message, as an
// R1 server does that is killed.
func TestRedeliveryWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := sleeper(ackWait)
	wk := []*worker{w.work("w1", h, nil), w.work("w2", h, nil)}
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	js, stream := w.bus.JS(), w.bus.Streams().Jobs
	info, err := js.Consumer(t.Context(), stream, "w-q")
	require.NoError(t, err)
	require.NoError(t, js.DeleteConsumer(t.Context(), stream, "w-q"))
	cfg := info.CachedInfo().Config
	_, err = js.CreateConsumer(t.Context(), stream, cfg)
	require.NoError(t, err)
	eventually(t, soon, func() bool { return wk[0].Stats().Delivered+wk[1].Stats().Delivered >= 2 }, "not delivered again")
	require.Equal(t, wire.Exited, w.result(r).Outcome)
	w.empty()
	require.Equal(t, 1, h.started(job("a")))
	for _, m := range r.results() {
		require.Equal(t, r.results()[0].Data, m.Data)
	}
}

func TestSelfFenceWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := &handler{}
	cause := make(chan error, 1)
	var began atomic.Int64
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		began.Store(time.Now().UnixNano())
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return exited(0)
	}
	wk := w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	w.stop()
	stopped := time.Now()
	select {
	case err := <-cause:
		require.ErrorIs(t, err, run.ErrFenced)
	case <-time.After(soon):
		require.Fail(t, "not fenced")
	}
	require.Less(t, time.Since(stopped), ackWait-margin-killTime+200*time.Millisecond, "fenced too late")
	w.start()
	// The job's own worker finds its lapsed claim, as any other would.
	eventually(t, 3*soon, func() bool {
		s, err := w.bus.Runs().Get(t.Context(), "t1", "a")
		return err == nil && s.Record.State == wire.RunDone
	}, "no decision")
	rec := w.record("a").Record
	res := decode(t, rec.Result)
	require.Equal(t, wire.Lost, res.Outcome, "the result of the fenced run must not count")
	eventually(t, soon, func() bool { return wk.Stats().Fenced == 1 }, "not counted")
	w.empty()
}

func TestRestartUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := sleeper(40 * time.Millisecond)
	w.work("w1", h, nil)
	w.work("w2", h, nil)
	const jobs = 40
	for i := range jobs {
		w.put(job(fmt.Sprintf("j%d", i)), trueBody, nil)
	}
	eventually(t, soon, func() bool { return h.gauge.total.Load() >= 8 }, "slow start")
	w.stop()
	w.start()
	eventually(t, 4*soon, func() bool { return w.queued() == 0 }, "jobs left")
	for i := range jobs {
		j := job(fmt.Sprintf("j%d", i))
		require.Equal(t, wire.RunDone, w.record(j.ID).Record.State)
		require.LessOrEqual(t, h.started(j), 1, "job %s started again", j.ID)
		results := map[string]bool{}
		for _, e := range w.stored(j.ID) {
			if e.Headers[wire.HeaderEvent][0] == string(wire.EventResult) {
				results[string(e.Data)] = true
			}
		}
		require.Len(t, results, 1, "job %s", j.ID)
		require.True(t, results[string(w.record(j.ID).Record.Result)])
	}
}

func TestResultThatIsTooBig(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		o := exited(0)
		o.Result.Stdout = wire.NewInline([]byte(strings.Repeat("\x00\xff", 1<<20)))
		return o
	}
	w.work("w1", h, nil)
	w.put(job("a"), `{"v":1,"argv":["true"],"output":"inline"}`, replyTo(r))
	res := w.result(r)
	require.Equal(t, wire.Exited, res.Outcome)
	require.Nil(t, res.Stdout)
	require.True(t, res.Output.Truncated)
	w.empty()
}

func TestResultThatBreaksItsFormat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		return run.Outcome{Result: wire.Result{Outcome: wire.Exited, StartState: wire.StartYes}} // no exit code
	}
	w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	res := w.result(r)
	require.Equal(t, wire.ReasonInternal, res.Reason)
	require.Contains(t, res.Message, "exit_code")
	w.empty()
}

func TestAbandonedJobComesBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ claim, open bool }{
		"before the claim": {}, "after the claim": {claim: true}, "after the start": {claim: true, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := w.read()
			var tries atomic.Int64
			h := &handler{}
			h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
				if tries.Add(1) > 2 {
					if o := h.start(ctx, a, g); o != nil {
						return *o
					}
					return exited(0)
				}
				if c.claim {
					require.NoError(t, g.Claim(ctx, "l"))
				}
				if c.open {
					g.Started()
				}
				return run.Outcome{Abandoned: true, Err: errors.New("no sandbox")}
			}
			w.work("w1", h, nil)
			w.put(job("a"), trueBody, replyTo(r))
			res := w.result(r)
			if c.open {
				require.Equal(t, wire.Lost, res.Outcome, "a handler's mistake must not run a job twice")
				require.Equal(t, wire.StartYes, res.StartState)
			} else {
				require.Equal(t, wire.Exited, res.Outcome)
				require.Equal(t, 1, res.Attempt)
				require.Equal(t, int64(3), tries.Load())
			}
			w.empty()
		})
	}
}

func TestResultWithoutAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	w.work("w1", &handler{run: func(context.Context, run.Attempt, run.Gate, run.Output) run.Outcome {
		return run.Outcome{Result: wire.Result{Outcome: wire.NotStarted, Reason: wire.ReasonUnenforceable, StartState: wire.StartNo}}
	}}, nil)
	w.put(job("a"), trueBody, replyTo(r))
	require.Equal(t, wire.ReasonUnenforceable, w.result(r).Reason)
	w.empty()
	require.Equal(t, wire.RunDone, w.record("a").Record.State)
}

func TestAckWaitsForTheQuarantineRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	settled := make(chan struct{})
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		o := exited(0)
		o.Settled = settled
		return o
	}
	wk := w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	w.result(r)
	<-time.After(ackWait + ackWait/2)
	require.Equal(t, 1, w.queued(), "acknowledged before the quarantine record")
	close(settled)
	w.empty()
	require.Zero(t, wk.Stats().Redelivered, "no heartbeat while it waited")
}

func TestUnreachableServerBetweenEndAndRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	ending, end := make(chan struct{}), make(chan struct{})
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		close(ending)
		<-end
		return exited(0)
	}
	w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	<-ending
	var stopping sync.WaitGroup
	stopping.Go(w.stop)
	eventually(t, soon, func() bool { return !w.nc.IsConnected() }, "still connected")
	close(end)
	stopping.Wait()
	w.start()
	w.empty()
	require.Equal(t, wire.Exited, decode(t, w.record("a").Record.Result).Outcome)
	require.Equal(t, 1, h.started(job("a")))
}

func TestFullRunRecordsHoldTheFinalBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	js := w.bus.JS()
	r := w.read()
	end := make(chan struct{})
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		<-end
		return exited(0)
	}
	wk := w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	s, err := js.Stream(t.Context(), w.bus.Streams().Runs)
	require.NoError(t, err)
	before := s.CachedInfo().Config
	full := before
	full.MaxBytes = 64
	_, err = js.UpdateStream(t.Context(), full)
	require.NoError(t, err)
	close(end)
	<-time.After(2 * ackWait)
	require.Empty(t, r.results(), "published before it was recorded")
	require.Equal(t, 1, w.queued())
	_, err = js.UpdateStream(t.Context(), before)
	require.NoError(t, err)
	require.Equal(t, wire.Exited, w.result(r).Outcome)
	w.empty()
	require.Equal(t, 1, h.started(job("a")))
	require.Zero(t, wk.Stats().Redelivered, "no heartbeat while it was held back")
}

func TestPurgedRecordOfARunningJobIsWrittenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := sleeper(ackWait)
	wk := w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	s, err := w.bus.JS().Stream(t.Context(), w.bus.Streams().Runs)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context()))
	require.Equal(t, wire.Exited, w.result(r).Outcome)
	w.empty()
	require.Equal(t, wire.RunDone, w.record("a").Record.State)
	require.Zero(t, wk.Stats().Fenced)
	require.Equal(t, 1, h.started(job("a")))
}

func TestConsumerPlanFits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, err := w.bus.JS().Stream(t.Context(), w.bus.Streams().Jobs)
	require.NoError(t, err)
	require.Equal(t, jetstream.WorkQueuePolicy, s.CachedInfo().Config.Retention)
	c, err := consumer.New(w.bus, sleeper(0), w.log(), w.config("w1"))
	require.NoError(t, err)
	require.ErrorContains(t, c.Ready(), "not running")
}

// shrink gives the records' stream this many bytes.
func (w *world) shrink(size int64) {
	w.t.Helper()
	stream, err := w.bus.JS().Stream(w.t.Context(), w.bus.Streams().Runs)
	require.NoError(w.t, err)
	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = size
	_, err = w.bus.JS().UpdateStream(w.t.Context(), cfg)
	require.NoError(w.t, err)
}

func chatty(size int) run.Outcome {
	o := exited(1)
	o.Result.Stdout = wire.NewInline(bytes.Repeat([]byte("x"), size))
	return o
}

// TestAFullStreamTakesTheDecision: output in a result must not keep the decision
// out of a stream that has no room for both.
func TestAFullStreamTakesTheDecision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	release := make(chan struct{})
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		<-release
		return chatty(300 << 10)
	}
	w.work("w1", h, nil)
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	w.shrink(1 << 20)
	for i := range 9 {
		_, err := w.bus.JS().Publish(t.Context(), w.bus.Subjects().Run("other", fmt.Sprint(i)), make([]byte, 100<<10))
		require.NoError(t, err)
	}
	close(release)
	res := w.result(r)
	require.Equal(t, wire.Exited, res.Outcome)
	require.Nil(t, res.Stdout)
	require.True(t, res.Output.Truncated)
	w.empty()
}

// TestManyBigResultsAreNoticedAtOnce: the stream of the records fills faster than
// the clock would tell.
func TestManyBigResultsAreNoticedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.shrink(10 << 20)
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		return chatty(500 << 10)
	}
	wk := w.work("w1", h, nil)
	eventually(t, soon, func() bool { return wk.Ready() == nil }, "not ready")
	for i := range 20 {
		w.put(job(fmt.Sprint("j", i)), trueBody, nil)
	}
	began := time.Now()
	eventually(t, soon, func() bool { return wk.Ready() != nil && strings.Contains(wk.Ready().Error(), "close to its bound") }, "not noticed")
	require.Less(t, time.Since(began), 8*time.Second)
}
