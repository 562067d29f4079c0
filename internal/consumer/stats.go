package consumer

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/sallyport/sallyport/internal/wire"
)

// Stats are the counters and gauges of a consumer, for metrics.
type Stats struct {
	// Slots is the configured bound, Running what is worked on now, MaxRunning the
	// most that ever was, Asked the messages that are asked for and have not come.
	Slots, Running, MaxRunning, Asked int
	// Delivered counts messages that took a slot, Redelivered those of them that
	// had been delivered before.
	Delivered, Redelivered uint64
	// Naks counts messages given back, HandedBack those of them whose attempt was
	// abandoned or goes on elsewhere.
	Naks, HandedBack uint64
	// Invalid counts messages that were copied to the dead letters.
	Invalid uint64
	// Finals counts decisions by outcome, Repeated the stored ones that were
	// published again.
	Finals   map[wire.Outcome]uint64
	Repeated uint64
	// Fenced counts runs whose ownership lapsed or was lost, MissedBeats
	// heartbeats and renewals that were not acknowledged.
	Fenced, MissedBeats uint64
	// Cancelled counts cancels that were taken, ControlRefused control requests
	// whose reply subject is not allowed.
	Cancelled, ControlRefused uint64
	// PullRequests counts requests for messages, PullResets those that were lost,
	// Surplus messages that found no slot, Strange messages on the pull inbox that
	// belong to nothing.
	PullRequests, PullResets, Surplus, Strange uint64
}

// counters are what the consumer counts itself.
type counters struct {
	delivered, redelivered, naks, handedBack, invalid, repeated atomic.Uint64
	fenced, missedBeats, cancelled, controlRefused              atomic.Uint64

	mu     sync.Mutex
	finals map[wire.Outcome]uint64
}

func (c *counters) final(o wire.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finals == nil {
		c.finals = map[wire.Outcome]uint64{}
	}
	c.finals[o]++
}

// Stats is a snapshot.
func (c *Consumer) Stats() Stats {
	pull := c.puller.snapshot()
	s := Stats{
		Slots: c.cfg.Slots, Running: pull.Running, MaxRunning: pull.MaxRunning, Asked: pull.Owed,
		Delivered: c.count.delivered.Load(), Redelivered: c.count.redelivered.Load(),
		Naks: c.count.naks.Load(), HandedBack: c.count.handedBack.Load(), Invalid: c.count.invalid.Load(),
		Repeated: c.count.repeated.Load(), Fenced: c.count.fenced.Load(), MissedBeats: c.count.missedBeats.Load(),
		Cancelled: c.count.cancelled.Load(), ControlRefused: c.count.controlRefused.Load(),
		PullRequests: pull.Requests, PullResets: pull.Resets, Surplus: pull.Surplus, Strange: pull.Strange,
		Finals: map[wire.Outcome]uint64{},
	}
	c.count.mu.Lock()
	defer c.count.mu.Unlock()
	maps.Copy(s.Finals, c.count.finals)
	return s
}
