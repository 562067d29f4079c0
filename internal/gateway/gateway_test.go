package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/gateway"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a running gateway, and a publisher's connection.
type desk struct {
	t  *testing.T
	b  *bus.Bus
	g  *gateway.Gateway
	nc *nats.Conn
}

func setup(t *testing.T, change func(*bus.PlanConfig)) *desk {
	t.Helper()
	s := bustest.Server(t, nil)
	d := &desk{t: t, b: bustest.Connect(t, s.ClientURL(), nil)}
	plan := bus.PlanConfig{}
	if change != nil {
		change(&plan)
	}
	bustest.Apply(t, d.b, plan)
	replies, err := wire.NewReplyRule(d.b.Subjects(), []string{"_INBOX.>"})
	require.NoError(t, err)
	d.g, err = gateway.New(d.b, zerolog.Nop(), gateway.Config{
		Queues: []string{"default"}, Replies: replies, DefaultProfile: "default",
		Profiles: map[string]wire.Profile{"default": {Name: "default", Max: wire.Limits{WallMS: new(int64(1000))}}},
		Worker:   wire.WorkerRef{ID: "gw", Version: "0.1.0"}, RequestTimeout: 2 * time.Second,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	d.nc, err = nats.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(d.nc.Close)
	require.Eventually(t, func() bool {
		_, err := d.nc.Request("$SRV.PING.sallyport-gateway", nil, time.Second)
		return err == nil
	}, bustest.Patience, 10*time.Millisecond)
	return d
}

func (d *desk) client() *client.Client {
	d.t.Helper()
	c, err := client.New(d.nc, client.Config{AcceptTimeout: 5 * time.Second})
	require.NoError(d.t, err)
	return c
}

// conversation sends one request and takes the answers up to the empty one, as
// `nats req --wait-for-empty` does.
func (d *desk) conversation(subject string, body []byte, headers nats.Header) []*nats.Msg {
	d.t.Helper()
	sub, err := d.nc.SubscribeSync(d.nc.NewInbox())
	require.NoError(d.t, err)
	defer func() { require.NoError(d.t, sub.Unsubscribe()) }()
	require.NoError(d.t, d.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: sub.Subject, Data: body, Header: headers}))
	var all []*nats.Msg
	for {
		msg, err := sub.NextMsg(5 * time.Second)
		require.NoError(d.t, err, "after %d answers", len(all))
		all = append(all, msg)
		if len(msg.Data) == 0 || msg.Header.Get(wire.HeaderEvent) == string(wire.EventAccepted) {
			return all
		}
	}
}

const echo = `{"v":1,"argv":["echo","hi"],"meta":{"a":"b"}}`

func TestSubmitStoresTheJob(t *testing.T) {
	d := setup(t, nil)
	answers := d.conversation("exec.submit.acme.default", []byte(echo), nats.Header{
		wire.HeaderID: {"job-1"}, "Nats-Msg-Id": {"x"}, "Nats-Rollup": {"all"}, "Status": {"409"}, "traceparent": {"00-1-2-01"}, "Other": {"y"},
	})
	var accepted wire.Accepted
	require.NoError(t, json.Unmarshal(answers[0].Data, &accepted))
	require.Equal(t, wire.Accepted{V: 1, Tenant: "acme", Queue: "default", ID: "job-1"}, accepted)
	msg, err := d.b.QueuedMessage(t.Context(), "acme", "job-1")
	require.NoError(t, err)
	require.JSONEq(t, echo, string(msg.Body))
	require.Equal(t, []string{"00-1-2-01"}, msg.Headers["traceparent"])
	require.NotEmpty(t, msg.Headers[wire.HeaderReplyTo])
	for _, dropped := range []string{"Nats-Msg-Id", "Nats-Rollup", "Status", "Other"} {
		require.Empty(t, msg.Headers[dropped], dropped)
	}
	require.Equal(t, uint64(1), d.g.Stats().Submitted)
}

func TestSubmitRefusesAtOnceWithTheField(t *testing.T) {
	d := setup(t, nil)
	for name, c := range map[string]struct {
		subject, body string
		headers       nats.Header
		reason        wire.Reason
		says          string
	}{
		"not json":        {"exec.submit.t.default", `{`, nil, wire.ReasonNotJSON, ""},
		"unknown field":   {"exec.submit.t.default", `{"v":1,"argv":["x"],"colour":1}`, nil, wire.ReasonField, "colour"},
		"unknown queue":   {"exec.submit.t.nosuch", echo, nil, wire.ReasonQueue, "nosuch"},
		"unknown profile": {"exec.submit.t.default", `{"v":1,"argv":["x"],"profile":"p"}`, nil, wire.ReasonProfile, "profile"},
		"limit":           {"exec.submit.t.default", `{"v":1,"argv":["x"],"limits":{"wall_ms":1001}}`, nil, wire.ReasonTooBig, "limits.wall_ms"},
		"unsupported":     {"exec.submit.t.default", `{"v":1,"argv":["x"],"priority":1}`, nil, wire.ReasonUnsupported, "priority"},
		"bad id":          {"exec.submit.t.default", echo, nats.Header{wire.HeaderID: {"a.b"}}, wire.ReasonField, wire.HeaderID},
		"two ids":         {"exec.submit.t.default", echo, nats.Header{wire.HeaderID: {"a", "b"}}, wire.ReasonField, wire.HeaderID},
		"own reply":       {"exec.submit.t.default", echo, nats.Header{wire.HeaderReplyTo: {"_INBOX.x"}}, wire.ReasonReply, wire.HeaderReplyTo},
	} {
		t.Run(name, func(t *testing.T) {
			answers := d.conversation(c.subject, []byte(c.body), c.headers)
			require.Len(t, answers, 2, "the result and the end")
			require.Equal(t, "400", answers[0].Header.Get("Nats-Service-Error-Code"))
			r, err := wire.DecodeResult(answers[0].Data)
			require.NoError(t, err)
			require.Equal(t, wire.InvalidJob, r.Outcome)
			require.Equal(t, c.reason, r.Reason)
			require.Contains(t, r.Message, c.says)
			require.Equal(t, string(wire.EventEnd), answers[1].Header.Get(wire.HeaderEvent))
		})
	}
}

// A reply subject that is not the tenant's own is met with silence: whatever we
// answered there would be published with our rights.
func TestForeignReplySubjectsAreNeverAnswered(t *testing.T) {
	d := setup(t, nil)
	for _, subject := range []string{"exec.submit.t.default", "exec.status.t.x", "exec.cancel.t.x", "exec.read.t.x"} {
		// Replies below $JS. and _R_. are refused by the server already.
		for _, reply := range []string{"exec.job.other.default.x", "exec.run.t.x", "somewhere.else", "$KV.b.k", "_SYS.x"} {
			before := d.g.Stats().RepliesRefused
			require.NoError(t, d.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: []byte(echo)}))
			require.Eventually(t, func() bool { return d.g.Stats().RepliesRefused > before }, bustest.Patience, time.Millisecond, "%s with %s", subject, reply)
		}
	}
	require.Zero(t, d.g.Stats().Submitted)
	_, err := d.b.QueuedMessage(t.Context(), "other", "x")
	require.ErrorIs(t, err, bus.ErrNotQueued)
}

func TestSubmitOfAQueuedID(t *testing.T) {
	d := setup(t, nil)
	sub, err := d.nc.SubscribeSync(d.nc.NewInbox())
	require.NoError(t, err)
	send := func(body, reply string) *nats.Msg {
		require.NoError(t, d.nc.PublishMsg(&nats.Msg{Subject: "exec.submit.t.default", Reply: reply, Data: []byte(body), Header: nats.Header{wire.HeaderID: {"same"}}}))
		msg, err := sub.NextMsg(bustest.Patience)
		require.NoError(t, err)
		return msg
	}
	require.Equal(t, "accepted", send(echo, sub.Subject).Header.Get(wire.HeaderEvent))
	require.Equal(t, "accepted", send(echo, sub.Subject).Header.Get(wire.HeaderEvent), "an honest repetition")
	refused := send(`{"v":1,"argv":["other"]}`, sub.Subject)
	r, err := wire.DecodeResult(refused.Data)
	require.NoError(t, err)
	require.Equal(t, wire.ReasonIDConflict, r.Reason)
}

// A job that is over may have its message in the queue for a while: its worker
// died before the acknowledgement, or is just about to send it.
func TestSubmitOfAJobThatIsOver(t *testing.T) {
	d := setup(t, nil)
	send := func(body string) []*nats.Msg {
		return d.conversation("exec.submit.default.default", []byte(body), nats.Header{wire.HeaderID: {"over"}})
	}
	require.Len(t, send(echo), 1)
	msg, err := d.b.QueuedMessage(t.Context(), "default", "over")
	require.NoError(t, err)
	digest, err := wire.Digest("default", msg.Body)
	require.NoError(t, err)
	result, err := wire.EncodeResult(&wire.Result{V: 1, Tenant: "default", ID: "over", Queue: "default", Attempt: 1, Outcome: wire.Exited, ExitCode: new(0), StartState: wire.StartYes})
	require.NoError(t, err)
	_, err = d.b.Runs().Create(t.Context(), "default", "over", wire.RunRecord{V: 1, State: wire.RunDone, Attempt: 1, Queue: "default", Worker: "w", Token: "t", JobSeq: msg.Seq, Digest: digest, Result: result})
	require.NoError(t, err)

	c := d.client()
	job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"echo", "hi"}, Meta: map[string]string{"a": "b"}}, "over")
	require.NoError(t, err)
	defer closing(t, job)
	r, err := job.Copy(bustest.Context(t), nil, nil)
	require.NoError(t, err)
	require.Equal(t, wire.Exited, r.Outcome)
	_, err = c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"other"}}, "over")
	var refused *client.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, wire.ReasonIDConflict, refused.Result.Reason)
}

func TestAFullQueueIsSaidSo(t *testing.T) {
	d := setup(t, func(c *bus.PlanConfig) { c.JobsMessages = 1 })
	c := d.client()
	job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"x"}}, "one")
	require.NoError(t, err)
	require.NoError(t, job.Close())
	_, err = c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"x"}}, "two")
	require.ErrorContains(t, err, "full")
}

func TestStatusAndCancelOfAQueuedJob(t *testing.T) {
	d := setup(t, nil)
	c := d.client()
	state, err := c.Status(t.Context(), "j")
	require.NoError(t, err)
	require.Equal(t, wire.JobUnknown, state.State)
	state, err = c.Cancel(t.Context(), "j")
	require.NoError(t, err)
	require.Equal(t, wire.JobUnknown, state.State, "an unknown job cannot be cancelled ahead of its submission")

	job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"x"}, Meta: map[string]string{"k": "v"}}, "j")
	require.NoError(t, err)
	defer closing(t, job)
	state, err = c.Status(t.Context(), "j")
	require.NoError(t, err)
	require.Equal(t, wire.JobQueued, state.State)
	require.Equal(t, "default", state.Queue)
	for range 2 {
		state, err = c.Cancel(t.Context(), "j")
		require.NoError(t, err)
		require.Equal(t, wire.JobCancelled, state.State)
	}
	r, err := state.Final()
	require.NoError(t, err)
	require.Equal(t, wire.Cancelled, r.Outcome)
	require.Equal(t, wire.StartNo, r.StartState)
	require.Equal(t, map[string]string{"k": "v"}, r.Meta)
	rec, err := d.b.Runs().Get(t.Context(), "default", "j")
	require.NoError(t, err)
	msg, err := d.b.QueuedMessage(t.Context(), "default", "j")
	require.NoError(t, err)
	require.Equal(t, msg.Seq, rec.Record.JobSeq, "the worker must know the message that was cancelled")
}

// A running job is cancelled by its worker; when that worker does not answer,
// the gateway says so instead of guessing.
func TestCancelOfARunningJob(t *testing.T) {
	d := setup(t, nil)
	c := d.client()
	_, err := d.b.Runs().Create(t.Context(), "default", "run", wire.RunRecord{V: 1, State: wire.RunClaimed, Attempt: 1, Queue: "default", Worker: "w", Token: "tok", JobSeq: 1, Digest: "d"})
	require.NoError(t, err)
	_, err = c.Cancel(t.Context(), "run")
	require.Error(t, err)

	sub, err := d.nc.Subscribe("exec.ctl.default.run", func(m *nats.Msg) {
		if bytes.Contains(m.Data, []byte("cancel")) {
			assert.NoError(t, m.Respond([]byte(`{"state":"cancelling"}`)))
		}
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Unsubscribe()) }()
	require.NoError(t, d.nc.Flush())
	state, err := c.Cancel(t.Context(), "run")
	require.NoError(t, err)
	require.Equal(t, wire.JobCancelling, state.State)
}

func TestReadPagesThroughStoredOutput(t *testing.T) {
	d := setup(t, nil)
	const events = 3*wire.MaxReadBatch + 5
	out := d.b.NewOutput(bus.OutputConfig{Job: wire.Job{Tenant: "default", Queue: "default", ID: "j"}, Attempt: 1, Mode: wire.OutputStored})
	for i := range events {
		require.NoError(t, out.Emit(t.Context(), wire.Event{Type: wire.EventStdout, Job: "default.j", Attempt: 1, Seq: uint64(i + 1), Offset: int64(i), Data: []byte{byte(i)}}))
	}
	_, err := out.Flush(bustest.Context(t))
	require.NoError(t, err)
	result, err := wire.EncodeResult(&wire.Result{V: 1, Tenant: "default", ID: "j", Queue: "default", Attempt: 1, Outcome: wire.Exited, ExitCode: new(0), StartState: wire.StartYes})
	require.NoError(t, err)

	tail, err := d.client().Tail("j", 0)
	require.NoError(t, err)
	defer closing(t, tail)
	_, err = d.b.Runs().Create(t.Context(), "default", "j", wire.RunRecord{V: 1, State: wire.RunDone, Attempt: 1, Queue: "default", Worker: "w", Token: "t", JobSeq: 1, Digest: "d", Result: result})
	require.NoError(t, err)
	require.NoError(t, out.Final(bustest.Context(t), result, events+1))
	var cursors []uint64
	var got []byte
	for {
		ev, cursor, err := tail.Next(bustest.Context(t))
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		cursors = append(cursors, cursor)
		if ev.Type == wire.EventStdout {
			got = append(got, ev.Data...)
		}
	}
	require.Len(t, cursors, events+1)
	require.Len(t, got, events)
	rest, err := d.client().Tail("j", cursors[events-1])
	require.NoError(t, err)
	defer closing(t, rest)
	ev, _, err := rest.Next(bustest.Context(t))
	require.NoError(t, err)
	require.Equal(t, wire.EventResult, ev.Type)
	_, _, err = rest.Next(bustest.Context(t))
	require.ErrorIs(t, err, io.EOF)
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	require.NoError(t, c.Close())
}

// TestMonitoringBorrowsNoRights: who asks how the service is names the subject of
// the answer. On a run record's it would end another tenant's job for good.
func TestMonitoringBorrowsNoRights(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	victims := []string{"exec.run.victim.x", "exec.job.victim.default.x", "exec.out.victim.x", "exec.ctl.victim.x", "$KV.x.y", "reply.victim.x", "other"}
	caught, err := d.nc.SubscribeSync(">")
	require.NoError(t, err)
	for _, ask := range []string{"$SRV.PING", "$SRV.INFO", "$SRV.STATS", "$SRV.PING.sallyport-gateway"} {
		for _, reply := range victims {
			require.NoError(t, d.nc.PublishRequest(ask, reply, nil))
		}
	}
	// Questions of one verb are answered in their order: when this one is, those
	// before it were refused.
	for _, verb := range []string{"PING", "INFO", "STATS", "PING.sallyport-gateway"} {
		_, err := d.nc.Request("$SRV."+verb, nil, time.Second)
		require.NoError(t, err)
	}
	require.NoError(t, d.nc.Flush())
	n, _, err := caught.Pending()
	require.NoError(t, err)
	for range n {
		m, err := caught.NextMsg(time.Second)
		require.NoError(t, err)
		require.NotContains(t, victims, m.Subject, "%s", m.Data)
	}
	require.EqualValues(t, 4*len(victims), d.g.Stats().RepliesRefused)
}

// TestMonitoring: `nats micro ls|info|stats` sees the gateway.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	ask := func(subject string, into any) {
		t.Helper()
		m, err := d.nc.Request(subject, nil, time.Second)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(m.Data, into))
	}
	var ping micro.Ping
	ask("$SRV.PING", &ping)
	require.Equal(t, micro.PingResponseType, ping.Type)
	require.Equal(t, "sallyport-gateway", ping.Name)
	require.Equal(t, "0.1.0", ping.Version)
	var info micro.Info
	ask("$SRV.INFO.sallyport-gateway."+ping.ID, &info)
	require.Equal(t, micro.InfoResponseType, info.Type)
	require.Len(t, info.Endpoints, 4)
	require.Equal(t, micro.EndpointInfo{Name: "submit", Subject: "exec.submit.*.*", QueueGroup: "gateway"}, info.Endpoints[0])
	_, err := d.client().Status(t.Context(), "nobody")
	require.NoError(t, err)
	var stats micro.Stats
	ask("$SRV.STATS.sallyport-gateway", &stats)
	require.Equal(t, micro.StatsResponseType, stats.Type)
	require.Equal(t, ping.ID, stats.ID)
	require.False(t, stats.Started.IsZero())
	counts := map[string]int{}
	for _, e := range stats.Endpoints {
		counts[e.Name] = e.NumRequests
	}
	require.Equal(t, map[string]int{"submit": 0, "cancel": 0, "status": 1, "read": 0}, counts)
}
