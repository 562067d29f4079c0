// Package bustest gives tests a real nats-server in their process, with file
// storage on a loopback port, and a connected bus with its streams.
package bustest

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/bus"
)

// Patience bounds every wait; none of the tests waits for it to pass.
const Patience = 30 * time.Second

// Main runs the tests and looks for what they leave behind. They wait for servers,
// clocks and networks more than they compute, so that more of those that may run at
// once do than there are processors. The flag -parallel rules.
func Main(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// Server runs a server until the test ends; change may be nil.
func Server(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	opts := &server.Options{
		ServerName: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 64 << 20,
	}
	if change != nil {
		change(opts)
	}
	s, err := server.NewServer(opts)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(Patience), "server does not listen")
	return s
}

// Connect connects a bus until the test ends; change may be nil.
func Connect(t testing.TB, url string, change func(*bus.Options)) *bus.Bus {
	t.Helper()
	opts := bus.Options{Servers: url, Name: t.Name(), Log: zerolog.Nop()}
	if change != nil {
		change(&opts)
	}
	b, err := bus.Connect(Context(t), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		_ = b.Close(ctx) //nolint:errcheck // the test may have stopped the server
	})
	return b
}

// Apply makes the streams of the plan.
func Apply(t testing.TB, b *bus.Bus, cfg bus.PlanConfig) *bus.Layout {
	t.Helper()
	if len(cfg.Queues) == 0 {
		cfg.Queues = []bus.QueuePlan{{Name: "default"}}
	}
	plan, err := bus.Plan(cfg)
	require.NoError(t, err)
	_, err = b.Apply(Context(t), plan)
	require.NoError(t, err)
	return plan
}

// Context ends with the test, or when its patience is over.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}
