package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
	"github.com/sallyport/sallyport/internal/wire"
)

const destroyedLine = "quarantined lease destroyed"

// The whole story: a worker cannot prove a run's end and dies; the reaper ends
// the sandbox.
func TestUnprovenLeaseEndsDestroyed(t *testing.T) {
	t.Parallel()
	e := setup(t)
	worker := fake.New(e.world, fake.Config{Host: host, OutlivesWorker: true})
	sb, err := worker.Create(e.ctx(), sandbox.Spec{Lease: "lease"})
	require.NoError(t, err)
	run, err := sb.Prepare(e.ctx(), sandbox.Process{Argv: []string{"fake", "wait:never"}}, &sandboxtest.Sink{})
	require.NoError(t, err)
	require.NoError(t, run.Open(e.ctx()))
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	proof, err := run.Terminate(short, 0)
	require.Error(t, err)
	require.False(t, proof.Proven)
	rec := record("lease")
	rec.Handle = sb.Handle().Detail
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), rec))
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), rec), "reported twice leaves one")
	require.NoError(t, worker.Close())
	require.Equal(t, []string{"lease"}, e.world.Live())

	r := e.start(quick())
	got := e.destroyed("lease")
	require.Equal(t, 1, got.Attempts)
	require.WithinDuration(t, time.Now(), *got.DestroyedAt, patience)
	require.Equal(t, []string{"reap", "tree_exited", "second_look"}, evidenceKinds(got), "old evidence and new")
	require.Equal(t, rec.FirstSeen, got.FirstSeen)
	require.Equal(t, rec.Message, got.Message)
	require.Empty(t, e.world.Live())
	require.Equal(t, 1, e.world.Destroyed())

	e.acknowledged()
	e.until("the daemon is told", func() bool { proof, ok := r.proofOf("lease"); return ok && proof.Proven })
	stats := r.Stats()
	require.Zero(t, stats.Quarantined)
	require.EqualValues(t, 1, stats.Destroyed)
	require.NoError(t, r.Ready())
	lines := r.log.find("message", destroyedLine)
	require.Len(t, lines, 1)
	require.Equal(t, "info", lines[0]["level"])
	require.Equal(t, "lease", lines[0]["lease"])
	require.Equal(t, "fake", lines[0]["provider"])
	require.Equal(t, "acme", lines[0]["tenant"])
	require.Equal(t, "job-1", lines[0]["job"])
	require.EqualValues(t, 1, lines[0]["attempts"])
	require.Equal(t, "tree_exited, second_look", lines[0]["evidence"])
}

func evidenceKinds(rec wire.Quarantine) []string {
	var kinds []string
	for _, e := range rec.Evidence {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func TestTriesUntilProven(t *testing.T) {
	t.Parallel()
	for knob, attempts := range map[string]int{
		"destroy:fail*3":     4,
		"destroy:lie*2":      3,
		"destroy:unproven*2": 3,
		"destroy:hang":       2,
	} {
		t.Run(knob, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			e.put("lease", knob)
			cfg := quick()
			cfg.AttemptTimeout = 300 * time.Millisecond
			r := e.start(cfg)
			got := e.destroyed("lease")
			e.acknowledged()
			require.Equal(t, attempts, got.Attempts)
			require.Equal(t, 1, e.world.Destroyed())
			require.EqualValues(t, attempts-1, r.Stats().Failures)
			require.Len(t, r.log.find("message", destroyedLine), 1)
			require.Len(t, r.log.find("message", "quarantined lease not destroyed yet"), attempts-1)
		})
	}
}

// A sandbox that somebody else removed is gone: that is no failure.
func TestAlreadyGone(t *testing.T) {
	t.Parallel()
	e := setup(t)
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), record("lease")))
	r := e.start(quick())
	got := e.destroyed("lease")
	e.acknowledged()
	require.Equal(t, []string{"reap", "not_found", "second_look"}, evidenceKinds(got))
	require.Equal(t, 1, got.Attempts)
	require.Empty(t, r.log.find("level", "warn"))
}

func TestStuckLeasesDelayNoOther(t *testing.T) {
	t.Parallel()
	e := setup(t)
	const fine = 50
	e.put("never", "destroy:never")
	for i := range 10 {
		e.put(fmt.Sprint("hangs", i), "destroy:hang*1000000")
	}
	for i := range fine {
		e.put(fmt.Sprint("fine", i))
	}
	cfg := quick()
	cfg.Parallel, cfg.MaxSlow, cfg.SlowAfter, cfg.AttemptTimeout = 4, 6, 50*time.Millisecond, time.Minute
	begin := time.Now()
	r := e.start(cfg)
	e.until("the others destroyed", func() bool { return e.world.Destroyed() == fine })
	require.Less(t, time.Since(begin), 15*time.Second, "they waited for the stuck ones")
	e.until("the stuck ones stay and are tried", func() bool {
		return r.Tries()["never"].Attempts > 5 && r.Stats().Quarantined == 11
	})
	require.Contains(t, r.Tries()["never"].LastError, "told not to work")
	require.Equal(t, wire.InQuarantine, e.stored("never").State)
	require.LessOrEqual(t, r.Stats().Slow, cfg.MaxSlow)
	require.LessOrEqual(t, r.Stats().Working, cfg.Parallel)
	require.Equal(t, map[wire.QuarantineReason]int{wire.QuarantineUnproven: 11}, r.Stats().Reasons)
	require.WithinDuration(t, time.Now().Add(-time.Hour), r.Stats().Oldest, patience)

	_, err := e.world.Knob("never", "destroy:ok")
	require.NoError(t, err)
	require.Greater(t, e.destroyed("never").Attempts, 5)
	e.until("accounted", func() bool { return r.Stats().Destroyed == fine+1 })
	begin = time.Now()
	r.stop()
	require.Less(t, time.Since(begin), 5*time.Second, "hanging tries are cut off")
	require.Len(t, e.world.Live(), 10)
}

// The provider is down, the reaper is restarted meanwhile, and the lease is
// reported once more.
func TestRestartInAnOutage(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.world.Outage(true)
	e.put("lease")
	first := e.start(quick())
	e.until("it was tried", func() bool { return first.Tries()["lease"].Attempts >= 3 })
	first.stop()
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), record("lease")))

	second := e.start(quick())
	e.until("it is tried again", func() bool { return second.Tries()["lease"].LastError != "" })
	require.Equal(t, wire.InQuarantine, e.stored("lease").State, "an outage is no success")
	e.world.Outage(false)
	got := e.destroyed("lease")
	e.acknowledged()
	require.Greater(t, got.Attempts, 3, "the tries before the restart count")
	require.Equal(t, 1, e.world.Destroyed())
	require.EqualValues(t, 1, first.Stats().Destroyed+second.Stats().Destroyed)
}

// A server that restarts forgets the delays that naks asked for, and delivers
// after the ack wait; the listing is faster here.
func TestBrokerOutage(t *testing.T) {
	t.Parallel()
	e := setup(t)
	cfg := quick()
	cfg.ListInterval, cfg.Overdue = 200*time.Millisecond, time.Second
	r := e.start(cfg)
	e.put("before")
	e.destroyed("before")
	e.put("during", "destroy:fail*2")
	e.restart()
	e.until("connected", e.bus.Connected)
	e.destroyed("during")
	e.put("after")
	e.destroyed("after")
	e.until("ready again", func() bool { return r.Ready() == nil })
	require.Equal(t, 3, e.world.Destroyed())
	e.until("accounted", func() bool { return r.Stats().Destroyed == 3 })
	require.Len(t, r.log.find("message", destroyedLine), 3)
}

func TestSeveralReapersAccountOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	const leases = 100
	for i := range leases {
		e.put(fmt.Sprint("lease", i), "delay:destroy:2ms")
	}
	var reapers []*running
	for range 3 {
		b := e.connect()
		reapers = append(reapers, e.startWith(b, map[string]sandbox.Provider{"fake": e.provider()}, quick()))
	}
	// The third has a consumer of its own, so that it fights for every record.
	cfg := quick()
	cfg.Host = bus.AnyHost
	reapers = append(reapers, e.startWith(e.connect(), map[string]sandbox.Provider{"fake": e.provider()}, cfg))
	e.until("all destroyed", func() bool {
		var sum uint64
		for _, r := range reapers {
			sum += r.Stats().Destroyed
		}
		return sum == leases && len(e.world.Live()) == 0
	})
	e.acknowledged()
	require.Equal(t, leases, e.world.Destroyed())
	lines := 0
	for _, r := range reapers {
		r.stop()
		lines += len(r.log.find("message", destroyedLine))
		require.Empty(t, r.log.find("level", "error"), "the loser has nothing to complain about")
		require.Empty(t, r.log.find("level", "warn"))
	}
	require.Equal(t, leases, lines)
}

func TestRecordThatCannotBeReadIsKept(t *testing.T) {
	t.Parallel()
	e := setup(t)
	good, err := wire.EncodeQuarantine(new(record("other")))
	require.NoError(t, err)
	bodies := map[string]string{
		"garbage":  "not json",
		"newer":    strings.Replace(string(good), `"v":1`, `"v":2`, 1),
		"unknown":  strings.Replace(string(good), `"v":1`, `"v":1,"snapshot":true`, 1),
		"mismatch": string(good), // of another lease than its subject says
	}
	require.NotEqual(t, string(good), bodies["newer"])
	for lease, body := range bodies {
		require.NoError(t, e.world.Plant(handle(lease)))
		e.raw(lease, body)
	}
	require.NoError(t, e.world.Plant(handle("other")))
	e.put("good")
	r := e.start(quick())
	e.destroyed("good")
	e.until("all four reported", func() bool { return r.Stats().Bad == 4 })
	e.until("they come again", func() bool { return e.waiting(4) })
	require.Len(t, e.world.Live(), 5, "nothing was destroyed on the word of a bad record")
	require.Len(t, r.log.find("level", "error"), 4, "each is reported once")
	for lease, body := range bodies {
		msg, err := e.stream().GetLastMsgForSubject(e.ctx(), e.bus.Subjects().Quarantine("fake", host, lease))
		require.NoError(t, err)
		require.Equal(t, body, string(msg.Data), "kept as it was")
	}
	// Written anew in a form that we know, it is reaped.
	e.raw("newer", strings.Replace(string(good), `"lease":"other"`, `"lease":"newer"`, 1))
	e.destroyed("newer")
	e.until("one less", func() bool { return r.Stats().Bad == 3 })
}

func TestHeldAndFinishedRecordsAreAcknowledged(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("held")
	stored, err := e.bus.Quarantines().Get(e.ctx(), "fake", host, "held")
	require.NoError(t, err)
	rec := stored.Record
	rec.State = wire.OnHold
	seq, err := e.bus.Quarantines().Update(e.ctx(), rec, stored.Seq)
	require.NoError(t, err)
	e.put("finished")
	stored, err = e.bus.Quarantines().Get(e.ctx(), "fake", host, "finished")
	require.NoError(t, err)
	finished := stored.Record
	now := time.Now().UTC()
	finished.State, finished.DestroyedAt = wire.Gone, &now
	finished.Evidence = []wire.Evidence{{Kind: "operator", Detail: "the host burnt down"}}
	require.NoError(t, e.bus.Quarantines().Resolve(e.ctx(), finished, stored.Seq))

	r := e.start(quick())
	e.until("the end is told", func() bool { _, ok := r.proofOf("finished"); return ok })
	e.until("the hold is known", func() bool { return r.Stats().Held == 1 })
	e.acknowledged()
	require.Zero(t, e.world.DestroyCalls("held")+e.world.DestroyCalls("finished"))
	require.Zero(t, r.Stats().Attempts)

	rec.State = wire.InQuarantine
	_, err = e.bus.Quarantines().Update(e.ctx(), rec, seq)
	require.NoError(t, err)
	e.destroyed("held")
}

// What is not ours to destroy is left to whom it belongs.
func TestRecordsOfOthersAreLeft(t *testing.T) {
	t.Parallel()
	e := setup(t)
	elsewhere := record("elsewhere")
	elsewhere.Host = "other-account"
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), elsewhere))
	cfg := quick()
	cfg.Host = bus.AnyHost
	r := e.start(cfg)
	e.put("here")
	e.destroyed("here")
	e.until("it is known", func() bool { return r.Stats().Quarantined == 1 })
	got, err := e.bus.Quarantines().Get(e.ctx(), "fake", "other-account", "elsewhere")
	require.NoError(t, err)
	require.Equal(t, wire.InQuarantine, got.Record.State)
	require.Zero(t, e.world.DestroyCalls("elsewhere"))

	stranger := record("stranger")
	stranger.Provider = "createos"
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), stranger))
	r = e.startWith(e.bus, nil, reaper.Config{Provider: "createos", Host: host, MaxBackoff: time.Second})
	e.until("it is known", func() bool { return r.Stats().Quarantined == 1 })
	require.Zero(t, r.Stats().Attempts)
	got, err = e.bus.Quarantines().Get(e.ctx(), "createos", host, "stranger")
	require.NoError(t, err)
	require.Equal(t, wire.InQuarantine, got.Record.State)
}

// Not finding a sandbox whose create was ambiguous proves nothing yet.
func TestAmbiguousCreateMayComeLate(t *testing.T) {
	t.Parallel()
	e := setup(t)
	rec := record("late")
	rec.Reason = wire.QuarantineAmbiguousMake
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), rec))
	r := e.start(quick())
	e.until("it was looked for", func() bool { return r.Tries()["late"].Attempts >= 2 })
	require.Contains(t, r.Tries()["late"].LastError, "may still go through")
	require.Equal(t, wire.InQuarantine, e.stored("late").State)
	require.NoError(t, e.world.Plant(handle("late")))
	require.Contains(t, evidenceKinds(e.destroyed("late")), "tree_exited")
	require.Empty(t, e.world.Live())
	r.stop()

	rec = record("not-made")
	rec.Reason = wire.QuarantineAmbiguousMake
	require.NoError(t, e.bus.Quarantines().Put(e.ctx(), rec))
	cfg := quick()
	cfg.CreateDeadline = 500 * time.Millisecond
	e.start(cfg)
	got := e.destroyed("not-made")
	require.Contains(t, evidenceKinds(got), "not_found")
	require.Greater(t, got.Attempts, 1)
}

// Somebody acknowledged the delivery without doing the work: the listing finds
// the record.
func TestListingIsTheNetForLostDeliveries(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("lost")
	queue, err := e.bus.EnsureReaper(e.ctx(), "fake", host, 0)
	require.NoError(t, err)
	list, err := queue.Fetch(e.ctx(), 1, time.Second)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NoError(t, list[0].Ack(e.ctx()))
	require.NoError(t, queue.Close())

	cfg := quick()
	cfg.ListInterval, cfg.Overdue = 50*time.Millisecond, 100*time.Millisecond
	r := e.start(cfg)
	require.Equal(t, 1, e.destroyed("lost").Attempts)
	require.NotEmpty(t, r.log.find("message", "overdue quarantine record taken from the listing"))
	e.acknowledged()
	require.Equal(t, 1, e.world.Destroyed())
	require.WithinDuration(t, time.Now(), r.Stats().Listed, patience)
}

// deaf are books whose queue never answers.
type deaf struct{ reaper.Books }

func (deaf) Queue(context.Context, string, string) (reaper.Queue, error) { return silence{}, nil }

type silence struct{}

func (silence) Fetch(ctx context.Context, _ int, wait time.Duration) ([]*bus.Delivery, error) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
	return nil, bus.ErrSilent
}

func (silence) Close() error { return nil }

// A reaper that is not allowed to pull is not ready, from its start on.
func TestReaperWithoutAnswersIsNotReady(t *testing.T) {
	t.Parallel()
	e := setup(t)
	r := e.startBooks(deaf{reaper.OnBus(e.bus, 0)}, map[string]sandbox.Provider{"fake": e.provider()}, quick())
	ready := false
	e.until("it says why", func() bool {
		err := r.Ready()
		ready = ready || err == nil
		return errors.Is(err, bus.ErrSilent)
	})
	require.False(t, ready)
}

// slowList are books whose listing comes late.
type slowList struct {
	reaper.Books
	meanwhile func()
}

func (s slowList) QuarantinedOn(ctx context.Context, provider, host string) ([]bus.StoredQuarantine, error) {
	list, err := s.Books.QuarantinedOn(ctx, provider, host)
	s.meanwhile()
	return list, err
}

// What ends while the records are listed is not counted as one that is left.
func TestListingIsOlderThanAnEnd(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("lease")
	listed := make(chan struct{})
	books := slowList{reaper.OnBus(e.bus, 0), func() { <-listed }}
	r := e.startBooks(books, map[string]sandbox.Provider{"fake": e.provider()}, quick())
	e.destroyed("lease")
	e.acknowledged()
	close(listed)
	e.until("listed", func() bool { return !r.Stats().Listed.IsZero() })
	require.Zero(t, r.Stats().Quarantined)
}

func TestConfigMistakesAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	_, err := reaper.New(reaper.OnBus(e.bus, 0), map[string]sandbox.Provider{"wrong": e.provider()}, zerolog.Nop(), reaper.Config{
		Provider: "no token", Host: "a.b", Parallel: -1, MinBackoff: time.Minute, MaxBackoff: time.Second, Overdue: -1,
	})
	for _, words := range []string{
		`provider "no token" is not a token`, `host "a.b" is not a token`, "parallel: -1", "max_backoff: 1s is below", "overdue: -1ns",
		`provider "wrong" calls itself "fake"`,
	} {
		require.ErrorContains(t, err, words)
	}
	_, err = reaper.New(reaper.OnBus(e.bus, 0), nil, zerolog.Nop(), reaper.Config{})
	require.ErrorContains(t, err, "there is no provider")
	_, err = reaper.New(reaper.OnBus(e.bus, 0), nil, zerolog.Nop(), reaper.Config{Provider: "createos"})
	require.ErrorContains(t, err, "its host must be given")
}
