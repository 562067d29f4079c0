package integration

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/wire"
)

// soak is n in an ordinary run of the tests, and many where they are to find what
// fails rarely.
func soak(n, many int) int {
	if soaking {
		return many
	}
	return n
}

// broker is a server that a test stops and starts again, on its port and with
// its store.
type broker struct {
	t      *testing.T
	srv    *server.Server
	change func(*server.Options)
}

// newBrokerStack is a stack with a configuration and a server of its own. Its
// own connection outlives every outage.
func newBrokerStack(t *testing.T, config string, change func(*server.Options)) (*stack, *broker) {
	t.Helper()
	dir := t.TempDir()
	port := freePort(t)
	_, number, err := net.SplitHostPort(port)
	require.NoError(t, err)
	b := &broker{t: t, change: func(o *server.Options) {
		o.MaxPayload, o.StoreDir = 8<<20, filepath.Join(dir, "nats")
		p, err := net.LookupPort("tcp", number)
		require.NoError(t, err)
		o.Port = p
		if change != nil {
			change(o)
		}
	}}
	b.start()
	s := &stack{t: t, url: b.srv.ClientURL(), dir: dir, config: filepath.Join(dir, "sallyport.yaml")}
	require.NoError(t, os.WriteFile(s.config, []byte(config), 0o600))
	s.nc, err = nats.Connect(s.url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(s.nc.Close)
	s.js, err = jetstream.New(s.nc)
	require.NoError(t, err)
	return s.apply(), b
}

func (b *broker) start() {
	b.t.Helper()
	b.srv = bustest.Server(b.t, b.change)
}

func (b *broker) stop() {
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
}

// through is the same stack for services that reach the server by way of p.
func (s *stack) through(p *proxy) *stack {
	via := *s
	via.url = "nats://" + p.listener.Addr().String()
	return &via
}

// submitWatched publishes a request and calls sees for each of its events as they
// come, until it says true: then the channel is closed.
func (s *stack) submitWatched(id string, r wire.Request, sees func(wire.Event) bool) (*followed, <-chan struct{}) {
	s.t.Helper()
	inbox := s.nc.NewInbox()
	own, err := s.nc.SubscribeSync(inbox)
	require.NoError(s.t, err)
	require.NoError(s.t, own.SetPendingLimits(-1, -1))
	seen, over := make(chan struct{}), false
	tap, err := s.nc.Subscribe(inbox, func(m *nats.Msg) {
		ev, err := wire.ParseEvent(m.Header, m.Data)
		if over = over || err == nil && sees(ev); over {
			select {
			case <-seen:
			default:
				close(seen)
			}
		}
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		if err := tap.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			s.t.Errorf("unsubscribe: %v", err)
		}
	})
	r.V = wire.Version
	body, err := wire.EncodeRequest(&r)
	require.NoError(s.t, err)
	f := s.publish(id, body, nats.Header{wire.HeaderReplyTo: {inbox}})
	require.NoError(s.t, f.sub.Unsubscribe())
	f.sub = own
	return f, seen
}

// started publishes a request and returns once its program runs, with what the
// started event says.
func (s *stack) started(id string, r wire.Request) (*followed, wire.Started) {
	s.t.Helper()
	var begun wire.Started
	f, seen := s.submitWatched(id, r, func(ev wire.Event) bool {
		if ev.Type != wire.EventStarted {
			return false
		}
		b, err := wire.DecodeStarted(ev.Data)
		if err != nil {
			s.t.Errorf("started event: %v", err)
			return true
		}
		begun = *b
		return true
	})
	s.within(seen, "job %s did not start", id)
	return f, begun
}

// within waits for a channel to close.
func (s *stack) within(seen <-chan struct{}, format string, args ...any) {
	s.t.Helper()
	select {
	case <-seen:
	case <-time.After(patience):
		require.Failf(s.t, "too late", format, args...)
	}
}

// cancel asks the gateway for the end of a job and returns how long the answer
// took.
func (s *stack) cancel(id string) time.Duration {
	s.t.Helper()
	began := time.Now()
	_, err := s.client().Cancel(s.t.Context(), id)
	require.NoError(s.t, err)
	return time.Since(began)
}

// consumerInfo is what the server says about the default queue's consumer.
func (s *stack) consumerInfo() *jetstream.ConsumerInfo {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	c, err := s.js.Consumer(ctx, "EXEC_JOBS", "w-default")
	require.NoError(s.t, err)
	return c.CachedInfo()
}

// proxy stands between services and the server: it can cut connections, hold the
// server's words or all words back, delay and throttle.
type proxy struct {
	t        *testing.T
	listener net.Listener
	to       string
	wg       sync.WaitGroup
	closed   chan struct{}

	mu      sync.Mutex
	free    chan struct{} // closed while words pass
	deaf    bool          // only the server's words are held back
	delay   time.Duration // of what goes to the server
	perByte time.Duration // of what goes to the server
	conns   []net.Conn
}

func newProxy(t *testing.T, url string) *proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{t: t, listener: l, to: strings.TrimPrefix(url, "nats://"), closed: make(chan struct{}), free: make(chan struct{})}
	close(p.free)
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		close(p.closed)
		p.shut(l)
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) shut(c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Errorf("proxy: %v", err)
	}
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			p.shut(in) // the server is away
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { p.pipe(out, in, false) })
		p.wg.Go(func() { p.pipe(in, out, true) })
	}
}

// cut ends every connection; new ones are accepted.
func (p *proxy) cut() {
	p.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, c := range conns {
		p.shut(c)
	}
}

// hold keeps back all words, or the server's alone, until the returned function
// is called.
func (p *proxy) hold(deaf bool) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make(chan struct{})
	p.free, p.deaf = held, deaf
	return sync.OnceFunc(func() { close(held) })
}

func (p *proxy) slow(delay, perByte time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.perByte = delay, perByte
}

func (p *proxy) pipe(to, from net.Conn, answers bool) {
	defer p.shut(to)
	defer p.shut(from)
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pass(n, answers) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until n bytes may go on; false means never.
func (p *proxy) pass(n int, answers bool) bool {
	p.mu.Lock()
	free, wait := p.free, p.delay+time.Duration(n)*p.perByte
	if answers {
		wait = 0
	} else if p.deaf {
		free = nil
	}
	p.mu.Unlock()
	if free != nil {
		select {
		case <-free:
		case <-p.closed:
			return false
		}
	}
	if wait == 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.closed:
		return false
	}
}
