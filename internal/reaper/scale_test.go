package reaper_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/wire"
)

// Many leases in quarantine, a few of which never die: the others go at the
// provider's rate, the few stay visible, and cost next to nothing afterwards.
func TestManyLeasesFewOfWhichNeverDie(t *testing.T) {
	leases, stuck, ceiling, quiet := 150, 5, time.Second, 2*time.Second
	if os.Getenv("SALLYPORT_SOAK") != "" {
		leases, stuck, ceiling, quiet = 1000, 10, 2*time.Second, 60*time.Second
	}
	e := setup(t)
	for i := range leases {
		if i < stuck {
			e.put(fmt.Sprint("stuck", i), "destroy:never")
		} else {
			e.put(fmt.Sprint("lease", i), "delay:destroy:2ms")
		}
	}
	cfg := reaper.Config{MinBackoff: 50 * time.Millisecond, MaxBackoff: ceiling}
	begin := time.Now()
	r := e.start(cfg)
	e.until("the others are gone", func() bool { return e.world.Destroyed() == leases-stuck })
	t.Logf("%d leases gone in %s", leases-stuck, time.Since(begin))
	e.until("accounted", func() bool { s := r.Stats(); return s.Destroyed == uint64(leases-stuck) && s.Quarantined == stuck })
	e.until("the backoff is at its ceiling", func() bool {
		for i := range stuck {
			if r.Tries()[fmt.Sprint("stuck", i)].Attempts < 8 {
				return false
			}
		}
		return true
	})
	e.until("all ends are acknowledged", func() bool { return e.waiting(stuck) })
	e.until("nothing is remembered of those that are gone", func() bool { return len(r.Tries()) == stuck })

	attempts, messages, memory := r.Stats().Attempts, e.messages(), heap()
	timer := time.NewTimer(quiet)
	<-timer.C
	tries := r.Stats().Attempts - attempts
	sent := e.messages() - messages
	perTry := float64(sent) / float64(max(tries, 1))
	t.Logf("in %s: %d tries at %d stuck leases, %d messages to the server, %.1f a try; heap %+d KiB", quiet, tries, stuck, sent, perTry, (heap()-memory)>>10)
	// A wait is between half of the ceiling and all of it.
	most := uint64(stuck) * uint64(quiet/(cfg.MaxBackoff/2)+2)
	require.LessOrEqual(t, tries, most)
	require.GreaterOrEqual(t, tries, uint64(stuck), "they are tried for ever")
	// A try is a delivery, a read and a nak; the pulls are on top, twelve a minute.
	require.LessOrEqual(t, sent, 6*tries+uint64(quiet/time.Second)+40)
	// The server is in this process, and so are the lines of the log.
	require.Less(t, heap()-memory, int64(16<<20))
	for i := range stuck {
		require.Contains(t, e.world.Live(), fmt.Sprint("stuck", i))
	}
}

// messages is how many the server has received from clients.
func (e *env) messages() uint64 {
	e.Helper()
	v, err := e.server.Varz(nil)
	require.NoError(e, err)
	return uint64(v.InMsgs)
}

// heap is what lives now.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A fleet that makes and ends many sandboxes leaves more finished entries than one
// listing reads. The sweeps read each of them once, and are complete again soon.
func TestFinishedEntriesDoNotStopSweeps(t *testing.T) {
	t.Parallel()
	e := setup(t)
	many := 500
	if os.Getenv("SALLYPORT_SOAK") != "" {
		many += bus.MaxList
	}
	now := time.Now().UTC()
	for i := range many {
		rec := wire.LeaseRecord{
			State: wire.LeaseDestroyed, Lease: fmt.Sprintf("finished-%d", i), Provider: "fake", Host: host, Profile: "default",
			Worker: "busy", Epoch: "a", Intended: now, DestroyedAt: &now, Evidence: []wire.Evidence{{Kind: "tree_exited", Detail: "x"}},
		}
		data, err := wire.EncodeLease(&rec)
		require.NoError(t, err)
		_, err = e.bus.JS().Publish(e.ctx(), e.bus.Subjects().Lease("fake", rec.Lease), data)
		require.NoError(t, err)
	}
	e.entry("of-the-dead", "dead", "x", wire.LeaseReady)
	require.NoError(t, e.world.Plant(handle("finished-1")))
	r := e.start(sweeping())
	require.Equal(t, wire.QuarantineOwnerGone, e.destroyed("of-the-dead").Reason)
	require.Equal(t, wire.QuarantineReappeared, e.destroyed("finished-1").Reason, "known as finished, and looked at all the same")
	sweeps := r.Stats().Sweeps
	asked := e.varz()
	e.sweeps(r, 3)
	require.Less(t, e.varz()-asked, int64(many), "they are read again by %d sweeps", r.Stats().Sweeps-sweeps)
}

// varz counts what clients have sent to the server.
func (e *env) varz() int64 {
	e.Helper()
	v, err := e.server.Varz(nil)
	require.NoError(e, err)
	return v.InMsgs
}
