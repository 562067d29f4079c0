package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestEnqueue(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx := deadline(t)
	headers := map[string][]string{
		wire.HeaderReplyTo: {"reply.acme.x"}, "traceparent": {"00-a\r\nNats-Rollup: all"},
		"Nats-Rollup": {"all"}, "Status": {"409"}, "nats-msg-id": {"x"}, "KV-Operation": {"DEL"},
	}
	require.NoError(t, b.Enqueue(ctx, job("acme", "default", "j1"), []byte(`{"v":1}`), headers))
	m, err := b.QueuedMessage(ctx, "acme", "j1")
	require.NoError(t, err)
	require.Equal(t, job("acme", "default", "j1"), m.Job)
	require.Equal(t, `{"v":1}`, string(m.Body))
	require.Equal(t, []string{"reply.acme.x"}, m.Headers[wire.HeaderReplyTo])
	require.Positive(t, m.Seq)
	require.False(t, m.Time.IsZero())
	for name, values := range m.Headers {
		require.NotContains(t, []string{"Nats-Rollup", "Status", "Nats-Msg-Id", "nats-msg-id", "KV-Operation"}, name)
		require.NotContains(t, strings.Join(values, ""), "\n")
	}

	err = b.Enqueue(ctx, job("acme", "default", "j1"), []byte(`{"v":1}`), nil)
	require.ErrorIs(t, err, bus.ErrAlreadyQueued)
	require.NotErrorIs(t, err, bus.ErrQueueFull)
	require.NoError(t, b.Enqueue(ctx, job("other", "default", "j1"), nil, nil), "ids are a tenant's own")

	_, err = b.QueuedMessage(ctx, "acme", "j2")
	require.ErrorIs(t, err, bus.ErrNotQueued)
	for _, bad := range []wire.Job{job("a.b", "default", "j"), job("*", "default", "j"), job("a", ">", "j"), job("a", "default", "")} {
		require.Error(t, b.Enqueue(ctx, bad, nil, nil), "%v", bad)
		_, err := b.QueuedMessage(ctx, bad.Tenant, bad.ID)
		require.Error(t, err)
	}
	err = b.Enqueue(ctx, job("acme", "default", "big"), make([]byte, 2<<20), nil)
	require.ErrorIs(t, err, bus.ErrRecordTooBig)
}

func TestEnqueueFull(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	ctx := deadline(t)
	require.ErrorIs(t, b.Enqueue(ctx, job("acme", "default", "j"), nil, nil), bus.ErrNoStream)

	cfg := small()
	cfg.JobsMessages = 3
	apply(t, b, cfg)
	for i := range 3 {
		require.NoError(t, b.Enqueue(ctx, job("acme", "default", fmt.Sprint("j", i)), []byte("x"), nil))
	}
	err := b.Enqueue(ctx, job("acme", "default", "j9"), []byte("x"), nil)
	require.ErrorIs(t, err, bus.ErrQueueFull)
	require.NotErrorIs(t, err, bus.ErrAlreadyQueued)
	err = b.Enqueue(ctx, job("acme", "default", "j0"), []byte("x"), nil)
	require.ErrorIs(t, err, bus.ErrAlreadyQueued, "full and there: it is there")
}

func TestEnqueueFullByBytes(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.JobsBytes, cfg.RequestBytes = 1<<20, 1<<20
	apply(t, b, cfg)
	var err error
	n := 0
	for ; err == nil && n < 20; n++ {
		err = b.Enqueue(deadline(t), job("acme", "default", fmt.Sprint("j", n)), make([]byte, 200<<10), nil)
	}
	require.ErrorIs(t, err, bus.ErrQueueFull)
	_, err = b.QueuedMessage(deadline(t), "acme", "j0")
	require.NoError(t, err, "the oldest job is still there")
}

func TestEnqueueOneWinner(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	var won, lost atomic.Int32
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			err := []*bus.Bus{b, other}[i%2].Enqueue(deadline(t), job("acme", "default", "j"), fmt.Append(nil, i), nil)
			switch {
			case err == nil:
				won.Add(1)
			case errors.Is(err, bus.ErrAlreadyQueued):
				lost.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 19, lost.Load())
}

// TestEnqueueLostAnswer: the message is stored, its answer is lost.
func TestEnqueueLostAnswer(t *testing.T) {
	t.Parallel()
	s, direct := setup(t)
	p := startProxy(t, s)
	b := connect(t, p.url(), func(o *bus.Options) { o.RequestTimeout = 300 * time.Millisecond })
	p.setDeaf(true)
	err := b.Enqueue(deadline(t), job("acme", "default", "j"), []byte("body"), nil)
	require.ErrorIs(t, err, bus.ErrUnknown)
	_, err = direct.QueuedMessage(deadline(t), "acme", "j")
	require.NoError(t, err)
	p.setDeaf(false)
	p.cut()
	require.Eventually(t, func() bool { return b.Reconnects() >= 2 && b.Connected() }, patience, 5*time.Millisecond)
	require.ErrorIs(t, b.Enqueue(deadline(t), job("acme", "default", "j"), []byte("body"), nil), bus.ErrAlreadyQueued)
}

func letter(id string, body []byte) wire.DeadLetter {
	return wire.DeadLetter{
		V: 1, Tenant: "acme", Queue: "default", ID: id, Subject: "exec.job.acme.default." + id, Seq: 5,
		Reason: wire.ReasonNotJSON, Message: "the body is not JSON", Body: body, Worker: "w1", At: time.Now().UTC().Truncate(time.Second),
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx := deadline(t)
	_, err := b.Dead().Get(ctx, job("acme", "default", "j1"))
	require.ErrorIs(t, err, bus.ErrNoRecord)
	list, err := b.Dead().List(ctx)
	require.NoError(t, err)
	require.Empty(t, list)

	for i := range 40 {
		require.NoError(t, b.Dead().Put(ctx, letter(fmt.Sprintf("j%02d", i), []byte("{not json"))))
	}
	again := letter("j00", []byte("newer"))
	require.NoError(t, b.Dead().Put(ctx, again), "the newest stays")
	got, err := b.Dead().Get(ctx, job("acme", "default", "j00"))
	require.NoError(t, err)
	require.Equal(t, again, got.Letter)
	list, err = b.Dead().List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 40)
	require.Equal(t, "j01", list[0].Letter.ID)
	require.Equal(t, "j00", list[39].Letter.ID, "oldest first")
}

func TestDeadLetterIsCutToFit(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.MessageBytes = 64 << 10
	apply(t, b, cfg)
	big := letter("j1", make([]byte, 500<<10))
	big.Headers = map[string][]string{"X-Big": {strings.Repeat("h", 60<<10)}}
	require.NoError(t, b.Dead().Put(deadline(t), big))
	got, err := b.Dead().Get(deadline(t), job("acme", "default", "j1"))
	require.NoError(t, err)
	require.True(t, got.Letter.BodyCut)
	require.Len(t, big.Body, 500<<10, "the caller's letter is untouched")
}

func TestDeadLettersFull(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	require.ErrorIs(t, b.Dead().Put(deadline(t), letter("j", nil)), bus.ErrNoStream)
	cfg := small()
	cfg.DeadBytes = 1 << 20
	apply(t, b, cfg)
	var err error
	for i := 0; err == nil && i < 30; i++ {
		err = b.Dead().Put(deadline(t), letter(fmt.Sprint("j", i), make([]byte, 100<<10)))
	}
	require.ErrorIs(t, err, bus.ErrStreamFull)
	_, err = b.Dead().Get(deadline(t), job("acme", "default", "j0"))
	require.NoError(t, err, "nothing was pushed out")
}
