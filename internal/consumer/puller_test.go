package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/consumer"
)

// queue is a work-queue stream with one consumer for each name.
func makeQueues(t *testing.T, nc *nats.Conn, names ...string) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "J", Subjects: []string{"job.>"}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
	})
	require.NoError(t, err)
	for _, name := range names {
		makeQueue(t, js, name)
	}
	return js
}

func makeQueue(t *testing.T, js jetstream.JetStream, name string) {
	t.Helper()
	_, err := js.CreateConsumer(t.Context(), "J", jetstream.ConsumerConfig{
		Durable: "w-" + name, FilterSubject: "job." + name, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: time.Minute, MaxAckPending: 1000,
	})
	require.NoError(t, err)
}

func pullFrom(queues ...string) consumer.PullConfig {
	cfg := consumer.PullConfig{
		Stream: "J", Slots: 4, Expires: 5 * time.Second, Heartbeat: 200 * time.Millisecond,
		Ready:  func() error { return nil },
		Verify: func(context.Context, string) (int, error) { return 0, nil },
	}
	for _, q := range queues {
		cfg.Queues = append(cfg.Queues, consumer.PullQueue{Queue: q, Consumer: "w-" + q, Weight: 1, Limit: cfg.Slots})
	}
	return cfg
}

// pull runs a puller until the returned stop is called.
func pull(t *testing.T, nc *nats.Conn, cfg consumer.PullConfig) (p *consumer.Puller, stop func()) {
	t.Helper()
	p = consumer.NewPuller(nc, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = p.Run(ctx) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			p.Wait()
			require.NoError(t, err)
		})
	}
	t.Cleanup(stop)
	return p, stop
}

func publish(t *testing.T, js jetstream.JetStream, queue string, n int) {
	t.Helper()
	for range n {
		_, err := js.Publish(t.Context(), "job."+queue, []byte("x"))
		require.NoError(t, err)
	}
}

// ack acknowledges. A failure shows as a second delivery, which is counted.
func ack(m *nats.Msg) {
	if err := m.Respond([]byte("+ACK")); err != nil {
		return
	}
}

// gauge counts what runs at once.
type gauge struct{ now, max, total atomic.Int64 }

func (g *gauge) enter() {
	n := g.now.Add(1)
	for {
		m := g.max.Load()
		if n <= m || g.max.CompareAndSwap(m, n) {
			return
		}
	}
}

func (g *gauge) leave() {
	g.now.Add(-1)
	g.total.Add(1)
}

func TestPullerShares(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "q")
	var gauges [2]gauge
	for i := range gauges {
		cfg := pullFrom("q")
		cfg.Slots = 2
		g := &gauges[i]
		cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) {
			g.enter()
			defer g.leave()
			<-time.After(20 * time.Millisecond)
			ack(m)
		}
		p, _ := pull(t, nc, cfg)
		eventually(t, 2*time.Second, func() bool { return p.Stats().Owed == 2 }, "no request parked")
	}
	publish(t, js, "q", 20)
	eventually(t, 5*time.Second, func() bool { return gauges[0].total.Load()+gauges[1].total.Load() == 20 }, "not all done")
	for i := range gauges {
		require.LessOrEqual(t, gauges[i].max.Load(), int64(2), "more at once than slots")
		require.GreaterOrEqual(t, gauges[i].total.Load(), int64(8), "share of worker %d", i)
	}
}

func TestPullerLateWorkerGetsItsShare(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "q")
	var early, late atomic.Int64
	start := func(n *atomic.Int64) func(string, *nats.Msg, *nats.MsgMetadata) {
		return func(_ string, m *nats.Msg, _ *nats.MsgMetadata) {
			n.Add(1)
			<-time.After(40 * time.Millisecond)
			ack(m)
		}
	}
	cfg := pullFrom("q")
	cfg.Slots = 1
	cfg.Start = start(&early)
	pull(t, nc, cfg)
	publish(t, js, "q", 20)
	eventually(t, 2*time.Second, func() bool { return early.Load() >= 2 }, "early worker idle")
	cfg.Start = start(&late)
	pull(t, nc, cfg)
	eventually(t, 5*time.Second, func() bool { return early.Load()+late.Load() == 20 }, "not all done")
	require.GreaterOrEqual(t, late.Load(), int64(7))
}

func TestPullerDrainStrandsNothing(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "q")
	publish(t, js, "q", 600)
	var done atomic.Int64
	for range 30 {
		cfg := pullFrom("q")
		cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) {
			ack(m)
			done.Add(1)
		}
		_, stop := pull(t, nc, cfg)
		<-time.After(rand.N(8 * time.Millisecond))
		stop()
	}
	require.NoError(t, nc.Flush())
	info, err := js.Consumer(t.Context(), "J", "w-q")
	require.NoError(t, err)
	eventually(t, 3*time.Second, func() bool {
		// What was given back is pending for redelivery, so it is taken again at
		// once; what is stranded would come after the ack wait of a minute.
		_, stop := pull(t, nc, func() consumer.PullConfig {
			cfg := pullFrom("q")
			cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) { ack(m); done.Add(1) }
			return cfg
		}())
		defer stop()
		<-time.After(20 * time.Millisecond)
		i, err := info.Info(t.Context())
		return err == nil && i.NumPending == 0 && i.NumAckPending == 0
	}, "messages stranded")
	require.Equal(t, int64(600), done.Load())
}

// TestPullerLeavesNoGhostWhereOthersListen: the server keeps requests alive for
// as long as anybody listens where their answers go, an operator's tool included.
func TestPullerLeavesNoGhostWhereOthersListen(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	nc, observer := b.connect(), b.connect()
	js := makeQueues(t, nc, "q")
	cfg := pullFrom("q")
	cfg.Expires = time.Second
	var done atomic.Int64
	cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) { ack(m); done.Add(1) }
	parked := func() func() {
		p, stop := pull(t, nc, cfg)
		eventually(t, 2*time.Second, func() bool { return p.Stats().Owed == cfg.Slots }, "asks for nothing")
		return stop
	}
	heard, err := observer.Subscribe("_INBOX.>", func(*nats.Msg) {})
	require.NoError(t, err)
	require.NoError(t, observer.Flush())
	stop := parked()
	began := time.Now()
	stop()
	require.Less(t, time.Since(began), cfg.Expires+cfg.Heartbeat+time.Second)
	publish(t, js, "q", 8)
	stop = parked()
	eventually(t, 5*time.Second, func() bool { return done.Load() == 8 }, "messages went to a puller that has ended")

	require.NoError(t, heard.Unsubscribe())
	require.NoError(t, observer.Flush())
	began = time.Now()
	stop()
	require.Less(t, time.Since(began), cfg.Expires/2, "waits though nobody listens")
}

func TestPullerTellsStoredMessagesByTheirReply(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "q")
	got := make(chan nats.Header, 16)
	cfg := pullFrom("q")
	cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) {
		ack(m)
		got <- m.Header
	}
	p, _ := pull(t, nc, cfg)
	for _, h := range []nats.Header{
		{"Status": {"409"}, "Description": {"Consumer Deleted"}},
		{"Status": {"503"}},
		{"Status": {"100"}, "Description": {"Idle Heartbeat"}},
		{"Status": {"408"}, "Nats-Pending-Messages": {"100"}},
		{"Status": {"400"}},
	} {
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "job.q", Header: h})
		require.NoError(t, err)
		select {
		case header := <-got:
			require.Equal(t, h.Get("Status"), header.Get("Status"))
		case <-time.After(3 * time.Second):
			require.Fail(t, "not delivered", "%v", h)
		}
	}
	require.Zero(t, p.Stats().Resets, "a stored message was taken for the server's word")
}

func TestPullerSurvives(t *testing.T) {
	t.Parallel()
	broker := newBroker(t)
	nc := broker.connect()
	js := makeQueues(t, nc, "q")
	var done atomic.Int64
	cfg := pullFrom("q")
	cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) { ack(m); done.Add(1) }
	cfg.Verify = func(ctx context.Context, q string) (int, error) {
		_, err := js.Consumer(ctx, "J", "w-"+q)
		return 0, err
	}
	p, _ := pull(t, nc, cfg)
	publish(t, js, "q", 5)
	eventually(t, 3*time.Second, func() bool { return done.Load() == 5 }, "start")

	require.NoError(t, js.DeleteConsumer(t.Context(), "J", "w-q"))
	eventually(t, 3*time.Second, func() bool { return p.Ready() != nil }, "ready without a consumer")
	before := p.Stats().Requests
	<-time.After(300 * time.Millisecond)
	require.LessOrEqual(t, p.Stats().Requests-before, uint64(20), "spins on a missing consumer")
	makeQueue(t, js, "q")
	publish(t, js, "q", 5)
	eventually(t, 5*time.Second, func() bool { return done.Load() >= 10 }, "consumer created again")

	broker.stop()
	broker.start()
	eventually(t, 5*time.Second, nc.IsConnected, "reconnect")
	eventually(t, 5*time.Second, func() bool {
		_, err := js.Publish(t.Context(), "job.q", nil)
		return err == nil
	}, "publish after the restart")
	eventually(t, 5*time.Second, func() bool { return done.Load() >= 11 }, "server restarted")
	eventually(t, 3*time.Second, func() bool { return p.Ready() == nil }, "not ready again")
}

func TestPullerStopsAskingWhileNotReady(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "q")
	var broken atomic.Bool
	broken.Store(true)
	var done atomic.Int64
	cfg := pullFrom("q")
	cfg.Ready = func() error {
		if broken.Load() {
			return errors.New("no sandbox")
		}
		return nil
	}
	cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) { ack(m); done.Add(1) }
	p, _ := pull(t, nc, cfg)
	publish(t, js, "q", 3)
	<-time.After(200 * time.Millisecond)
	require.Zero(t, p.Stats().Requests)
	require.ErrorContains(t, p.Ready(), "no sandbox")
	broken.Store(false)
	eventually(t, 2*time.Second, func() bool { return done.Load() == 3 }, "not resumed")
}

func TestPullerWeights(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 8} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			t.Parallel()
			nc := newBroker(t).connect()
			js := makeQueues(t, nc, "heavy", "light", "idle")
			publish(t, js, "heavy", 400)
			publish(t, js, "light", 400)
			var heavy, light, idle atomic.Int64
			var g gauge
			cfg := pullFrom("heavy", "light", "idle")
			cfg.Slots = slots
			cfg.Queues[0].Weight = 3
			for i := range cfg.Queues {
				cfg.Queues[i].Limit = slots
			}
			cfg.Start = func(q string, m *nats.Msg, _ *nats.MsgMetadata) {
				g.enter()
				defer g.leave()
				<-time.After(3 * time.Millisecond)
				ack(m)
				map[string]*atomic.Int64{"heavy": &heavy, "light": &light, "idle": &idle}[q].Add(1)
			}
			p, stop := pull(t, nc, cfg)
			eventually(t, 10*time.Second, func() bool { return heavy.Load()+light.Load() >= 160 }, "slow")
			publish(t, js, "idle", 1)
			eventually(t, time.Second, func() bool { return idle.Load() == 1 }, "idle queue starves")
			stop()
			require.LessOrEqual(t, g.max.Load(), int64(slots))
			ratio := float64(heavy.Load()) / float64(light.Load())
			require.InDelta(t, 3, ratio, 0.8, "heavy %d light %d", heavy.Load(), light.Load())
			require.LessOrEqual(t, p.Stats().Surplus, uint64(40), "messages go back and forth")
		})
	}
}

func TestPullerQueueLimit(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "a", "b")
	var a, b gauge
	cfg := pullFrom("a", "b")
	cfg.Slots = 6
	cfg.Queues[0].Limit = 2
	cfg.Start = func(q string, m *nats.Msg, _ *nats.MsgMetadata) {
		g := &a
		if q == "b" {
			g = &b
		}
		g.enter()
		defer g.leave()
		<-time.After(10 * time.Millisecond)
		ack(m)
	}
	pull(t, nc, cfg)
	publish(t, js, "a", 20)
	publish(t, js, "b", 40)
	eventually(t, 5*time.Second, func() bool { return a.total.Load() == 20 && b.total.Load() == 40 }, "not all done")
	require.LessOrEqual(t, a.max.Load(), int64(2))
	require.GreaterOrEqual(t, b.max.Load(), int64(4), "slots that queue a may not use are b's")
}

func TestPullerIgnoresStrangeAnswers(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	makeQueues(t, nc, "q")
	cfg := pullFrom("q")
	cfg.Start = func(string, *nats.Msg, *nats.MsgMetadata) { require.Fail(t, "started something") }
	// The inbox is random; the test learns it from a pull request.
	spy, err := nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.>")
	require.NoError(t, err)
	p, _ := pull(t, nc, cfg)
	m, err := spy.NextMsg(3 * time.Second)
	require.NoError(t, err)
	inbox := m.Reply[:strings.LastIndexByte(m.Reply, '.')]
	inbox = inbox[:strings.LastIndexByte(inbox, '.')]
	for _, tail := range []string{"0.zz", "9.1", "x.1", "0.-", "-1.1"} {
		require.NoError(t, nc.Publish(inbox+"."+tail, []byte("junk")))
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: inbox + "." + tail, Header: nats.Header{"Nats-Pending-Messages": {"-5"}}}))
	}
	require.NoError(t, nc.Flush())
	eventually(t, 2*time.Second, func() bool { return p.Stats().Strange >= 1 }, "not counted")
	require.Equal(t, 4, p.Stats().Owed)
}

func TestPullerAsksAgainAfterALeadershipChange(t *testing.T) {
	t.Parallel()
	nc := newBroker(t).connect()
	js := makeQueues(t, nc, "q")
	got := make(chan struct{}, 1)
	cfg := pullFrom("q")
	cfg.Start = func(_ string, m *nats.Msg, _ *nats.MsgMetadata) { ack(m); got <- struct{}{} }
	spy, err := nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.>")
	require.NoError(t, err)
	p, _ := pull(t, nc, cfg)
	for _, answer := range []nats.Header{
		{"Status": {"409"}, "Description": {"Leadership Change"}},
		{"Status": {"409"}, "Description": {"Server Shutdown"}},
		{"Status": {"503"}},
		{"Status": {"400"}, "Description": {"Bad Request"}},
	} {
		m, err := spy.NextMsg(3 * time.Second)
		require.NoError(t, err, "did not ask again")
		before := p.Stats().Resets
		// An answer to a request that is void already must not void the next one.
		for range 2 {
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: answer}))
		}
		eventually(t, time.Second, func() bool { return p.Stats().Resets > before }, "not taken")
		require.NoError(t, nc.Flush())
		require.Equal(t, before+1, p.Stats().Resets)
	}
	publish(t, js, "q", 1)
	select {
	case <-got:
	case <-time.After(3 * time.Second):
		require.Fail(t, "nothing delivered")
	}
	eventually(t, time.Second, func() bool { return p.Ready() == nil }, "not ready")
}
