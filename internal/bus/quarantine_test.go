package bus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

func quarantined(lease string) wire.Quarantine {
	return wire.Quarantine{
		V: 1, State: wire.InQuarantine, Lease: lease, Provider: "local", Host: "host1", Worker: "w1", Tenant: "acme", Job: "j1",
		Reason: wire.QuarantineUnproven, Message: "no proof", FirstSeen: time.Now().UTC().Truncate(time.Second),
	}
}

func destroyed(rec wire.Quarantine) wire.Quarantine {
	now := time.Now().UTC().Truncate(time.Second)
	rec.State, rec.Attempts, rec.DestroyedAt = wire.Gone, 1, &now
	rec.Evidence = []wire.Evidence{{Kind: "pidfd", Detail: "init reaped"}}
	return rec
}

func TestQuarantineLife(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	ctx, q := deadline(t), b.Quarantines()
	_, err := q.Get(ctx, "local", "host1", "l1")
	require.ErrorIs(t, err, bus.ErrNoRecord)
	require.NoError(t, q.Put(ctx, quarantined("l1")))
	first, err := q.Get(ctx, "local", "host1", "l1")
	require.NoError(t, err)

	twice := quarantined("l1")
	twice.Message = "again, in other words"
	require.NoError(t, q.Put(ctx, twice), "putting twice is no error")
	still, err := q.Get(ctx, "local", "host1", "l1")
	require.NoError(t, err)
	require.Equal(t, first, still, "and leaves one, the first")

	held := first.Record
	held.State = wire.OnHold
	seq, err := q.Update(ctx, held, first.Seq)
	require.NoError(t, err)
	require.ErrorIs(t, q.Resolve(ctx, destroyed(first.Record), first.Seq), bus.ErrConflict, "it changed meanwhile")
	require.NoError(t, q.Resolve(ctx, destroyed(held), seq))
	require.NoError(t, q.Put(ctx, quarantined("l1")), "a late repetition")
	last, err := q.Get(ctx, "local", "host1", "l1")
	require.NoError(t, err)
	require.Equal(t, wire.Gone, last.Record.State, "does not bring the lease back")

	require.Error(t, q.Put(ctx, destroyed(quarantined("l2"))))
	require.Error(t, q.Resolve(ctx, quarantined("l2"), 1))
	require.Error(t, q.Resolve(ctx, destroyed(quarantined("l2")), 0))
	_, err = q.Update(ctx, quarantined("l2"), 0)
	require.Error(t, err)

	require.NoError(t, q.Put(ctx, quarantined("l2")))
	elsewhere := quarantined("l3")
	elsewhere.Host = "host2"
	require.NoError(t, q.Put(ctx, elsewhere))
	list, err := q.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 3, "finished ones too")
	list, err = q.ListHost(ctx, "local", "host1")
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, []wire.QuarantineState{wire.Gone, wire.InQuarantine}, []wire.QuarantineState{list[0].Record.State, list[1].Record.State})
	_, err = q.ListHost(ctx, "local", "a.b")
	require.Error(t, err)
}

func TestQuarantineConcurrentPutsLeaveOne(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	var wg sync.WaitGroup
	errs := make([]error, 12)
	for i := range errs {
		wg.Go(func() {
			rec := quarantined("l1")
			rec.Worker = fmt.Sprint("w", i)
			errs[i] = []*bus.Bus{b, other}[i%2].Quarantines().Put(deadline(t), rec)
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	stream, err := b.JS().Stream(deadline(t), b.Streams().Ledger)
	require.NoError(t, err)
	require.EqualValues(t, 1, stream.CachedInfo().State.LastSeq, "one write, and no other ever")
}

// TestQuarantineSurvivesALostAnswer: the record is written once, and Put ends
// with nil.
func TestQuarantineSurvivesALostAnswer(t *testing.T) {
	t.Parallel()
	s, direct := setup(t)
	p := startProxy(t, s)
	b := connect(t, p.url(), func(o *bus.Options) { o.RequestTimeout = 200 * time.Millisecond })
	p.setDeaf(true)
	done := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { done <- b.Quarantines().Put(deadline(t), quarantined("l1")) })
	require.Eventually(t, func() bool {
		_, err := direct.Quarantines().Get(deadline(t), "local", "host1", "l1")
		return err == nil
	}, patience, 5*time.Millisecond)
	p.setDeaf(false)
	p.cut()
	require.NoError(t, <-done)
	stream, err := direct.JS().Stream(deadline(t), direct.Streams().Ledger)
	require.NoError(t, err)
	require.EqualValues(t, 1, stream.CachedInfo().State.LastSeq)
}

func fetch(t *testing.T, q *bus.ReaperQueue, n int) []*bus.Delivery {
	t.Helper()
	var list []*bus.Delivery
	for ctx := deadline(t); len(list) < n; {
		got, err := q.Fetch(ctx, n-len(list), time.Second)
		require.NoError(t, err)
		require.NoError(t, ctx.Err())
		list = append(list, got...)
	}
	return list
}

func TestReaperQueue(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	ctx := deadline(t)
	require.NoError(t, b.Quarantines().Put(ctx, quarantined("l1")))
	elsewhere := quarantined("l2")
	elsewhere.Host = "host2"
	require.NoError(t, b.Quarantines().Put(ctx, elsewhere))

	q, err := b.EnsureReaper(ctx, "local", "host1", 0)
	require.NoError(t, err)
	again, err := b.EnsureReaper(ctx, "local", "host1", 0)
	require.NoError(t, err, "the consumer is there already")
	require.NoError(t, again.Close())
	info, err := b.JS().Consumer(ctx, b.Streams().Ledger, bus.ReaperConsumerName("local", "host1"))
	require.NoError(t, err)
	cfg := info.CachedInfo().Config
	require.Equal(t, -1, cfg.MaxDeliver)
	require.Empty(t, cfg.BackOff)
	require.Greater(t, cfg.MaxAckPending, 10_000)
	require.Equal(t, "exec.quarantine.local.host1.*", cfg.FilterSubject)

	got := fetch(t, q, 1)
	require.Equal(t, "l1", got[0].Record.Lease, "the other host's is another reaper's")
	require.NoError(t, got[0].Err)
	require.Equal(t, 1, got[0].Deliveries)
	require.NoError(t, got[0].InProgress(ctx))
	require.NoError(t, got[0].NakDelay(ctx, time.Millisecond))
	got = fetch(t, q, 1)
	require.Equal(t, 2, got[0].Deliveries)
	stored, err := b.Quarantines().Get(ctx, "local", "host1", "l1")
	require.NoError(t, err)
	require.Equal(t, stored.Seq, got[0].Seq)
	require.NoError(t, b.Quarantines().Resolve(ctx, destroyed(stored.Record), got[0].Seq))
	require.NoError(t, got[0].Ack(ctx))
	last := fetch(t, q, 1)
	require.Equal(t, wire.Gone, last[0].Record.State, "each change is a delivery")
	require.NoError(t, last[0].Ack(ctx))
	none, err := q.Fetch(ctx, 10, 20*time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, none)

	// A delayed record blocks no other; nor does one that cannot be read, even
	// when it looks like the server's own word.
	require.NoError(t, b.Quarantines().Put(ctx, quarantined("l3")))
	require.NoError(t, fetch(t, q, 1)[0].NakDelay(ctx, time.Hour))
	nc := plain(t, s)
	poison := nats.NewMsg("exec.quarantine.local.host1.l4")
	poison.Header.Set("Status", "409")
	poison.Header.Set("Description", "Consumer Deleted")
	require.NoError(t, nc.PublishMsg(poison))
	bad := fetch(t, q, 1)[0]
	require.Error(t, bad.Err)
	require.Equal(t, "exec.quarantine.local.host1.l4", bad.Subject)
	require.NoError(t, bad.Ack(ctx))
	require.NoError(t, b.Quarantines().Put(ctx, quarantined("l5")))
	require.Equal(t, "l5", fetch(t, q, 1)[0].Record.Lease)
	require.NoError(t, q.Close())

	all, err := b.EnsureReaper(ctx, "local", bus.AnyHost, 0)
	require.NoError(t, err)
	require.Len(t, fetch(t, all, 5), 5)
	require.NoError(t, all.Close())
	for _, bad := range []string{"", "*", "a.b"} {
		_, err := b.EnsureReaper(ctx, bad, "host1", 0)
		require.Error(t, err)
	}
}

// TestReaperQueueLosesNothing: what arrives after its Fetch was cancelled comes
// with the next one, long before the ack wait.
func TestReaperQueueLosesNothing(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	q, err := b.EnsureReaper(deadline(t), "local", "host1", 0)
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = q.Fetch(cancelled, 5, time.Second)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, b.Quarantines().Put(deadline(t), quarantined("l1")))
	require.Equal(t, "l1", fetch(t, q, 1)[0].Record.Lease)
	require.NoError(t, q.Close())
}

// TestReaperQueueOverRestart: the consumer is durable, and the queue works on
// after the server was away.
func TestReaperQueueOverRestart(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	q, err := b.EnsureReaper(deadline(t), "local", "host1", 0)
	require.NoError(t, err)
	again := restartable(t, s)
	stopServer(s)
	_, err = q.Fetch(deadline(t), 1, time.Second)
	require.Error(t, err)
	again()
	require.Eventually(t, b.Connected, patience, 5*time.Millisecond)
	require.NoError(t, b.Quarantines().Put(deadline(t), quarantined("l1")))
	require.Equal(t, "l1", fetch(t, q, 1)[0].Record.Lease)
	require.NoError(t, q.Close())
}

// TestReaperQueueThatMayNotPull: silence is not "nothing there".
func TestReaperQueueThatMayNotPull(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "w", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.API.CONSUMER.MSG.NEXT.>"}},
			}},
		}
	})
	apply(t, connect(t, s.ClientURL(), func(o *bus.Options) { o.NATS = []nats.Option{nats.UserInfo("admin", "p")} }), small())
	b := connect(t, s.ClientURL(), func(o *bus.Options) {
		o.NATS, o.RequestTimeout = []nats.Option{nats.UserInfo("w", "p")}, 500*time.Millisecond
	})
	q, err := b.EnsureReaper(deadline(t), "local", "host1", 0)
	require.NoError(t, err)
	_, err = q.Fetch(deadline(t), 1, 10*time.Millisecond)
	require.ErrorIs(t, err, bus.ErrSilent)
	require.NoError(t, q.Close())
}
