package integration

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

func withAckWait(d string) string {
	return strings.Replace(workerConfig, "ack_wait: 5s", "ack_wait: "+d, 1)
}

// A worker that dies takes its programs along. What it ran moves on soon: to
// another attempt where the publisher allows it, else to a final that says that
// it may have run.
func TestWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	c := s.census()
	dying := s.worker("dying", "--slots", "2")
	nap := fmt.Sprintf("3.%09d", time.Now().UnixNano()%1_000_000_000)
	again := shell("echo begun; sleep " + nap + "; echo done")
	again.Retry.IfLost = true
	f, begun := s.started("again", again)
	once, _ := s.started("once", shell("sleep "+nap+"; echo done"))
	require.NotZero(t, marked(t, nap))

	dying.signal(syscall.SIGKILL)
	died := time.Now()
	require.Eventually(t, func() bool { return marked(t, nap) == 0 }, patience, 20*time.Millisecond, "its programs live on")
	require.Less(t, time.Since(died), 2*time.Second)
	s.worker("heir", "--slots", "2")

	f.wait().exited(0)
	require.Less(t, time.Since(died), 20*time.Second)
	require.Equal(t, 2, f.result.Attempt)
	require.NotEqual(t, begun.Worker, f.result.Worker.ID)
	require.Equal(t, "begun\ndone\n", string(f.stdout), "of the second attempt alone")
	once.wait()
	require.Equal(t, []any{wire.Lost, wire.ReasonWorkerGone, 1}, []any{once.result.Outcome, once.result.Reason, once.result.Attempt}, "%s", once.raw)
	require.NotEqual(t, wire.StartNo, once.result.StartState)
	s.queueEmpty()
	c.once("again", 2)
	c.once("once", 1)
}

// A worker that was frozen for longer than its claim finds it lapsed when it goes
// on: it ends its copy and publishes nothing final.
func TestWorkerThatIsFrozen(t *testing.T) {
	t.Parallel()
	s, _ := newBrokerStack(t, withAckWait("4s"), nil)
	c := s.census()
	frozen := s.worker("frozen", "--slots", "1")
	nap := fmt.Sprintf("6.%09d", time.Now().UnixNano()%1_000_000_000)
	r := shell("echo begun; sleep " + nap + "; echo done")
	r.Retry.IfLost = true
	second := make(chan struct{})
	f, begun := s.submitWatchedStart("thawed", r, second)
	s.worker("heir", "--slots", "1")
	frozen.signal(syscall.SIGSTOP)
	t.Cleanup(func() { frozen.signal(syscall.SIGCONT) })
	s.within(second, "not taken over")
	frozen.signal(syscall.SIGCONT)
	f.wait().exited(0)
	require.Equal(t, 2, f.result.Attempt)
	require.NotEqual(t, begun.Worker, f.result.Worker.ID)
	require.Equal(t, "begun\ndone\n", string(f.stdout))
	s.queueEmpty()
	require.Eventually(t, func() bool {
		ready, _ := frozen.get("/readyz")
		return ready == http.StatusOK && frozen.metric(t, "sallyport_slots_used") == 0
	}, patience, 20*time.Millisecond, "the thawed worker does not work again")
	require.Equal(t, 1.0, frozen.metric(t, "sallyport_fenced_total"))
	require.Zero(t, marked(t, nap))
	c.once("thawed", 2)
}

// submitWatchedStart returns once the first attempt has begun; second is closed
// when the next one has.
func (s *stack) submitWatchedStart(id string, r wire.Request, second chan struct{}) (*followed, wire.Started) {
	s.t.Helper()
	begun := make(chan wire.Started, 2)
	f, _ := s.submitWatched(id, r, func(ev wire.Event) bool {
		if ev.Type != wire.EventStarted {
			return false
		}
		b, err := wire.DecodeStarted(ev.Data)
		if err != nil {
			s.t.Errorf("started event: %v", err)
			return true
		}
		if b.Attempt == 1 {
			begun <- *b
			return false
		}
		close(second)
		return true
	})
	select {
	case b := <-begun:
		return f, b
	case <-time.After(patience):
		require.Fail(s.t, "not started", id)
		return nil, wire.Started{}
	}
}

// Jobs that outlive the ack wait run once, wherever they wait: no
// worker takes more than it has room for.
func TestJobsLongerThanTheAckWait(t *testing.T) {
	t.Parallel()
	s, _ := newBrokerStack(t, withAckWait("4s"), nil)
	c := s.census()
	w1 := s.worker("w1", "--slots", "1")
	var all []*followed
	for i := range 3 {
		all = append(all, s.submit(id("long-%d", i), wire.Request{Argv: []string{"sleep", "6"}}))
	}
	require.Eventually(t, func() bool { return w1.metric(t, "sallyport_slots_used") == 1 }, patience, 20*time.Millisecond)
	ready, why := w1.get("/readyz")
	require.Equal(t, http.StatusOK, ready, "a worker without free slots is well: %s", why)
	w2 := s.worker("w2", "--slots", "1")
	workers := map[string]int{}
	for _, f := range all {
		require.LessOrEqual(t, s.consumerInfo().NumAckPending, 2, "more is taken than there are slots")
		f.wait().exited(0)
		require.Equal(t, 1, f.result.Attempt)
		workers[f.result.Worker.ID]++
	}
	s.queueEmpty()
	for i := range all {
		c.once(id("long-%d", i), 1)
	}
	require.Len(t, workers, 2, "the second worker found nothing to do")
	require.Zero(t, s.consumerInfo().NumRedelivered)
	for _, w := range []*service{w1, w2} {
		require.Zero(t, w.metric(t, "sallyport_redeliveries_total"))
	}
}
