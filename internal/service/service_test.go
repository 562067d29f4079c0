package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// env is a server with a bus for services and a connection for everybody else.
type env struct {
	*testing.T
	bus *bus.Bus
	nc  *nats.Conn
}

func setup(t *testing.T) *env {
	t.Helper()
	server := bustest.Server(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	b, err := bus.Connect(ctx, bus.Options{Servers: server.ClientURL(), Log: zerolog.Nop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(ctx)) })
	nc, err := nats.Connect(server.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return &env{T: t, bus: b, nc: nc}
}

// start runs a service until stop or the test's end.
func (e *env) start(cfg service.Config, endpoints ...service.Endpoint) (s *service.Service, stop func()) {
	e.Helper()
	rule, err := wire.NewReplyRule(e.bus.Subjects(), []string{"_INBOX.>", "reply.{tenant}.>"})
	require.NoError(e, err)
	cfg.Name, cfg.Version, cfg.Replies = "testing", "1.2.3", rule
	s, err = service.New(e.bus, zerolog.Nop(), cfg, endpoints...)
	require.NoError(e, err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Run(ctx); err != nil {
			e.Errorf("run: %v", err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	e.Cleanup(stop)
	require.Eventually(e, func() bool {
		_, err := e.nc.Request("$SRV.PING.testing", nil, patience)
		return err == nil
	}, patience, 5*time.Millisecond)
	return s, stop
}

func (e *env) ask(subject string, body string) *nats.Msg {
	e.Helper()
	msg, err := e.nc.Request(subject, []byte(body), patience)
	require.NoError(e, err)
	return msg
}

// tenantOf reads t.<tenant>.
func tenantOf(subject string) (string, error) {
	tenant, ok := strings.CutPrefix(subject, "t.")
	if !ok || strings.Contains(tenant, ".") {
		return "", errors.New("no tenant")
	}
	return tenant, nil
}

// No endpoint is asked, and nothing is sent, where the reply subject is not the
// asker's to name.
func TestNothingIsSentBeforeTheReplyRule(t *testing.T) {
	e := setup(t)
	var mu sync.Mutex
	served := map[string]int{}
	serve := func(_ context.Context, r *service.Request) {
		mu.Lock()
		defer mu.Unlock()
		served[r.Subject()+" "+r.Reply()]++
		r.Fail(service.CodeUnavailable, errors.New("never works"))
	}
	s, stop := e.start(service.Config{Group: "g"},
		service.Endpoint{Name: "tenant", Subject: "t.>", Tenant: tenantOf, Serve: serve},
		service.Endpoint{Name: "quiet", Subject: "quiet", Unanswered: true, Serve: serve},
		service.Endpoint{Name: "shared", Subject: "shared", Serve: serve},
	)
	spy, err := e.nc.SubscribeSync(">")
	require.NoError(t, err)
	bad := [][2]string{
		{"t.acme", "exec.job.acme.q.x"},
		{"t.acme", "$KV.bucket.key"},
		{"t.acme", "reply.other.x"},
		{"t.acme", ""},
		{"shared", ""},
		{"shared", "reply.acme.x"},
		{"shared", "exec.reaper.ls"},
		{"quiet", "exec.job.a.b.c"},
		{"t.a.b", "_INBOX.x"},
		{"$SRV.PING", "exec.job.a.b.c"},
		{"$SRV.INFO.testing", "$O.x"},
		{"$SRV.STATS", "reply.acme.x"},
		{"$SRV.STATS", ""},
	}
	for _, b := range bad {
		require.NoError(t, e.nc.PublishMsg(&nats.Msg{Subject: b[0], Reply: b[1]}))
	}
	require.NoError(t, e.nc.Publish("quiet", nil))
	require.NoError(t, e.nc.PublishRequest("t.acme", "reply.acme.x", nil))
	require.NoError(t, e.nc.PublishRequest("shared", "_INBOX.mine", nil))
	require.NoError(t, e.nc.Flush())
	stop()
	require.NoError(t, e.nc.Flush())
	require.Equal(t, map[string]int{"quiet ": 1, "t.acme reply.acme.x": 1, "shared _INBOX.mine": 1}, served)
	answers := map[string]int{}
	for {
		msg, err := spy.NextMsg(100 * time.Millisecond)
		if err != nil {
			break
		}
		if msg.Header.Get(micro.ErrorCodeHeader) != "" {
			answers[msg.Subject]++
		}
		require.NotContains(t, string(msg.Data), "testing", "an answer went to %s", msg.Subject)
	}
	require.Equal(t, map[string]int{"reply.acme.x": 1, "_INBOX.mine": 1}, answers)
	stats := s.Stats()
	require.EqualValues(t, 3, stats.Failed)
	require.EqualValues(t, 1, stats.SubjectsRefused)
	require.EqualValues(t, len(bad)-2, stats.RepliesRefused, "all but the one without a tenant and the unanswerable question")
}

func TestMicroQuestions(t *testing.T) {
	e := setup(t)
	e.start(service.Config{Group: "g", Description: "for tests"},
		service.Endpoint{Name: "one", Subject: "one", Serve: func(_ context.Context, r *service.Request) { r.Answer(map[string]int{"n": 1}) }},
		service.Endpoint{Name: "all", Subject: "all", Everyone: true, Serve: func(_ context.Context, r *service.Request) { r.Answer(1) }},
	)
	require.JSONEq(t, `{"n":1}`, string(e.ask("one", "").Data))
	var info micro.Info
	require.NoError(t, json.Unmarshal(e.ask("$SRV.INFO", "").Data, &info))
	require.Equal(t, []any{"testing", "1.2.3", "for tests"}, []any{info.Name, info.Version, info.Description})
	require.Equal(t, []micro.EndpointInfo{{Name: "one", Subject: "one", QueueGroup: "g"}, {Name: "all", Subject: "all"}}, info.Endpoints)
	var stats micro.Stats
	require.NoError(t, json.Unmarshal(e.ask("$SRV.STATS.testing."+info.ID, "").Data, &stats))
	require.Equal(t, 1, stats.Endpoints[0].NumRequests)
}

// One of the group answers, and all of those that are for everyone.
func TestOneOrEveryone(t *testing.T) {
	e := setup(t)
	endpoints := []service.Endpoint{
		{Name: "one", Subject: "one", Serve: func(_ context.Context, r *service.Request) { r.Answer(1) }},
		{Name: "all", Subject: "all", Everyone: true, Serve: func(_ context.Context, r *service.Request) { r.Answer(1) }},
	}
	for range 3 {
		e.start(service.Config{Group: "g"}, endpoints...)
	}
	require.Eventually(t, func() bool { return e.count("all") == 3 }, patience, 5*time.Millisecond)
	require.Equal(t, 1, e.count("one"))
}

// count is how many answers come soon.
func (e *env) count(subject string) int {
	inbox := e.nc.NewInbox()
	sub, err := e.nc.SubscribeSync(inbox)
	if err != nil {
		return -1
	}
	defer func() { _ = sub.Unsubscribe() }() //nolint:errcheck // the connection ends with the test
	if err := e.nc.PublishRequest(subject, inbox, nil); err != nil {
		return -1
	}
	n := 0
	for {
		if _, err := sub.NextMsg(200 * time.Millisecond); err != nil {
			return n
		}
		n++
	}
}

// What has been taken is finished after the end was asked for; work at once has a
// bound.
func TestDrainAndBound(t *testing.T) {
	e := setup(t)
	release, entered := make(chan struct{}), make(chan struct{}, 10)
	_, stop := e.start(service.Config{Group: "g", Parallel: 2, RequestTimeout: patience},
		service.Endpoint{Name: "slow", Subject: "slow", Serve: func(_ context.Context, r *service.Request) {
			entered <- struct{}{}
			<-release
			r.Answer("done")
		}})
	inbox := e.nc.NewInbox()
	sub, err := e.nc.SubscribeSync(inbox)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, e.nc.PublishRequest("slow", inbox, nil))
	}
	require.NoError(t, e.nc.Flush())
	<-entered
	<-entered
	select {
	case <-entered:
		require.Fail(t, "a third one is in work")
	case <-time.After(100 * time.Millisecond):
	}
	var stopped sync.WaitGroup
	stopped.Go(stop)
	close(release)
	for range 3 {
		msg, err := sub.NextMsg(patience)
		require.NoError(t, err, "what was taken is answered")
		require.JSONEq(t, `"done"`, string(msg.Data))
	}
	stopped.Wait()
}

func TestMistakesAreReportedAtOnce(t *testing.T) {
	e := setup(t)
	_, err := service.New(e.bus, zerolog.Nop(), service.Config{Name: "a b"}, service.Endpoint{Name: "x"})
	for _, words := range []string{`service "a b"`, "endpoint x: there is no queue group", "endpoint x: needs a subject and a function"} {
		require.ErrorContains(t, err, words)
	}
}
