package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// BenchmarkNoop is the queue's own cost: a handler that claims and ends, from the
// publish to the result on the reply subject, with so many jobs in flight.
func BenchmarkNoop(b *testing.B) {
	for _, inFlight := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("c%d", inFlight), func(b *testing.B) { benchNoop(b, inFlight) })
	}
}

func benchNoop(b *testing.B, inFlight int) {
	s := bustest.Server(b, nil)
	bs, err := bus.Connect(b.Context(), bus.Options{Servers: s.ClientURL(), Log: zerolog.Nop()})
	require.NoError(b, err)
	defer func() { require.NoError(b, bs.Close(context.Background())) }()
	plan, err := bus.Plan(bus.PlanConfig{Queues: []bus.QueuePlan{{Name: "q"}}})
	require.NoError(b, err)
	_, err = bs.Apply(b.Context(), plan)
	require.NoError(b, err)
	replies, err := wire.NewReplyRule(bs.Subjects(), []string{"_INBOX.>"})
	require.NoError(b, err)
	code := 0
	h := &handler{run: func(ctx context.Context, _ run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if err := g.Claim(ctx, "l"); err != nil {
			return run.Outcome{Abandoned: true, Err: err}
		}
		g.Started()
		return run.Outcome{Result: wire.Result{Outcome: wire.Exited, ExitCode: &code, StartState: wire.StartYes}}
	}}
	c, err := consumer.New(bs, h, zerolog.Nop(), consumer.Config{
		Queues: []consumer.Queue{{Name: "q"}}, Slots: inFlight, Worker: wire.WorkerRef{ID: "w"}, Replies: replies, Drain: time.Second,
	})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(b, c.Run(ctx)) })
	defer wg.Wait()
	defer cancel()

	nc, err := nats.Connect(s.ClientURL())
	require.NoError(b, err)
	defer nc.Close()
	done := make(chan struct{}, b.N)
	inbox := nats.NewInbox()
	_, err = nc.Subscribe(inbox, func(m *nats.Msg) {
		if m.Header.Get(wire.HeaderEvent) == string(wire.EventResult) {
			done <- struct{}{}
		}
	})
	require.NoError(b, err)
	free := make(chan struct{}, inFlight)
	for range inFlight {
		free <- struct{}{}
	}
	wg.Go(func() {
		for range b.N {
			<-done
			free <- struct{}{}
		}
	})
	b.ResetTimer()
	for i := range b.N {
		<-free
		msg := &nats.Msg{
			Subject: bs.Subjects().Job(wire.Job{Tenant: "t", Queue: "q", ID: fmt.Sprintf("j%d", i)}),
			Data:    []byte(trueBody), Header: nats.Header{wire.HeaderReplyTo: {inbox}},
		}
		require.NoError(b, nc.PublishMsg(msg))
	}
	for range inFlight {
		<-free
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
