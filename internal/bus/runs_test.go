package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

func job(tenant, queue, id string) wire.Job { return wire.Job{Tenant: tenant, Queue: queue, ID: id} }

func TestRunsLifeOfARecord(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	ctx, runs := deadline(t), b.Runs()

	_, err := runs.Get(ctx, "acme", "j1")
	require.ErrorIs(t, err, bus.ErrNoRecord)

	before := time.Now()
	first, err := runs.Create(ctx, "acme", "j1", claimed("t1"))
	require.NoError(t, err)
	stored, err := runs.Get(ctx, "acme", "j1")
	require.NoError(t, err)
	require.Equal(t, first, stored.Seq)
	require.Equal(t, claimed("t1"), stored.Record)
	require.WithinDuration(t, before, stored.Time, patience)
	now, err := b.ServerTime(ctx)
	require.NoError(t, err)
	require.False(t, now.Before(stored.Time), "the record's time is the server's, before its now")

	_, err = runs.Create(ctx, "acme", "j1", claimed("t2"))
	require.ErrorIs(t, err, bus.ErrConflict)
	again, err := runs.Create(ctx, "acme", "j1", claimed("t1"))
	require.NoError(t, err, "our own record is no conflict")
	require.Equal(t, first, again)

	renewal := claimed("t1")
	renewal.Renewals, renewal.Started = 1, true
	second, err := runs.Update(ctx, "acme", "j1", renewal, first)
	require.NoError(t, err)
	require.Greater(t, second, first)
	_, err = runs.Update(ctx, "acme", "j1", claimed("t3"), first)
	require.ErrorIs(t, err, bus.ErrConflict, "the epoch has moved on")

	done := renewal
	done.State, done.Result = wire.RunDone, wire.RawResult(`{"v":1}`)
	third, err := runs.Update(ctx, "acme", "j1", done, second)
	require.NoError(t, err)
	stored, err = runs.Get(ctx, "acme", "j1")
	require.NoError(t, err)
	require.Equal(t, third, stored.Seq)
	require.Equal(t, `{"v":1}`, string(stored.Record.Result))

	raw, err := b.JS().Stream(ctx, b.Streams().Runs)
	require.NoError(t, err)
	msg, err := raw.GetLastMsgForSubject(ctx, b.Subjects().Run("acme", "j1"))
	require.NoError(t, err)
	require.Equal(t, "168h0m0s", msg.Header.Get("Nats-TTL"), "terminal records end by themselves")

	_, err = runs.Get(ctx, "a.b", "j")
	require.Error(t, err)
	_, err = runs.Create(ctx, "*", "j", claimed("t"))
	require.Error(t, err)
	_ = s
}

func TestRunsTerminalRecordExpires(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), func(o *bus.Options) { o.ResultRetention = time.Second })
	apply(t, b, small())
	rec := claimed("t")
	rec.State, rec.Result = wire.RunDone, wire.RawResult(`{}`)
	_, err := b.Runs().Create(deadline(t), "acme", "j", rec)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := b.Runs().Get(deadline(t), "acme", "j")
		return errors.Is(err, bus.ErrNoRecord)
	}, patience, 50*time.Millisecond)
}

func TestRunsConcurrentCreatesHaveOneWinner(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	ctx := deadline(t)
	const keys, creators = 50, 6
	wins := make([][]string, keys)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for k := range keys {
		for c := range creators {
			wg.Go(func() {
				who := []*bus.Bus{b, other}[c%2]
				token := fmt.Sprintf("token-%d", c)
				_, err := who.Runs().Create(ctx, "acme", fmt.Sprintf("j%d", k), claimed(token))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					wins[k] = append(wins[k], token)
				} else if !errors.Is(err, bus.ErrConflict) {
					wins[k] = append(wins[k], err.Error())
				}
			})
		}
	}
	wg.Wait()
	for k := range keys {
		require.Len(t, wins[k], 1)
		stored, err := b.Runs().Get(ctx, "acme", fmt.Sprintf("j%d", k))
		require.NoError(t, err)
		require.Equal(t, wins[k][0], stored.Record.Token)
	}
}

// bigResult is an encoded result of about n bytes.
func bigResult(n int) wire.RawResult {
	return wire.RawResult(`{"v":1,"message":"` + strings.Repeat("x", n) + `"}`)
}

func TestRunsTooBig(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.MaxPayload = 256 << 10 })
	b := connect(t, s.ClientURL(), nil)
	apply(t, b, small())
	rec := claimed("t")
	rec.State, rec.Result = wire.RunDone, bigResult(300<<10)
	_, err := b.Runs().Create(deadline(t), "acme", "j", rec)
	require.ErrorIs(t, err, bus.ErrRecordTooBig)
	rec.Result = bigResult(2 << 20)
	_, err = b.Runs().Create(deadline(t), "acme", "j", rec)
	require.ErrorIs(t, err, bus.ErrRecordTooBig, "beyond any server's default")
	_, err = b.Runs().Get(deadline(t), "acme", "j")
	require.ErrorIs(t, err, bus.ErrNoRecord)
}

// TestRunsStreamRefusesTheSize: the stream's own bound, below the server's.
func TestRunsStreamRefusesTheSize(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.MessageBytes = 64 << 10
	apply(t, b, cfg)
	rec := claimed("t")
	rec.State, rec.Result = wire.RunDone, bigResult(100<<10)
	_, err := b.Runs().Create(deadline(t), "acme", "j", rec)
	require.ErrorIs(t, err, bus.ErrRecordTooBig)
}

func TestRunsFullStreamAndPressure(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	cfg := small()
	cfg.RunsBytes, cfg.MessageBytes = 1<<20, 256<<10
	apply(t, b, cfg)
	ctx := deadline(t)
	require.NoError(t, b.Pressure(ctx))
	rec := claimed("t")
	rec.State, rec.Result = wire.RunDone, bigResult(100<<10)
	var err error
	pressed := 0
	for i := 0; err == nil; i++ {
		require.Less(t, i, 20)
		if b.Pressure(ctx) == nil {
			pressed = i + 1
		}
		_, err = b.Runs().Create(ctx, "acme", fmt.Sprintf("j%d", i), rec)
	}
	require.ErrorIs(t, err, bus.ErrStreamFull)
	err = b.Pressure(ctx)
	require.ErrorIs(t, err, bus.ErrPressure)
	require.ErrorContains(t, err, "EXEC_RUNS")
	require.NotContains(t, err.Error(), "EXEC_LEDGER")
	require.Positive(t, pressed, "no pressure while there is room")
}

func TestRunsWithoutStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	_, err := b.Runs().Create(deadline(t), "acme", "j", claimed("t"))
	require.ErrorIs(t, err, bus.ErrNoStream)
}

// TestRunsLostAnswer loses the server's answer to a create that was stored. Once
// answers pass again, the record is found to be ours.
func TestRunsLostAnswer(t *testing.T) {
	t.Parallel()
	for _, mine := range []bool{true, false} {
		t.Run(fmt.Sprintf("ours=%t", mine), func(t *testing.T) {
			t.Parallel()
			s, direct := setup(t)
			p := startProxy(t, s)
			b := connect(t, p.url(), func(o *bus.Options) { o.RequestTimeout = 200 * time.Millisecond })
			ctx := deadline(t)
			if !mine {
				_, err := direct.Runs().Create(ctx, "acme", "j", claimed("theirs"))
				require.NoError(t, err)
			}
			p.setDeaf(true)
			type outcome struct {
				seq uint64
				err error
			}
			done := make(chan outcome, 1)
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				seq, err := b.Runs().Create(ctx, "acme", "j", claimed("ours"))
				done <- outcome{seq, err}
			})
			// The write has arrived, its answer has not.
			require.Eventually(t, func() bool {
				_, err := direct.Runs().Get(ctx, "acme", "j")
				return err == nil
			}, patience, 5*time.Millisecond)
			require.Eventually(t, func() bool { return len(done) == 0 }, time.Second, time.Millisecond)
			p.setDeaf(false)
			p.cut() // bytes were dropped: the old connections are out of step
			got := <-done
			if !mine {
				require.ErrorIs(t, got.err, bus.ErrConflict)
				return
			}
			require.NoError(t, got.err)
			stored, err := direct.Runs().Get(ctx, "acme", "j")
			require.NoError(t, err)
			require.Equal(t, stored.Seq, got.seq)
			require.Equal(t, "ours", stored.Record.Token)
		})
	}
}

func TestRunsUnknownWhenNobodyAnswers(t *testing.T) {
	t.Parallel()
	s, direct := setup(t)
	p := startProxy(t, s)
	b := connect(t, p.url(), func(o *bus.Options) { o.RequestTimeout = 100 * time.Millisecond })
	p.setDeaf(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := b.Runs().Create(ctx, "acme", "j", claimed("ours"))
	require.ErrorIs(t, err, bus.ErrUnknown)
	stored, err := direct.Runs().Get(deadline(t), "acme", "j")
	require.NoError(t, err, "it was written all the same: unknown is not no")
	require.Equal(t, "ours", stored.Record.Token)
}
