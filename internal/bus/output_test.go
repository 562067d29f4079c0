package bus_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

var _ run.Output = (*bus.Output)(nil)

// reader takes events as the Output's documentation tells a reader to: exactly
// the one that follows, passing over all others.
type reader struct {
	mu      sync.Mutex
	next    uint64
	repeats int
	skipped int
	events  []wire.Event
	output  hash.Hash // of stdout's data
	ended   chan struct{}
	fault   error
}

func newReader() *reader { return &reader{next: 1, output: sha256.New(), ended: make(chan struct{})} }

func (r *reader) take(header map[string][]string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ev, err := wire.ParseEvent(header, data)
	if err != nil {
		r.fault = err
		return
	}
	if ev.Type == wire.EventEnd {
		select {
		case <-r.ended:
		default:
			close(r.ended)
		}
		return
	}
	switch {
	case ev.Seq < r.next:
		r.repeats++
	case ev.Seq > r.next:
		r.skipped++
	default:
		r.next++
		ev.Data = bytes.Clone(data[:min(len(data), 256)]) // enough to compare, few to keep
		r.events = append(r.events, ev)
		if ev.Type == wire.EventStdout {
			r.output.Write(data)
		}
	}
}

func (r *reader) types() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, ev := range r.events {
		list = append(list, fmt.Sprintf("%d %s %q", ev.Seq, ev.Type, ev.Data))
	}
	return list
}

func subscribe(t *testing.T, nc *nats.Conn, subject string, r *reader) {
	t.Helper()
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) { r.take(m.Header, m.Data) })
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	require.NoError(t, nc.FlushTimeout(patience))
}

// stored reads the stored events of a job of tenant acme through ReadOutput.
func stored(t *testing.T, b *bus.Bus, id string) *reader {
	t.Helper()
	r := newReader()
	cursor, more := uint64(0), true
	for more {
		var events []bus.StoredEvent
		var err error
		events, more, err = b.ReadOutput(deadline(t), "acme", id, cursor, 64)
		require.NoError(t, err)
		for _, ev := range events {
			require.Greater(t, ev.Cursor, cursor)
			cursor = ev.Cursor
			r.take(ev.Headers, ev.Data)
		}
	}
	require.NoError(t, r.fault)
	return r
}

func stdout(seq uint64, offset int64, data string) wire.Event {
	return wire.Event{Type: wire.EventStdout, Seq: seq, Offset: offset, Data: []byte(data)}
}

const result = `{"v":1,"outcome":"exited"}`

// TestOutputGoesWhereTheModeSays covers every mode with and without a reply
// subject.
func TestOutputGoesWhereTheModeSays(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	nc := plain(t, s)
	all := []string{`1 started "{}"`, `2 stdout "hello"`, `3 stderr "oops"`, `4 result ` + fmt.Sprintf("%q", result)}
	life := []string{`1 started "{}"`}
	tests := []struct {
		mode          wire.OutputMode
		hasReply      bool
		reply, stored []string
	}{
		{wire.OutputStored, false, nil, all},
		{wire.OutputStored, true, life, all},
		{wire.OutputReply, true, all, nil},
		{wire.OutputReply, false, nil, all},
		{wire.OutputBoth, true, all, all},
		{wire.OutputInline, true, life, nil},
		{wire.OutputInline, false, nil, life},
		{wire.OutputNone, true, life, nil},
		{wire.OutputNone, false, nil, life},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprintf("%s reply=%t", tt.mode, tt.hasReply), func(t *testing.T) {
			t.Parallel()
			ctx, id, r := deadline(t), fmt.Sprintf("j%d", i), newReader()
			cfg := bus.OutputConfig{Job: job("acme", "default", id), Attempt: 2, Mode: tt.mode}
			if tt.hasReply {
				cfg.Reply = nats.NewInbox()
				subscribe(t, nc, cfg.Reply, r)
			}
			o := b.NewOutput(cfg)
			require.NoError(t, o.Emit(ctx, wire.Event{Type: wire.EventStarted, Seq: 1, Data: []byte(`{}`)}))
			require.NoError(t, o.Emit(ctx, stdout(2, 0, "hello")))
			require.NoError(t, o.Emit(ctx, wire.Event{Type: wire.EventStderr, Seq: 3, Data: []byte("oops")}))
			lost, err := o.Flush(ctx)
			require.NoError(t, err)
			require.Empty(t, lost)
			require.NoError(t, o.Final(ctx, []byte(result), 4))
			require.NoError(t, o.Final(ctx, []byte(result), 4), "again repeats nothing")
			require.Zero(t, o.Unconfirmed())
			if tt.hasReply {
				<-r.ended
				require.NoError(t, r.fault)
				require.Equal(t, tt.reply, r.types()[:len(tt.reply)])
				last := r.events[len(r.events)-1]
				if len(tt.reply) == 1 { // chunks went elsewhere: the result follows a gap
					require.Equal(t, 1, r.skipped)
				} else {
					require.Equal(t, wire.EventResult, last.Type)
					require.Equal(t, 2, last.Attempt)
					require.Equal(t, "acme."+id, last.Job)
				}
			}
			got := stored(t, b, id)
			require.Zero(t, got.repeats)
			if len(tt.stored) == 1 {
				require.Equal(t, tt.stored, got.types())
				require.Equal(t, 1, got.skipped, "the result")
			} else {
				require.Equal(t, tt.stored, got.types())
			}
		})
	}
}

// TestOutputLiveShowsGaps: the server repeats what it stored, with the sequence
// before it on the same subject.
func TestOutputLive(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	nc := plain(t, s)
	sub, err := nc.SubscribeSync(b.Subjects().Live("acme", "j"))
	require.NoError(t, err)
	require.NoError(t, nc.FlushTimeout(patience))
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	require.NoError(t, o.Emit(deadline(t), stdout(1, 0, "a")))
	require.NoError(t, o.Emit(deadline(t), stdout(2, 1, "b")))
	first, err := sub.NextMsg(patience)
	require.NoError(t, err)
	second, err := sub.NextMsg(patience)
	require.NoError(t, err)
	require.Equal(t, "0", first.Header.Get("Nats-Last-Sequence"))
	require.Equal(t, first.Header.Get("Nats-Sequence"), second.Header.Get("Nats-Last-Sequence"))
	require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", first.Header.Get("traceparent"))
	require.NoError(t, o.Final(deadline(t), []byte(result), 3))
}

// flood emits size bytes in chunks of random length and returns their digest and
// the next sequence number.
func flood(ctx context.Context, o *bus.Output, size int, each func(emitted int)) ([]byte, uint64, error) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sum := sha256.New()
	const period = 251 // prime: no two chunks alike
	buf, pattern := make([]byte, bus.MaxChunkBytes), make([]byte, bus.MaxChunkBytes+period)
	for i := range pattern {
		pattern[i] = byte(i % period)
	}
	seq, offset := uint64(0), int64(0)
	for int(offset) < size {
		n := min(size-int(offset), 1+rnd.IntN(o.MaxChunk()))
		chunk := buf[:n]
		copy(chunk, pattern[offset%period:])
		sum.Write(chunk)
		seq++
		if err := o.Emit(ctx, wire.Event{Type: wire.EventStdout, Seq: seq, Offset: offset, Data: chunk}); err != nil {
			return nil, 0, err
		}
		clear(chunk) // Emit kept nothing of it
		offset += int64(n)
		if each != nil {
			each(int(offset))
		}
	}
	return sum.Sum(nil), seq + 1, nil
}

// TestOutput64MiB brings a flood to each destination, in order, with the window
// never beyond its bound.
func TestOutput64MiB(t *testing.T) {
	t.Parallel()
	for mode, size := range map[wire.OutputMode]int{wire.OutputReply: 64 << 20, wire.OutputStored: 24 << 20} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s, b := setup(t)
			nc := plain(t, s)
			r, cfg := newReader(), bus.OutputConfig{Job: job("acme", "default", "big"), Attempt: 1, Mode: mode}
			if mode == wire.OutputReply {
				cfg.Reply = nats.NewInbox()
				subscribe(t, nc, cfg.Reply, r)
			}
			o := b.NewOutput(cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			most := 0
			sum, next, err := flood(ctx, o, size, func(int) { most = max(most, o.Unconfirmed()) })
			require.NoError(t, err)
			lost, err := o.Flush(ctx)
			require.NoError(t, err)
			require.Empty(t, lost)
			require.NoError(t, o.Final(ctx, []byte(result), next))
			if mode == wire.OutputReply {
				<-r.ended
			} else {
				r = stored(t, b, "big")
			}
			require.Len(t, r.events, int(next))
			require.Equal(t, sum, r.output.Sum(nil))
			require.Zero(t, r.skipped+r.repeats)
			require.LessOrEqual(t, most, 256)
		})
	}
}

// TestOutputHoldsTheProgramBack: without a server that answers, Emit takes one
// window and then blocks until its context ends.
func TestOutputHoldsTheProgramBack(t *testing.T) {
	t.Parallel()
	for _, mode := range []wire.OutputMode{wire.OutputStored, wire.OutputReply} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s, _ := setup(t)
			p := startProxy(t, s)
			b := connect(t, p.url(), nil)
			o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: mode, Reply: "reply.x"})
			p.setDeaf(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			emitted := 0
			_, _, err := flood(ctx, o, 64<<20, func(n int) { emitted = n })
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.LessOrEqual(t, emitted, 2<<20)
			require.Greater(t, emitted, 1<<20)
			n := o.Unconfirmed()
			ended, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer stop()
			lost, err := o.Flush(ended)
			if mode == wire.OutputReply {
				require.NoError(t, err, "replied events stay in front of the result")
				require.Equal(t, n, o.Unconfirmed())
			} else {
				require.ErrorIs(t, err, bus.ErrNotDelivered)
				require.Equal(t, []wire.LostRange{{From: 1, To: uint64(n)}}, lost, "what was given up is declared")
				require.Zero(t, o.Unconfirmed())
			}
			o.Discard()
			require.ErrorIs(t, o.Emit(t.Context(), stdout(9999, 0, "x")), bus.ErrDiscarded)
		})
	}
}

// TestOutputOverRestarts restarts the server in the middle of a flood, and cuts
// the line some more times: every byte arrives, in order.
func TestOutputOverRestarts(t *testing.T) {
	t.Parallel()
	for _, mode := range []wire.OutputMode{wire.OutputStored, wire.OutputReply} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s, direct := setup(t)
			p := startProxy(t, s)
			b := connect(t, p.url(), nil)
			nc := plain(t, s)
			r := newReader()
			cfg := bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: mode}
			if mode == wire.OutputReply {
				cfg.Reply = nats.NewInbox()
				subscribe(t, nc, cfg.Reply, r)
			}
			o := b.NewOutput(cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cuts := 0
			sum, next, err := flood(ctx, o, 24<<20, func(n int) {
				switch {
				case n > 8<<20 && cuts == 0, n > 12<<20 && cuts == 1, n > 16<<20 && cuts == 2:
					cuts++
					p.cut()
				case n > 20<<20 && cuts == 3 && mode == wire.OutputStored:
					cuts++
					again := restartable(t, s)
					stopServer(s)
					again()
				}
			})
			require.NoError(t, err)
			lost, err := o.Flush(ctx)
			require.NoError(t, err)
			require.Empty(t, lost)
			require.NoError(t, o.Final(ctx, []byte(result), next))
			require.Positive(t, b.Reconnects())
			if mode == wire.OutputReply {
				<-r.ended
			} else {
				require.Eventually(t, direct.Connected, patience, 10*time.Millisecond)
				r = stored(t, direct, "j")
			}
			require.NoError(t, r.fault)
			require.Zero(t, r.skipped, "what was sent again came in order")
			require.Len(t, r.events, int(next))
			require.Equal(t, sum, r.output.Sum(nil))
			t.Logf("%d repeats", r.repeats)
		})
	}
}

// TestOutputIdleOverReconnect: what a job wrote before it fell silent arrives
// although its connection broke at once and the job writes nothing more.
func TestOutputIdleOverReconnect(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	p := startProxy(t, s)
	b := connect(t, p.url(), nil)
	nc := plain(t, s)
	r, inbox := newReader(), nats.NewInbox()
	subscribe(t, nc, inbox, r)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputReply, Reply: inbox})
	p.cut()
	require.NoError(t, o.Emit(deadline(t), stdout(1, 0, "still here")))
	require.Eventually(t, func() bool { return len(r.types()) == 1 }, patience, 5*time.Millisecond)
	require.NoError(t, o.Final(deadline(t), []byte(result), 2))
}

func TestOutputMaxPayload(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.MessageBytes = 64 << 10
	apply(t, b, cfg)
	nc := plain(t, s)
	r, inbox := newReader(), nats.NewInbox()
	subscribe(t, nc, inbox, r)
	o := b.NewOutput(bus.OutputConfig{
		Job: job(strings.Repeat("t", 64), "default", strings.Repeat("i", 64)), Attempt: 1 << 30, Mode: wire.OutputBoth, Reply: inbox,
		Trace: strings.Repeat("0", 55),
	})
	require.Less(t, o.MaxChunk(), 64<<10)
	require.Greater(t, o.MaxChunk(), 60<<10)
	full := wire.Event{Type: wire.EventStdout, Seq: 1, Offset: 1 << 62, Data: make([]byte, o.MaxChunk())}
	require.NoError(t, o.Emit(deadline(t), full), "a chunk of the greatest size goes through")
	full.Data = make([]byte, o.MaxChunk()+1)
	require.ErrorIs(t, o.Emit(deadline(t), full), bus.ErrTooBig)
	require.ErrorIs(t, o.Final(deadline(t), make([]byte, 64<<10), 2), bus.ErrTooBig)
	require.NoError(t, o.Final(deadline(t), []byte(result), 2), "without inline output")
	<-r.ended
	require.Len(t, r.types(), 2)
	require.Empty(t, o.Lost())
}

// TestOutputStreamRefusesTheSize: the stream's bound is below the server's. The
// result goes nowhere until it fits, so no reader sees two.
func TestOutputStreamRefusesTheSize(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.MessageBytes = 64 << 10
	apply(t, b, cfg)
	nc := plain(t, s)
	r, inbox := newReader(), nats.NewInbox()
	subscribe(t, nc, inbox, r)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputBoth, Reply: inbox})
	require.NoError(t, o.Emit(deadline(t), wire.Event{Type: wire.EventStdout, Seq: 1, Data: make([]byte, 100<<10)}))
	lost, err := o.Flush(deadline(t))
	require.NoError(t, err)
	require.Equal(t, []wire.LostRange{{From: 1, To: 1}}, lost)
	require.ErrorIs(t, o.Final(deadline(t), make([]byte, 100<<10), 2), bus.ErrTooBig)
	require.NoError(t, o.Final(deadline(t), []byte(result), 2))
	<-r.ended
	got := r.types()
	require.Len(t, got, 2)
	require.Equal(t, "2 result "+fmt.Sprintf("%q", result), got[1])
}

// TestOutputWithoutStream: nothing takes exec.out; the final waits, and goes
// through when the stream is there.
func TestOutputWithoutStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	require.NoError(t, o.Emit(deadline(t), stdout(1, 0, "a")))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, o.Final(ctx, []byte(result), 2), bus.ErrNotDelivered)
	apply(t, b, small())
	require.NoError(t, o.Final(deadline(t), []byte(result), 2))
	got := stored(t, b, "j")
	require.Equal(t, []string{`1 stdout "a"`, `2 result ` + fmt.Sprintf("%q", result)}, got.types())
}

// TestOutputRefused: the stream refuses (it was set to discard new and is full);
// once there is room, everything is there, in order.
func TestOutputRefused(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	stream, err := b.JS().Stream(deadline(t), b.Streams().Out)
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	cfg.Discard, cfg.MaxMsgs = jetstream.DiscardNew, 3
	_, err = b.JS().UpdateStream(deadline(t), cfg)
	require.NoError(t, err)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	for i := range 20 {
		require.NoError(t, o.Emit(deadline(t), stdout(uint64(i+1), int64(i), "x")))
	}
	require.Eventually(t, func() bool { return o.Unconfirmed() == 17 }, patience, 5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, o.Final(ctx, []byte(result), 21), bus.ErrNotDelivered, "refused is not delivered")
	cfg.MaxMsgs = -1
	_, err = b.JS().UpdateStream(deadline(t), cfg)
	require.NoError(t, err)
	require.NoError(t, o.Final(deadline(t), []byte(result), 21))
	got := stored(t, b, "j")
	require.Len(t, got.types(), 21)
	require.Zero(t, got.skipped)
}

// TestOutputLostAcknowledgements: the line stays up, the stream's answers do not
// come: after a while the events are sent again, and a reader drops them.
func TestOutputLostAcknowledgements(t *testing.T) {
	t.Parallel()
	s, direct := setup(t)
	p := startProxy(t, s)
	b := connect(t, p.url(), func(o *bus.Options) { o.RequestTimeout = 100 * time.Millisecond })
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	p.setDeaf(true)
	for i := range 3 {
		require.NoError(t, o.Emit(deadline(t), stdout(uint64(i+1), int64(i), "x")))
	}
	require.Eventually(t, func() bool { return stored(t, direct, "j").repeats >= 3 }, patience, 20*time.Millisecond)
	require.Equal(t, 3, o.Unconfirmed())
	p.setDeaf(false)
	require.NoError(t, o.Final(deadline(t), []byte(result), 4))
	got := stored(t, direct, "j")
	require.Len(t, got.types(), 4)
	require.Zero(t, got.skipped)
}

// TestFinalOverRestart: a final while the server is down
// is an error, and arrives when it is back.
func TestFinalOverRestart(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	cfg := bus.FinalConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored}
	o := b.NewOutput(cfg)
	require.NoError(t, o.Emit(deadline(t), stdout(1, 0, "a")))
	_, err := o.Flush(deadline(t))
	require.NoError(t, err)
	again := restartable(t, s)
	stopServer(s)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, o.Final(ctx, []byte(result), 2), bus.ErrNotDelivered)
	require.Error(t, b.PublishFinal(ctx, cfg, []byte(result), 2))
	again()
	require.NoError(t, o.Final(deadline(t), []byte(result), 2))
	require.Eventually(t, b.Connected, patience, 5*time.Millisecond)
	require.NoError(t, b.PublishFinal(deadline(t), cfg, []byte(result), 2), "a repeated final")
	got := stored(t, b, "j")
	require.Equal(t, []string{`1 stdout "a"`, `2 result ` + fmt.Sprintf("%q", result)}, got.types())
	require.Positive(t, got.repeats)
}

// TestOutputManyJobsShareTheBudget: more jobs than the process's budget has
// windows, all stuck; when the line is back, all of them end.
func TestOutputManyJobsShareTheBudget(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	p := startProxy(t, s)
	b := connect(t, p.url(), nil)
	p.setDeaf(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const jobs, each = 24, 3 << 20
	var wg sync.WaitGroup
	errs := make([]error, jobs)
	for i := range jobs {
		wg.Go(func() {
			o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", fmt.Sprintf("j%d", i)), Attempt: 1, Mode: wire.OutputReply, Reply: "reply.nobody"})
			_, next, err := flood(ctx, o, each, nil)
			if err == nil {
				err = o.Final(ctx, []byte(result), next)
			}
			errs[i] = err
		})
	}
	p.setDeaf(false)
	p.cut()
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func TestReadOutputPages(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	events, more, err := b.ReadOutput(deadline(t), "acme", "none", 0, 10)
	require.NoError(t, err)
	require.Empty(t, events)
	require.False(t, more)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	for i := range 10 {
		require.NoError(t, o.Emit(deadline(t), stdout(uint64(i+1), int64(i), "x")))
	}
	require.NoError(t, o.Final(deadline(t), []byte(result), 11))
	events, more, err = b.ReadOutput(deadline(t), "acme", "j", 0, 8)
	require.NoError(t, err)
	require.Len(t, events, 8)
	require.True(t, more)
	events, more, err = b.ReadOutput(deadline(t), "acme", "j", events[7].Cursor, 8)
	require.NoError(t, err)
	require.Len(t, events, 3)
	require.False(t, more)
	events, more, err = b.ReadOutput(deadline(t), "acme", "j", math.MaxUint64, 8)
	require.NoError(t, err)
	require.False(t, more)
	require.Empty(t, events, "nothing is behind the greatest cursor")
	_, _, err = b.ReadOutput(deadline(t), "acme", "*", 0, 8)
	require.Error(t, err)
}
