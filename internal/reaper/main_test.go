package reaper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { bustest.Main(m) }

const (
	// patience bounds what has to happen; a shared machine under the race
	// detector needs much of it.
	patience = 30 * time.Second
	tick     = 5 * time.Millisecond
	host     = "account"
)

// env is a server, a world of sandboxes and the quarantine between them.
type env struct {
	*testing.T
	server *server.Server
	bus    *bus.Bus
	world  *fake.World
}

func setup(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, world: fake.NewWorld()}
	e.server = startServer(t, -1, t.TempDir())
	e.bus = e.connect()
	plan, err := bus.Plan(bus.PlanConfig{Queues: []bus.QueuePlan{{Name: "default"}}})
	require.NoError(t, err)
	_, err = e.bus.Apply(e.ctx(), plan)
	require.NoError(t, err)
	return e
}

func startServer(t *testing.T, port int, dir string) *server.Server {
	t.Helper()
	return bustest.Server(t, func(o *server.Options) { o.Port, o.StoreDir = port, dir })
}

// restart is a broker outage.
func (e *env) restart() {
	e.Helper()
	e.down()()
}

// down ends the broker, and returns what brings it back.
func (e *env) down() (up func()) {
	e.Helper()
	addr, ok := e.server.Addr().(*net.TCPAddr)
	require.True(e, ok)
	dir := strings.TrimSuffix(e.server.StoreDir(), "/jetstream")
	e.server.Shutdown()
	e.server.WaitForShutdown()
	return func() { e.server = startServer(e.T, addr.Port, dir) }
}

func (e *env) connect() *bus.Bus {
	e.Helper()
	b, err := bus.Connect(e.ctx(), bus.Options{Servers: e.server.ClientURL(), Name: e.Name(), Log: zerolog.Nop()})
	require.NoError(e, err)
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			e.Logf("close: %v", err)
		}
	})
	return b
}

func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.Cleanup(cancel)
	return ctx
}

// provider is a reaper's own provider of the world: not the one that made the
// sandboxes.
func (e *env) provider() *fake.Provider {
	p := fake.New(e.world, fake.Config{Host: host, OutlivesWorker: true})
	e.Cleanup(func() { require.NoError(e, p.Close()) })
	return p
}

func handle(lease string) sandbox.Handle {
	return sandbox.Handle{Provider: "fake", Host: host, Lease: lease, Detail: map[string]string{"number": "1"}}
}

func record(lease string) wire.Quarantine {
	return wire.Quarantine{
		State: wire.InQuarantine, Lease: lease, Provider: "fake", Host: host, Worker: "worker-1", Tenant: "acme", Job: "job-1",
		Reason: wire.QuarantineUnproven, Message: "no proof within 5s", FirstSeen: time.Now().Add(-time.Hour).UTC(),
		Evidence: []wire.Evidence{{Kind: "reap", Detail: "too late"}}, Handle: map[string]string{"number": "1"},
	}
}

// put quarantines a sandbox that exists, with the destroy knobs.
func (e *env) put(lease string, knobs ...string) {
	e.Helper()
	require.NoError(e, e.world.Plant(handle(lease), knobs...))
	require.NoError(e, e.bus.Quarantines().Put(e.ctx(), record(lease)))
}

// running is a reaper that runs.
type running struct {
	*reaper.Reaper
	log  *logs
	stop func()

	mu   sync.Mutex
	gone map[string]sandbox.Proof
}

func quick() reaper.Config {
	return reaper.Config{MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, AttemptTimeout: 5 * time.Second}
}

// start runs a reaper with connections and a provider of its own until stop, or
// the test's end.
func (e *env) start(cfg reaper.Config) *running {
	e.Helper()
	return e.startWith(e.bus, map[string]sandbox.Provider{"fake": e.provider()}, cfg)
}

func (e *env) startWith(b *bus.Bus, providers map[string]sandbox.Provider, cfg reaper.Config) *running {
	e.Helper()
	return e.startBooks(reaper.OnBus(b, 0), providers, cfg)
}

func (e *env) startBooks(books reaper.Books, providers map[string]sandbox.Provider, cfg reaper.Config) *running {
	e.Helper()
	r := &running{log: &logs{}, gone: map[string]sandbox.Proof{}}
	cfg.OnGone = func(lease string, proof sandbox.Proof) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gone[lease] = proof
	}
	var err error
	r.Reaper, err = reaper.New(books, providers, zerolog.New(r.log).Level(zerolog.DebugLevel), cfg)
	require.NoError(e, err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := r.Run(ctx); err != nil {
			e.Errorf("run: %v", err)
		}
	})
	r.stop = func() {
		cancel()
		done.Wait()
	}
	e.Cleanup(r.stop)
	return r
}

func (r *running) proofOf(lease string) (sandbox.Proof, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	proof, ok := r.gone[lease]
	return proof, ok
}

// stored is the record as it stands.
func (e *env) stored(lease string) wire.Quarantine {
	e.Helper()
	got, err := e.bus.Quarantines().Get(e.ctx(), "fake", host, lease)
	require.NoError(e, err)
	return got.Record
}

// until waits for ok, which must not end the test: it is called elsewhere.
func (e *env) until(what string, ok func() bool) {
	e.Helper()
	require.Eventually(e, ok, patience, tick, what)
}

// destroyed waits until the lease's record says so.
func (e *env) destroyed(lease string) wire.Quarantine {
	e.Helper()
	var got *bus.StoredQuarantine
	e.until(lease+" destroyed", func() bool {
		var err error
		got, err = e.bus.Quarantines().Get(e.ctx(), "fake", host, lease)
		return err == nil && got.Record.State == wire.Gone
	})
	return got.Record
}

// acknowledged waits until the consumer has nothing more to give.
func (e *env) acknowledged() {
	e.Helper()
	e.until("all deliveries acknowledged", func() bool { return e.waiting(0) })
}

// waiting says whether the consumer has delivered everything, and n of it are not
// acknowledged.
func (e *env) waiting(n int) bool {
	consumer, err := e.bus.JS().Consumer(e.ctx(), e.bus.Streams().Ledger, bus.ReaperConsumerName("fake", host))
	return err == nil && consumer.CachedInfo().NumPending == 0 && consumer.CachedInfo().NumAckPending == n
}

// raw stores bytes in a record's place.
func (e *env) raw(lease, body string) {
	e.Helper()
	subject := e.bus.Subjects().Quarantine("fake", host, lease)
	_, err := e.bus.JS().PublishMsg(e.ctx(), &nats.Msg{Subject: subject, Data: []byte(body)})
	require.NoError(e, err)
}

// logs keeps log lines.
type logs struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(p) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			return 0, err
		}
		l.lines = append(l.lines, fields)
	}
	return len(p), nil
}

// find returns the lines with this message, or of this level.
func (l *logs) find(field, value string) []map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []map[string]any
	for _, line := range l.lines {
		if line[field] == value {
			found = append(found, line)
		}
	}
	return found
}

func (e *env) stream() jetstream.Stream {
	e.Helper()
	s, err := e.bus.JS().Stream(e.ctx(), e.bus.Streams().Ledger)
	require.NoError(e, err)
	return s
}
