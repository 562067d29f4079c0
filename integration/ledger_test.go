package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

// Faults of workers, reapers and the server around sandboxes that outlive their
// worker.

const ledgerConfig = `
ack_wait: 3s
epoch_bound: 2s
create_deadline: 3s
sweep_interval: 1s
fake_world: DIR
reply_allow: ["_INBOX.>", "reply.{tenant}.>"]
profiles:
  default: {warm: 0}
  cloud: {provider: fake, warm: 0}
  warm: {provider: fake, warm: 2}
  once: {provider: fake, warm: 0, reuse: never}
  slow: {provider: fake, warm: 0, root: "/delay:create:3s"}
`

// withWorld opens the stack's cloud, and puts its place into the configuration.
func (s *stack) withWorld(config string) *cloud {
	s.t.Helper()
	dir := filepath.Join(s.dir, "cloud")
	require.NoError(s.t, os.WriteFile(s.config, []byte(strings.ReplaceAll(config, "DIR", dir)), 0o600))
	world, err := fake.OpenWorld(dir)
	require.NoError(s.t, err)
	s.apply()
	return &cloud{stack: s, world: world}
}

// entries are the ledger's entries as they stand, by lease.
func (c *cloud) entries() map[string]wire.LeaseRecord {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	stream, err := c.js.Stream(ctx, "EXEC_LEDGER")
	require.NoError(c.t, err)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("exec.lease.fake.*"))
	require.NoError(c.t, err)
	list := map[string]wire.LeaseRecord{}
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(c.t, err)
		rec, err := wire.DecodeLease(m.Data)
		require.NoError(c.t, err)
		list[rec.Lease] = *rec
	}
	return list
}

// until waits for the ledger's entries to be as wanted, and returns them.
func (c *cloud) until(what string, wanted func(map[string]wire.LeaseRecord) bool) map[string]wire.LeaseRecord {
	c.t.Helper()
	var list map[string]wire.LeaseRecord
	require.Eventually(c.t, func() bool {
		list = c.entries()
		return wanted(list)
	}, patience, 50*time.Millisecond, "%s: %v", what, &list)
	return list
}

// among says how many entries are in a state.
func among(list map[string]wire.LeaseRecord, state wire.LeaseRecordState, profile string) (n int) {
	for _, rec := range list {
		if rec.State == state && rec.Profile == profile {
			n++
		}
	}
	return n
}

// A worker is frozen for longer than its epoch lasts, with a lease in each phase of
// its life. The reaper ends them all; the worker wakes up, uses none of them again,
// every job has one decision, and it takes jobs again by itself.
func TestFrozenWorkerLosesItsEpoch(t *testing.T) {
	t.Parallel()
	c := newStack(t).withWorld(ledgerConfig)
	census := c.census()
	w := c.worker("w1", "--slots", "8")
	c.reaper().waitReady()
	short := wire.Limits{WallMS: new(int64(300)), GraceMS: new(int64(100))}
	jobs := map[string]*followed{}
	submit := func(name, profile string, limits wire.Limits, argv ...string) {
		jobs[name] = c.submit(name, wire.Request{Profile: profile, Argv: append([]string{"fake"}, argv...), Limits: limits})
	}
	submit("quarantined", "cloud", short, "print:x", "wait:never", "destroy:never", "exit:0")
	quarantined := jobs["quarantined"].final().Lease.ID
	submit("quarantining", "cloud", short, "print:x", "wait:never", "destroy:fail*2", "exit:0")
	submit("running", "cloud", wire.Limits{}, "print:up", "sleep:40s")
	submit("destroying", "once", wire.Limits{}, "delay:destroy:5s", "exit:0")
	submit("resetting", "cloud", wire.Limits{}, "delay:reset:5s", "exit:0")
	jobs["destroying"].final()
	jobs["resetting"].final()
	submit("creating", "slow", wire.Limits{}, "print:x", "exit:0")
	before := c.until("phases", func(list map[string]wire.LeaseRecord) bool {
		return among(list, wire.LeaseIntent, "slow") == 1 && among(list, wire.LeaseReady, "warm") == 2 && among(list, wire.LeaseInUse, "cloud") == 3 &&
			among(list, wire.LeaseInUse, "once") == 1
	})
	thaw := c.freeze(w)
	c.until("the reaper takes all", func(list map[string]wire.LeaseRecord) bool {
		for lease := range before {
			if s := list[lease].State; s != wire.LeaseQuarantined && s != wire.LeaseDestroyed {
				return false
			}
		}
		return true
	})
	// One ends, and its records expire, while the worker sleeps.
	c.cure(quarantined)
	c.quarantine(quarantined, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	c.expire("exec.quarantine.*.*." + quarantined)
	thaw()
	for _, f := range jobs {
		f.final()
	}
	w.waitReady()
	for i, profile := range []string{"cloud", "warm", "warm", "once"} {
		f := c.submit(id("next-%d", i), wire.Request{Profile: profile, Argv: []string{"fake", "print:x", "exit:0"}}).wait().exited(0)
		require.NotContains(t, before, f.result.Lease.ID, "a lease of the lapsed epoch is used again")
	}
	for name := range jobs {
		census.atMostOnce(name)
	}
	c.queueEmpty()
	require.Eventually(t, func() bool { return w.metric(t, `sallyport_leases{state="quarantined"}`) == 0 },
		patience, 50*time.Millisecond, "the room of what the reaper has ended does not come back")
	w.stop()
	require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	c.balanced()
}

// decide is an operator's order.
func (c *cloud) decide(order ...string) {
	c.t.Helper()
	out, code := c.command(append(append([]string{"quarantine"}, order...), "--server", c.url)...)
	require.Zero(c.t, code, out)
}

// cure lets a sandbox be destroyed, now, unless a reaper was faster.
func (c *cloud) cure(lease string) {
	c.t.Helper()
	_, err := c.world.Knob(lease, "destroy:ok")
	require.NoError(c.t, err)
	if out, code := c.command("quarantine", "retry", "--server", c.url, lease); code != 0 {
		require.Contains(c.t, out, "destroyed already")
	}
}

// expire ends the time for which a finished record is kept.
func (c *cloud) expire(filter string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	stream, err := c.js.Stream(ctx, "EXEC_LEDGER")
	require.NoError(c.t, err)
	m, err := stream.GetLastMsgForSubject(ctx, filter)
	require.NoError(c.t, err)
	require.Contains(c.t, string(m.Data), `"state":"destroyed"`)
	_, err = c.js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Data: m.Data}, jetstream.WithMsgTTL(time.Second))
	require.NoError(c.t, err)
	require.Eventually(c.t, func() bool {
		_, err := stream.GetLastMsgForSubject(ctx, filter)
		return errors.Is(err, jetstream.ErrMsgNotFound)
	}, patience, 20*time.Millisecond)
}

// freeze stops a service as a machine that sleeps does, until thaw. Never while it
// has the cloud's lock: that is ours, no remote service has one.
func (c *cloud) freeze(w *service) (thaw func()) {
	c.t.Helper()
	lock, err := os.Open(filepath.Join(c.dir, "cloud", "lock"))
	require.NoError(c.t, err)
	require.NoError(c.t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	w.signal(syscall.SIGSTOP)
	require.Eventually(c.t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	}, patience, time.Millisecond)
	require.NoError(c.t, lock.Close())
	thaw = sync.OnceFunc(func() { w.signal(syscall.SIGCONT) })
	c.t.Cleanup(thaw)
	return thaw
}

// Reapers that are killed, and that are frozen in the middle of a sweep and go on
// with what they saw long ago, end nothing of a worker that lives.
func TestOldSweepsEndNothingThatLives(t *testing.T) {
	t.Parallel()
	config := strings.Replace(ledgerConfig, "epoch_bound: 2s", "epoch_bound: 4s", 1)
	c := newStack(t).withWorld(config)
	w := c.worker("w1", "--slots", "6")
	w2 := c.worker("w2", "--slots", "6")
	// A look takes a while, so that it is frozen and killed in its middle.
	require.NoError(t, c.world.Inventory("delay:inventory:400ms"))
	var reapers []*service
	for range 3 {
		reapers = append(reapers, c.reaper())
	}
	for _, r := range reapers {
		r.waitReady()
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Duration(soak(5, 120))*time.Second)
	defer stop()
	var lanes sync.WaitGroup
	lanes.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			thaw := c.freeze(reapers[n%2])
			nap(ctx, time.Duration(1500+rand.IntN(3000))*time.Millisecond)
			thaw()
			nap(ctx, time.Duration(rand.IntN(700))*time.Millisecond)
		}
	})
	lanes.Go(func() {
		for ctx.Err() == nil {
			reapers[2].signal(syscall.SIGKILL)
			<-reapers[2].done
			reapers[2] = c.reaper()
			nap(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
		}
	})
	argv := [][]string{{"print:x", "exit:0"}, {"sleep:1s", "exit:0"}, {"delay:reset:300ms", "exit:0"}, {"delay:destroy:500ms", "exit:0"}, {"sleep:3s"}}
	profiles := []string{"cloud", "warm", "once", "cloud", "slow", "warm"}
	var ran atomic.Int64
	for lane := range 6 {
		lanes.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				f := c.submit(id("job-%d-%d", lane, n), wire.Request{
					Profile: profiles[lane], Argv: append([]string{"fake"}, argv[rand.IntN(len(argv))]...),
				})
				r := f.final()
				if r.Outcome != wire.Exited || r.Containment.Verdict != wire.Proven {
					t.Errorf("job %s: %s", f.id, f.raw)
				}
				ran.Add(1)
			}
		})
	}
	lanes.Wait()
	t.Logf("%d jobs", ran.Load())
	require.NoError(t, c.world.Inventory("inventory:ok"))
	for _, rec := range c.quarantines() {
		require.Fail(t, "a living worker's sandbox was taken", "%+v", rec)
	}
	for _, w := range []*service{w, w2} {
		w.stop()
		require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	}
	c.balanced()
}

// nap waits, or until ctx ends.
func nap(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// quarantines are the records of all leases.
func (c *cloud) quarantines() (list []wire.Quarantine) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	stream, err := c.js.Stream(ctx, "EXEC_LEDGER")
	require.NoError(c.t, err)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("exec.quarantine.>"))
	require.NoError(c.t, err)
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(c.t, err)
		q, err := wire.DecodeQuarantine(m.Data)
		require.NoError(c.t, err)
		list = append(list, *q)
	}
	return list
}

// What an operator calls gone and is there is found again, and ended.
func TestResolvedSandboxThatLives(t *testing.T) {
	t.Parallel()
	c := newStack(t).withWorld(ledgerConfig)
	w := c.worker("w1", "--slots", "2")
	c.reaper().waitReady()
	f := c.submit("job", wire.Request{
		Profile: "cloud", Argv: []string{"fake", "wait:never", "destroy:never", "exit:0"},
		Limits: wire.Limits{WallMS: new(int64(300)), GraceMS: new(int64(100))},
	}).wait()
	lease := f.result.Lease.ID
	c.quarantine(lease, func(q *wire.Quarantine) bool { return q.State == wire.InQuarantine })
	c.decide("hold", lease)
	c.decide("resolve", "--evidence", "I think so", lease)
	q := c.quarantine(lease, func(q *wire.Quarantine) bool { return q.Reason == wire.QuarantineReappeared })
	require.Equal(t, wire.InQuarantine, q.State)
	require.Contains(t, c.world.Live(), lease)
	c.cure(lease)
	w.stop()
	require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	c.balanced()
}

// Workers that come and go, in order or not, at any moment, leave nothing.
func TestRestartsLeakNothing(t *testing.T) {
	t.Parallel()
	c := newStack(t).withWorld(ledgerConfig)
	c.reaper().waitReady()
	for n := range soak(6, 50) {
		w := c.start("worker", "--server", c.url, "--config", c.config, "--state-dir", filepath.Join(c.dir, "w1"), "--require", "namespaces", "--drain", "1s")
		nap(t.Context(), time.Duration(rand.IntN(2500))*time.Millisecond)
		if n%2 == 0 {
			w.signal(syscall.SIGKILL)
			<-w.done
			continue
		}
		w.stop()
		require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	}
	c.balanced()
	require.Equal(t, c.world.Created(), c.world.Destroyed())
}
