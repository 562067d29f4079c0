package integration

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// Eight jobs that write without end do not move the worker's memory.
func TestWorkerMemoryUnderFlood(t *testing.T) {
	const bound = 64 << 20
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "8")
	s.run("warm", "true").exited(0)
	idle := resident(t, w.cmd.Process.Pid)

	var all []*nats.Subscription
	for i := range 8 {
		body := `{"v":1,"argv":["yes"],"limits":{"wall_ms":4000,"grace_ms":200,"output_bytes":1000000000}}`
		f := s.publish(id("flood-%d", i), []byte(body), nil)
		all = append(all, f.sub)
	}
	// Readers that throw everything away but the result.
	results := make(chan *wire.Result, len(all))
	for _, sub := range all {
		go drainToResult(t, sub, results)
	}
	peak := idle
	for done := 0; done < len(all); {
		select {
		case r := <-results:
			require.NotNil(t, r)
			require.Contains(t, []wire.Outcome{wire.TimedOut, wire.Limit}, r.Outcome)
			require.Equal(t, wire.Proven, r.Containment.Verdict)
			done++
		case <-time.After(20 * time.Millisecond):
			peak = max(peak, resident(t, w.cmd.Process.Pid))
		}
	}
	t.Logf("idle %d MiB, peak %d MiB", idle>>20, peak>>20)
	limit := int64(bound)
	if raceEnabled {
		limit *= 3 // the race detector keeps several words of shadow for each word
	}
	require.Less(t, peak-idle, limit)
}

func drainToResult(t *testing.T, sub *nats.Subscription, out chan<- *wire.Result) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			t.Errorf("flood: %v", err)
			out <- nil
			return
		}
		if wire.EventType(msg.Header.Get(wire.HeaderEvent)) == wire.EventResult {
			r, err := wire.DecodeResult(msg.Data)
			if err != nil {
				t.Errorf("flood: %v", err)
			}
			out <- r
			return
		}
	}
}

func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			require.NoError(t, err)
			return kb << 10
		}
	}
	require.Fail(t, "no VmRSS")
	return 0
}
