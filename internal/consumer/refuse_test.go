package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

func (w *world) log() zerolog.Logger { return zerolog.Nop() }

func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good, bad := w.read(), w.read()
	victims := []*reader{w.readFrom("exec.job.other.q.x"), w.readFrom("$JS.API.STREAM.PURGE.X"), w.readFrom("foreign.subject")}
	h := sleeper(0)
	h.check = func(r *wire.Request) *wire.Invalid {
		if r.Priority != nil {
			return &wire.Invalid{Reason: wire.ReasonUnsupported, Field: "priority", Message: "not offered"}
		}
		return nil
	}
	corpus := map[string]struct {
		body   string
		header nats.Header
		reason wire.Reason
		// answered says that the reply is safe.
		answered bool
	}{
		"json":        {"{not json", replyTo(bad), wire.ReasonNotJSON, true},
		"empty":       {"", replyTo(bad), wire.ReasonNotJSON, true},
		"array":       {"[]", replyTo(bad), wire.ReasonNotJSON, true},
		"bytes":       {"\xff\xff\xff", replyTo(bad), wire.ReasonNotJSON, true},
		"argv":        {`{"v":1,"argv":[]}`, replyTo(bad), wire.ReasonField, true},
		"unsupported": {`{"v":1,"argv":["true"],"priority":3}`, replyTo(bad), wire.ReasonUnsupported, true},
		"status":      {"", nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}, wire.ReasonNotJSON, false},
		"status2":     {"", nats.Header{"Status": {"503"}}, wire.ReasonNotJSON, false},
		"status3":     {"", nats.Header{"Status": {"100"}, "Description": {"Idle Heartbeat"}}, wire.ReasonNotJSON, false},
		"foreign":     {trueBody, nats.Header{wire.HeaderReplyTo: {"foreign.subject"}}, wire.ReasonReply, false},
		"long":        {trueBody, nats.Header{wire.HeaderReplyTo: {"_INBOX." + strings.Repeat("x", 5000)}}, wire.ReasonReply, false},
		"purge":       {trueBody, nats.Header{wire.HeaderReplyTo: {"$JS.API.STREAM.PURGE.X"}}, wire.ReasonReply, false},
		"ours":        {trueBody, nats.Header{wire.HeaderReplyTo: {"exec.job.other.q.x"}}, wire.ReasonReply, false},
		"two":         {trueBody, nats.Header{wire.HeaderReplyTo: {bad.subject, bad.subject}}, wire.ReasonReply, false},
	}
	for id, c := range corpus {
		w.put(job(id), c.body, c.header)
	}
	w.put(job("good"), trueBody, replyTo(good))
	wk := w.work("w1", h, nil)
	began := time.Now()
	require.Equal(t, wire.Exited, w.result(good).Outcome)
	require.Less(t, time.Since(began), 2*time.Second, "bad jobs delayed a good one")
	w.empty()
	answers := map[string]wire.Result{}
	for _, m := range bad.results() {
		res := decode(t, m.Data)
		answers[res.ID] = res
	}
	for id, c := range corpus {
		letter := w.dead(job(id)).Letter
		require.Equal(t, c.reason, letter.Reason, id)
		require.Equal(t, c.body, string(letter.Body), id)
		res, answered := answers[id]
		require.Equal(t, c.answered, answered, id)
		if answered {
			require.Equal(t, wire.InvalidJob, res.Outcome)
			require.Equal(t, c.reason, res.Reason)
		} else {
			require.Equal(t, c.reason, decode(t, w.stored(id)[0].Data).Reason, id)
		}
		require.Equal(t, wire.RunDone, w.record(id).Record.State, id)
	}
	for _, v := range victims {
		require.Zero(t, v.count(), v.subject)
	}
	require.Equal(t, uint64(len(corpus)), wk.Stats().Invalid)
	require.Zero(t, wk.Stats().Redelivered, "a bad job came more than once")
	require.Zero(t, wk.Stats().PullResets)
}

func TestSubjectThatNamesNoJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.bus.JS().PublishMsg(t.Context(), &nats.Msg{
		Subject: "exec.job.te+nant.q.id", Data: []byte(trueBody), Header: nats.Header{wire.HeaderReplyTo: {"_INBOX.x"}},
	})
	require.NoError(t, err)
	w.work("w1", never(t), nil)
	w.empty()
	letter := w.dead(wire.Job{Tenant: wire.Token("te+nant"), Queue: "q", ID: "id"}).Letter
	require.Equal(t, wire.ReasonSubject, letter.Reason)
	require.Equal(t, "exec.job.te+nant.q.id", letter.Subject)
}

func TestRequestsOfANewerVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	wk := w.work("w1", never(t), nil)
	w.put(job("new"), `{"v":99,"argv":["true"]}`, replyTo(r))
	eventually(t, soon, func() bool { return wk.Stats().Naks == 1 }, "not left")
	<-time.After(ackWait)
	require.Equal(t, uint64(1), wk.Stats().Delivered, "burns deliveries")
	require.Equal(t, 1, w.queued())
	require.Zero(t, r.count())
	require.NoError(t, wk.stop())
}

// TestWhatIsLeftBlocksNobody: a message that is given back for long counts as
// pending at the server all that time.
func TestWhatIsLeftBlocksNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const many = 600 // above twice the fleet's slots
	for i := range many {
		_, err := w.bus.JS().PublishAsync(w.bus.Subjects().Job(job(fmt.Sprint("new", i))), []byte(`{"v":99,"argv":["true"]}`))
		require.NoError(t, err)
	}
	<-w.bus.JS().PublishAsyncComplete()
	wk := w.work("w1", sleeper(0), nil)
	eventually(t, soon, func() bool { return wk.Stats().Naks >= many }, "not left")
	r := w.read()
	w.put(job("good"), trueBody, replyTo(r))
	require.Equal(t, wire.Exited, w.result(r).Outcome)
}

func TestRequestsOfANewerVersionEndWithTheirAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	w.put(job("new"), `{"v":99,"argv":["true"]}`, replyTo(r))
	w.work("w1", never(t), func(cfg *consumer.Config) {
		cfg.ResultRetention, cfg.RetentionMargin, cfg.LongDelay = 500*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	})
	res := w.result(r)
	require.Equal(t, wire.Expired, res.Outcome)
	require.Equal(t, wire.ReasonQueueAge, res.Reason)
	w.empty()
	require.Equal(t, wire.ReasonVersion, w.dead(job("new")).Letter.Reason)
}

func TestExpired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	late, old := w.read(), w.read()
	w.put(job("late"), fmt.Sprintf(`{"v":1,"argv":["true"],"deadline":%q}`, time.Now().Add(-time.Hour).Format(time.RFC3339)), replyTo(late))
	first := w.work("w1", never(t), nil)
	res := w.result(late)
	require.Equal(t, []any{wire.Expired, wire.ReasonDeadline, wire.StartNo}, []any{res.Outcome, res.Reason, res.StartState})
	require.Contains(t, res.Message, "on this worker")
	require.NoError(t, first.stop())

	w.put(job("old"), trueBody, replyTo(old))
	<-time.After(300 * time.Millisecond)
	w.work("w2", never(t), func(cfg *consumer.Config) {
		cfg.ResultRetention, cfg.RetentionMargin = 300*time.Millisecond, 100*time.Millisecond
	})
	res = w.result(old)
	require.Equal(t, []any{wire.Expired, wire.ReasonQueueAge}, []any{res.Outcome, res.Reason})
	w.empty()
}

func TestFullDeadLettersKeepTheMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	js := w.bus.JS()
	s, err := js.Stream(t.Context(), w.bus.Streams().Dead)
	require.NoError(t, err)
	before := s.CachedInfo().Config
	full := before
	full.MaxMsgs, full.Discard = 1, jetstream.DiscardNew
	_, err = js.UpdateStream(t.Context(), full)
	require.NoError(t, err)
	r := w.read()
	wk := w.work("w1", never(t), func(cfg *consumer.Config) { cfg.LongDelay = 300 * time.Millisecond })
	w.put(job("a"), "{", nil)
	w.empty()
	w.put(job("b"), "{", replyTo(r))
	eventually(t, soon, func() bool { return wk.Stats().Naks >= 1 }, "not given back")
	require.ErrorContains(t, wk.Ready(), "dead letters")
	require.Equal(t, 1, w.queued())
	_, err = js.UpdateStream(t.Context(), before)
	require.NoError(t, err)
	w.empty()
	require.Equal(t, wire.ReasonNotJSON, w.dead(job("b")).Letter.Reason)
	eventually(t, soon, func() bool { return wk.Ready() == nil }, "not ready again")
	for _, m := range r.results() {
		require.Equal(t, r.results()[0].Data, m.Data)
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	h := sleeper(time.Minute)
	wk := w.work("w1", h, nil)
	w.work("w2", h, nil) // has no such job and so says nothing
	w.put(job("a"), trueBody, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	ctl := w.bus.Subjects().Ctl("t1", "a")
	ask := func(body string) string {
		m, err := w.nc.Request(ctl, []byte(body), soon)
		require.NoError(t, err)
		return string(m.Data)
	}
	require.Contains(t, ask(`{"op":"ping"}`), `"state":"running"`)
	require.Contains(t, ask(`{"op":"dance"}`), "unknown op")
	require.Contains(t, ask(`nonsense`), "must be JSON")

	victim := w.readFrom("exec.job.other.q.y")
	require.NoError(t, w.nc.PublishRequest(ctl, "exec.job.other.q.y", []byte(`{"op":"cancel"}`)))
	require.NoError(t, w.nc.PublishRequest(ctl, "$JS.API.STREAM.PURGE.X", []byte(`{"op":"ping"}`)))
	require.NoError(t, w.nc.Publish(ctl, []byte(`{"op":"cancel"}`)))
	require.Contains(t, ask(`{"op":"ping"}`), `"state":"running"`, "a refused request was acted on")
	require.Zero(t, victim.count())
	require.Equal(t, 1, w.queued(), "our answer became somebody's job")

	require.Contains(t, ask(`{"op":"cancel"}`), `"state":"cancelling"`)
	require.Equal(t, wire.Cancelled, w.result(r).Outcome)
	w.empty()
	// The worker forgets a job just after its acknowledgement.
	eventually(t, soon, func() bool {
		_, err := w.nc.Request(ctl, []byte(`{"op":"ping"}`), 100*time.Millisecond)
		return err != nil
	}, "an answer for a job that is not here")
	_ = wk
}

func TestCancelBeforeTheGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.read()
	preparing := make(chan struct{}, 1)
	w.work("w1", &handler{run: func(ctx context.Context, _ run.Attempt, _ run.Gate, _ run.Output) run.Outcome {
		preparing <- struct{}{}
		<-ctx.Done()
		return run.Outcome{Abandoned: true, Err: context.Cause(ctx)}
	}}, nil)
	w.put(job("a"), trueBody, replyTo(r))
	<-preparing
	_, err := w.nc.Request(w.bus.Subjects().Ctl("t1", "a"), []byte(`{"op":"cancel"}`), soon)
	require.NoError(t, err)
	res := w.result(r)
	require.Equal(t, []any{wire.Cancelled, wire.StartNo}, []any{res.Outcome, res.StartState})
	w.empty()
}

// TestControlRequestsDoNotStandBeforeHeartbeats: every tenant may write to exec.ctl,
// and every worker hears it.
func TestControlRequestsDoNotStandBeforeHeartbeats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.newBus()
	c, err := consumer.New(b, never(t), w.log(), w.config("w1"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	eventually(t, soon, func() bool { return c.Ready() == nil }, "not ready")
	const size, n = 512 << 10, 8
	for range n {
		require.NoError(t, w.nc.Publish(w.bus.Subjects().Ctl("t", "x"), make([]byte, size)))
	}
	eventually(t, soon, func() bool { return b.Services().Control().Stats().InBytes >= n*size }, "not heard")
	require.NoError(t, b.Control().FlushTimeout(soon))
	require.Less(t, b.Control().Stats().InBytes, uint64(size))
	cancel()
	require.NoError(t, <-done)
}
