package bus_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { bustest.Main(m) }

// patience bounds every wait in these tests; none of them waits for it to pass.
const patience = 20 * time.Second

// startServer runs a server with file storage on a loopback port. Port 0 takes
// any free one.
func startServer(t *testing.T, change func(*server.Options)) *server.Server {
	t.Helper()
	return bustest.Server(t, change)
}

func stopServer(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// restartable returns what starts s again, on its port with its store, once it is
// stopped.
func restartable(t *testing.T, s *server.Server) func() *server.Server {
	t.Helper()
	addr, ok := s.Addr().(*net.TCPAddr)
	require.True(t, ok)
	dir := strings.TrimSuffix(s.StoreDir(), "/jetstream")
	return func() *server.Server {
		return startServer(t, func(o *server.Options) { o.Port, o.StoreDir = addr.Port, dir })
	}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func connect(t *testing.T, url string, change func(*bus.Options)) *bus.Bus {
	t.Helper()
	opts := bus.Options{Servers: url, Name: t.Name(), Log: zerolog.Nop()}
	if change != nil {
		change(&opts)
	}
	b, err := bus.Connect(deadline(t), opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Logf("close: %v", err) // a test may leave output behind on purpose
		}
	})
	return b
}

// small is a plan for tests.
func small() bus.PlanConfig {
	return bus.PlanConfig{Queues: []bus.QueuePlan{{Name: "default"}}}
}

func apply(t *testing.T, b *bus.Bus, cfg bus.PlanConfig) *bus.Layout {
	t.Helper()
	plan, err := bus.Plan(cfg)
	require.NoError(t, err)
	_, err = b.Apply(deadline(t), plan)
	require.NoError(t, err)
	return plan
}

// setup is a server with the planned streams and a bus on it.
func setup(t *testing.T) (*server.Server, *bus.Bus) {
	t.Helper()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	apply(t, b, small())
	return s, b
}

func plain(t *testing.T, s *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func claimed(token string) wire.RunRecord {
	return wire.RunRecord{V: 1, State: wire.RunClaimed, Attempt: 1, Queue: "default", Worker: "w1", Token: token, Lease: "l1", JobSeq: 7, Digest: strings.Repeat("ab", 32)}
}

// proxy stands between a client and the server and can drop what the server
// answers, cut the line, or do something just before the client's words pass.
type proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	deaf  bool // drop server → client
	conns []net.Conn
	// word and do: the next time that the client says word, do decides, before it
	// passes, whether it passes at all. A line whose word did not pass is cut.
	word []byte
	do   func() bool
}

func startProxy(t *testing.T, s *server.Server) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, server: s.Addr().String()}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Logf("proxy: %v", err)
		}
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		upstream, err := net.Dial("tcp", p.server)
		if err != nil {
			shut(client)
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, upstream)
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(upstream, client, false) })
		p.wg.Go(func() { p.copy(client, upstream, true) })
	}
}

func (p *proxy) copy(to, from net.Conn, answers bool) {
	defer shut(to, from)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !answers && !p.passes(buf[:n]) {
				return
			}
			p.mu.Lock()
			drop := answers && p.deaf
			p.mu.Unlock()
			if !drop {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

// before has do called once, before the client's next word passes.
func (p *proxy) before(word string, do func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.word, p.do = []byte(word), do
}

func (p *proxy) passes(said []byte) bool {
	p.mu.Lock()
	do := p.do
	if do == nil || !bytes.Contains(said, p.word) {
		p.mu.Unlock()
		return true
	}
	p.do = nil
	p.mu.Unlock()
	return do()
}

// setDeaf makes the server's answers vanish, or pass again.
func (p *proxy) setDeaf(deaf bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = deaf
}

// cut ends every connection; new ones are accepted.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	shut(p.conns...)
	p.conns = nil
}

// shut closes connections; one that is closed already is as good.
func shut(conns ...net.Conn) {
	for _, c := range conns {
		if err := c.Close(); err != nil {
			continue
		}
	}
}
