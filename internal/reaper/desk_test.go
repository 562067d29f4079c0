package reaper_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

func order(op wire.ReaperOp, lease string) reaper.Order {
	return reaper.Order{Op: op, Lease: lease, By: "alice@ops", Text: "because of this"}
}

// act carries an order out on the lease called lease.
func (e *env) act(op wire.ReaperOp) wire.Quarantine {
	e.Helper()
	got, err := reaper.NewDesk(e.bus).Act(e.ctx(), order(op, "lease"))
	require.NoError(e, err)
	require.Equal(e, e.stored("lease"), got.Record)
	return got.Record
}

// A hold keeps every reaper away, through restarts, until it is released.
func TestHoldAndRelease(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("lease", "destroy:fail*3")
	require.Equal(t, wire.OnHold, e.act(wire.OpHold).State)
	held := e.stored("lease")
	require.Regexp(t, `^hold at 20.* by alice@ops: because of this$`, held.Note)
	require.Equal(t, held, e.act(wire.OpHold), "again changes nothing")
	for range 2 {
		r := e.start(quick())
		e.put("other")
		e.until("the hold is known", func() bool { return r.Stats().Held == 1 })
		e.acknowledged()
		r.stop()
		require.Zero(t, e.world.DestroyCalls("lease"))
	}
	_, err := reaper.NewDesk(e.bus).Act(e.ctx(), order(wire.OpRetry, "lease"))
	require.ErrorIs(t, err, reaper.ErrHeld)
	require.Equal(t, wire.InQuarantine, e.act(wire.OpRelease).State)
	released := e.stored("lease")
	require.Equal(t, released, e.act(wire.OpRelease), "again changes nothing")
	e.start(quick())
	require.Regexp(t, `^release at`, e.destroyed("lease").Note)
	for _, op := range []wire.ReaperOp{wire.OpHold, wire.OpRelease, wire.OpRetry} {
		_, err := reaper.NewDesk(e.bus).Act(e.ctx(), order(op, "lease"))
		require.ErrorIs(t, err, reaper.ErrFinished)
		_, err = reaper.NewDesk(e.bus).Act(e.ctx(), order(op, "unknown"))
		require.ErrorIs(t, err, reaper.ErrNotInQuarantine)
		_, err = reaper.NewDesk(e.bus).Act(e.ctx(), order(op, "no.token"))
		require.ErrorIs(t, err, reaper.ErrNotInQuarantine)
	}
	_, err = reaper.NewDesk(e.bus).Act(e.ctx(), order(wire.OpList, "lease"))
	require.ErrorContains(t, err, "ls changes nothing")
}

// A try that runs while the lease is held, and proves it gone, still ends it.
func TestHoldDuringATry(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("lease", "delay:destroy:1s")
	r := e.start(quick())
	e.until("it is tried", func() bool { return e.world.DestroyCalls("lease") > 0 })
	require.Equal(t, wire.OnHold, e.act(wire.OpHold).State)
	got := e.destroyed("lease")
	require.Regexp(t, `^hold at`, got.Note)
	require.Contains(t, evidenceKinds(got), "second_look")
	e.acknowledged()
	require.EqualValues(t, 1, r.Stats().Destroyed)
}

// Retry does not wait for the backoff.
func TestRetryNow(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("lease", "destroy:fail*1")
	cfg := quick()
	cfg.MinBackoff, cfg.MaxBackoff = time.Hour, time.Hour
	r := e.start(cfg)
	e.until("it was tried", func() bool { return r.Tries()["lease"].LastError != "" })
	require.Equal(t, wire.InQuarantine, e.stored("lease").State)
	begin := time.Now()
	e.act(wire.OpRetry)
	got := e.destroyed("lease")
	require.Less(t, time.Since(begin), patience)
	require.Equal(t, 2, got.Attempts)
	require.Regexp(t, `^retry at .* by alice@ops`, got.Note)
}

// A host that never comes back: nobody destroys, a person says so, with the ledger's
// entry, and whoever waits for it is told.
func TestResolveByHand(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.epoch("dead", "x", short)
	e.entry("lease", "dead", "x", wire.LeaseInUse)
	_, err := e.world.Knob("lease", "destroy:never")
	require.NoError(t, err)
	r := e.start(sweeping())
	e.until("it is tried", func() bool { return r.Tries()["lease"].Attempts > 2 })
	_, err = reaper.NewDesk(e.bus).Act(e.ctx(), reaper.Order{Op: wire.OpResolve, Lease: "lease"})
	require.ErrorIs(t, err, reaper.ErrNoEvidence)
	require.True(t, e.world.Vanish("lease"))
	got := e.act(wire.OpResolve)
	last := got.Evidence[len(got.Evidence)-1]
	require.Equal(t, wire.Evidence{Kind: "operator", Detail: "because of this (says alice@ops)"}, last)
	require.Equal(t, wire.LeaseDestroyed, e.ledger("lease").State)
	require.Equal(t, got, e.act(wire.OpResolve), "again changes nothing")
	e.until("who waits is told", func() bool { proof, ok := r.proofOf("lease"); return ok && proof.Proven })
	e.acknowledged()
}

// Everybody decides at once: each order is carried out or refused in words, and the
// lease ends.
func TestOrdersRace(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.put("lease", "destroy:fail*20")
	e.start(quick())
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			op := []wire.ReaperOp{wire.OpHold, wire.OpRelease, wire.OpRetry}[i%3]
			for range 5 {
				if _, err := reaper.NewDesk(e.bus).Act(e.ctx(), order(op, "lease")); err != nil &&
					!strings.Contains(err.Error(), "held") && !strings.Contains(err.Error(), "destroyed already") && !strings.Contains(err.Error(), "another writer") {
					t.Errorf("%s: %v", op, err)
				}
			}
		})
	}
	all.Wait()
	if _, err := reaper.NewDesk(e.bus).Act(e.ctx(), order(wire.OpRelease, "lease")); err != nil {
		require.ErrorIs(t, err, reaper.ErrFinished)
	}
	e.destroyed("lease")
	require.Equal(t, 1, e.world.Destroyed())
}

// serve runs the operators' endpoints.
func (e *env) serve() func(op wire.ReaperOp, q any) *nats.Msg {
	e.Helper()
	rule, err := wire.NewReplyRule(e.bus.Subjects(), []string{"_INBOX.>"})
	require.NoError(e, err)
	s, err := service.New(e.bus, zerolog.Nop(), reaper.ServiceConfig("1.0.0", rule), reaper.NewDesk(e.bus).Endpoints(e.bus.Subjects())...)
	require.NoError(e, err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Run(ctx); err != nil {
			e.Errorf("serve: %v", err)
		}
	})
	e.Cleanup(func() { cancel(); done.Wait() })
	nc, err := nats.Connect(e.server.ClientURL())
	require.NoError(e, err)
	e.Cleanup(nc.Close)
	e.until("it serves", func() bool { _, err := nc.Request("$SRV.PING."+reaper.ServiceName, nil, patience); return err == nil })
	return func(op wire.ReaperOp, q any) *nats.Msg {
		body, err := json.Marshal(q)
		require.NoError(e, err)
		msg, err := nc.Request(e.bus.Subjects().Reaper(op), body, patience)
		require.NoError(e, err)
		return msg
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for i := range 5 {
		e.put(fmt.Sprint("lease", i))
	}
	ask := e.serve()
	q := wire.ReaperRequest{Lease: "lease1", By: "bob", Text: "why not"}
	var got wire.ReaperRecord
	require.NoError(t, json.Unmarshal(ask(wire.OpHold, q).Data, &got))
	require.Equal(t, wire.OnHold, got.Record.State)
	require.NoError(t, json.Unmarshal(ask(wire.OpShow, q).Data, &got))
	require.Equal(t, e.stored("lease1"), got.Record)
	require.Contains(t, got.Record.Note, "bob: why not")
	require.Equal(t, "409", ask(wire.OpRetry, q).Header.Get(micro.ErrorCodeHeader))
	require.NoError(t, json.Unmarshal(ask(wire.OpResolve, q).Data, &got))
	require.Equal(t, wire.Gone, got.Record.State)
	require.Equal(t, "409", ask(wire.OpRelease, q).Header.Get(micro.ErrorCodeHeader))
	for code, wrong := range map[string]wire.ReaperRequest{"404": {Lease: "nobody", Text: "x"}, "400": {Lease: "lease2"}} {
		msg := ask(wire.OpResolve, wrong)
		require.Equal(t, code, msg.Header.Get(micro.ErrorCodeHeader))
		require.NotEmpty(t, msg.Header.Get(micro.ErrorHeader))
	}
	require.Equal(t, "400", ask(wire.OpShow, []int{1}).Header.Get(micro.ErrorCodeHeader))

	var leases []string
	page := wire.ReaperList{More: true}
	for page.More {
		next := page.Next
		page = wire.ReaperList{}
		require.NoError(t, json.Unmarshal(ask(wire.OpList, wire.ReaperRequest{After: next, Max: 2}).Data, &page))
		for _, rec := range page.Records {
			require.Empty(t, rec.Record.Evidence)
			leases = append(leases, rec.Record.Lease)
		}
	}
	require.Equal(t, []string{"lease0", "lease2", "lease3", "lease4", "lease1"}, leases, "in the order of their last change")
	require.Equal(t, "400", ask(wire.OpList, wire.ReaperRequest{Max: -1}).Header.Get(micro.ErrorCodeHeader))
}
