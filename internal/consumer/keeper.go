package consumer

import (
	"context"
	"time"
)

// keep looks after the heartbeats of everything that is worked on, until ctx
// ends. It never waits for the broker itself, so that no slow answer keeps it
// from ending a run whose ownership lapsed.
func (c *Consumer) keep(ctx context.Context) {
	// A thirty-second of the ack wait is the precision of the fence.
	tick := time.NewTicker(min(max(c.broker.shortest()/32, 5*time.Millisecond), 500*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		for _, d := range c.deliveries() {
			d.tend(now)
		}
	}
}

// tend starts the beat that is due and looks at the claim.
func (d *delivery) tend(now time.Time) {
	d.mu.Lock()
	if !d.ended && !d.beating && !now.Before(d.beatAt) {
		d.beating = true
		d.beats.Go(func() { d.beat(now) })
	}
	cl := d.claim
	d.mu.Unlock()
	if cl != nil {
		cl.tend(now)
	}
}

// beat tells the server that the message is worked on.
func (d *delivery) beat(began time.Time) {
	err := d.ask(d.live, ackProgress, d.ackWait/(2*beatsPerWait))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.beating = false
	d.beatAt = began.Add(d.ackWait / beatsPerWait)
	if err != nil {
		d.beatAt = time.Now().Add(d.ackWait / (4 * beatsPerWait))
		d.c.count.missedBeats.Add(1)
	}
}
