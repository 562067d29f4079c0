package consumer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// proxy stands between a worker and the server. While it is frozen it takes
// everything and passes nothing on: the worst kind of outage, because no call
// fails at once.
type proxy struct {
	net.Listener
	t      *testing.T
	to     string
	frozen atomic.Bool
	deaf   atomic.Bool // only what the server says is held back
	thaw   chan struct{}
	mu     sync.Mutex
	conns  []net.Conn
	wg     sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l, t: t, to: to, thaw: make(chan struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		shut(t, l)
		p.release()
		p.mu.Lock()
		for _, c := range p.conns {
			shut(t, c)
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) release() {
	if p.frozen.Swap(false) {
		close(p.thaw)
	}
}

// shut closes what may be closed already.
func shut(t *testing.T, c io.Closer) {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("close: %v", err)
	}
}

func (p *proxy) accept() {
	for {
		in, err := p.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			shut(p.t, in)
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { p.pipe(out, in, false) })
		p.wg.Go(func() { p.pipe(in, out, true) })
	}
}

func (p *proxy) pipe(to io.WriteCloser, from io.Reader, answers bool) {
	defer shut(p.t, to)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if p.frozen.Load() && (answers || !p.deaf.Load()) {
			<-p.thaw
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func TestSelfFenceBehindASilentNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, strings.TrimPrefix(w.ClientURL(), "nats://"))
	far := w.busAt(p.Addr().String())
	r := w.read()
	cause := make(chan error, 1)
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return exited(0) // even a clean end in the meantime must not count
	}
	c, err := consumer.New(far, h, zerolog.Nop(), func() consumer.Config {
		cfg := w.config("far")
		cfg.SettleTimeout = 300 * time.Millisecond
		return cfg
	}())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, c.Run(ctx)) })
	t.Cleanup(func() { cancel(); p.release(); wg.Wait() })

	w.put(job("a"), `{"v":1,"argv":["true"],"retry":{"if_lost":true}}`, replyTo(r))
	eventually(t, soon, func() bool { return h.started(job("a")) == 1 }, "not started")
	p.frozen.Store(true)
	began := time.Now()
	near := sleeper(0)
	w.work("near", near, nil)
	select {
	case err := <-cause:
		require.ErrorIs(t, err, run.ErrFenced)
		require.Less(t, time.Since(began), ackWait, "ended only after another may have begun")
	case <-time.After(soon):
		require.Fail(t, "not fenced")
	}
	eventually(t, soon, func() bool { return c.Ready() != nil }, "ready behind a dead network")
	require.Zero(t, near.started(job("a")), "taken over before the owner's end")
	res := w.result(r)
	require.Equal(t, []any{wire.Exited, 2, "near"}, []any{res.Outcome, res.Attempt, res.Worker.ID})
	p.release()
	w.empty()
	require.Equal(t, "near", w.record("a").Record.Worker)
	// The one decision may be repeated, to the byte.
	for _, m := range r.results() {
		require.Equal(t, r.results()[0].Data, m.Data)
	}
}

func (w *world) busAt(addr string) *bus.Bus {
	w.t.Helper()
	b, err := bus.Connect(w.t.Context(), bus.Options{Servers: "nats://" + addr, Log: zerolog.Nop(), NATS: []nats.Option{nats.Timeout(time.Second)}})
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			w.t.Logf("close: %v", err)
		}
	})
	return b
}

// TestClaimWhoseAnswerIsLost: the claim stands at the leader, the worker cannot
// know it. Nothing was started, so nothing may end as lost.
func TestClaimWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, strings.TrimPrefix(w.ClientURL(), "nats://"))
	p.deaf.Store(true)
	r := w.read()
	var tries atomic.Int64
	h := &handler{}
	h.run = func(ctx context.Context, a run.Attempt, g run.Gate, _ run.Output) run.Outcome {
		if tries.Add(1) == 1 {
			p.frozen.Store(true)
			err := g.Claim(ctx, "l")
			if !errors.Is(err, bus.ErrUnknown) {
				t.Errorf("claim: %v", err)
			}
			s, getErr := w.bus.Runs().Get(ctx, "t1", "a")
			if getErr != nil || s.Record.State != wire.RunClaimed {
				t.Errorf("the claim does not stand there: %v", getErr)
			}
			p.release()
			return run.Outcome{Abandoned: true, Err: err}
		}
		if o := h.start(ctx, a, g); o != nil {
			return *o
		}
		return exited(0)
	}
	c, err := consumer.New(w.busAt(p.Addr().String()), h, zerolog.Nop(), w.config("far"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, c.Run(ctx)) })
	t.Cleanup(func() { cancel(); p.release(); wg.Wait() })
	w.put(job("a"), trueBody, replyTo(r))
	res := w.result(r)
	require.Equal(t, []any{wire.Exited, 1}, []any{res.Outcome, res.Attempt})
	w.empty()
	require.Equal(t, 1, h.started(job("a")))
}
