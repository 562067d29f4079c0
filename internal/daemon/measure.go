package daemon

import (
	"errors"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/observe"
	"github.com/sallyport/sallyport/internal/reaper"
)

// measure registers the worker's metrics.
func (w *worker) measure() error {
	var reaps error
	if w.reaper != nil {
		reaps = measureReaper(w.metrics, w.reaper)
	}
	return errors.Join(
		measureBus(w.metrics, w.bus), measureConsumer(w.metrics, w.consumer), measurePool(w.metrics, w.pool), reaps,
		w.metrics.Add(observe.Metric{
			Name: "ready", Help: "1 while jobs are taken.", Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(truth(w.ready() == nil)) },
		}),
	)
}

func measureConsumer(set *observe.Set, c *consumer.Consumer) error {
	total := func(name, help string, read func(consumer.Stats) uint64) observe.Metric {
		return observe.Metric{
			Name: name, Help: help, Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(read(c.Stats()))) },
		}
	}
	gauge := func(name, help string, read func(consumer.Stats) int) observe.Metric {
		return observe.Metric{
			Name: name, Help: help, Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(float64(read(c.Stats()))) },
		}
	}
	return set.Add(
		gauge("slots", "Jobs that this worker runs at once.", func(s consumer.Stats) int { return s.Slots }),
		gauge("slots_used", "Jobs that are worked on now.", func(s consumer.Stats) int { return s.Running }),
		total("deliveries_total", "Messages that took a slot.", func(s consumer.Stats) uint64 { return s.Delivered }),
		total("redeliveries_total", "Messages that took a slot and had been delivered before.", func(s consumer.Stats) uint64 { return s.Redelivered }),
		total("naks_total", "Messages given back to the queue.", func(s consumer.Stats) uint64 { return s.Naks }),
		total("dead_letters_total", "Messages copied to the dead letters.", func(s consumer.Stats) uint64 { return s.Invalid }),
		observe.Metric{
			Name: "finals_total", Help: "Final decisions by outcome.", Kind: observe.Counter, Label: "outcome",
			Read: func() map[string]float64 {
				finals := map[string]float64{}
				for outcome, n := range c.Stats().Finals {
					finals[string(outcome)] = float64(n)
				}
				return finals
			},
		},
		total("finals_repeated_total", "Stored decisions that were published again.", func(s consumer.Stats) uint64 { return s.Repeated }),
		total("fenced_total", "Runs whose ownership lapsed or was lost.", func(s consumer.Stats) uint64 { return s.Fenced }),
		total("missed_beats_total", "Heartbeats and renewals that were not acknowledged.", func(s consumer.Stats) uint64 { return s.MissedBeats }),
		total("cancelled_total", "Cancels that were taken.", func(s consumer.Stats) uint64 { return s.Cancelled }),
		total("control_refused_total", "Control requests met with silence for their reply subject.", func(s consumer.Stats) uint64 { return s.ControlRefused }),
		total("pull_resets_total", "Requests for messages that were lost.", func(s consumer.Stats) uint64 { return s.PullResets }),
		total("pull_surplus_total", "Messages that came and found no slot.", func(s consumer.Stats) uint64 { return s.Surplus }),
	)
}

func measureBus(set *observe.Set, b *bus.Bus) error {
	return set.Add(
		observe.Metric{
			Name: "nats_connected", Help: "1 while both connections are up.", Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(truth(b.Connected())) },
		},
		observe.Metric{
			Name: "nats_reconnects_total", Help: "Reconnects of both connections.", Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(b.Reconnects())) },
		},
		observe.Metric{
			Name: "nats_permission_errors_total", Help: "What the server refused by permissions; must stay 0.", Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(b.PermissionErrors())) },
		},
		observe.Metric{
			Name: "nats_slow_consumers_total", Help: "Times that a subscription dropped messages.", Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(b.SlowConsumers())) },
		},
	)
}

func measurePool(set *observe.Set, pool *leasepool.Pool) error {
	total := func(name, help string, read func(leasepool.Totals) uint64) observe.Metric {
		return observe.Metric{
			Name: name, Help: help, Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(read(pool.Stats().Totals))) },
		}
	}
	return set.Add(
		observe.Metric{
			Name: "lease_capacity", Help: "Sandboxes that the pool may hold.", Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(float64(pool.Stats().Capacity)) },
		},
		observe.Metric{
			Name: "leases", Help: "Leases that hold capacity, by state.", Kind: observe.Gauge, Label: "state",
			Read: func() map[string]float64 { return leaseStates(pool.Stats()) },
		},
		observe.Metric{
			Name: "leases_unclosed", Help: "Leases that are gone while the ledger does not say so yet.", Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(float64(pool.Stats().Unclosed)) },
		},
		observe.Metric{
			Name: "lease_waiters", Help: "Jobs that wait for a lease.", Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(float64(pool.Stats().Waiters)) },
		},
		total("leases_created_total", "Create calls.", func(t leasepool.Totals) uint64 { return t.Created }),
		total("leases_gone_total", "Leases proven gone.", func(t leasepool.Totals) uint64 { return t.Gone }),
		total("lease_create_errors_total", "Create calls that brought no sandbox in time.", func(t leasepool.Totals) uint64 { return t.CreateErrors }),
		total("leases_acquired_total", "Leases handed out.", func(t leasepool.Totals) uint64 { return t.Acquired }),
		total("leases_reused_total", "Leases handed out that had served before.", func(t leasepool.Totals) uint64 { return t.Reused }),
		total("lease_timeouts_total", "Jobs that got no lease in time.", func(t leasepool.Totals) uint64 { return t.Timeouts }),
		total("leases_quarantined_total", "Leases that came into doubt.", func(t leasepool.Totals) uint64 { return t.Quarantined }),
		total("leases_reaped_total", "Leases in doubt that the reaper proved gone.", func(t leasepool.Totals) uint64 { return t.Reaped }),
		total("lease_calls_stuck_total", "Calls to a provider that did not return in time.", func(t leasepool.Totals) uint64 { return t.Stuck }),
	)
}

func leaseStates(s leasepool.Stats) map[string]float64 {
	return map[string]float64{
		"creating": float64(s.Creating), "confirming": float64(s.Confirming), "reserved": float64(s.Reserved), "abandoned": float64(s.Abandoned), "idle": float64(s.Idle - s.Warm), "warm": float64(s.Warm),
		"in_use": float64(s.InUse), "resetting": float64(s.Resetting), "destroying": float64(s.Destroying),
		"poisoned": float64(s.Poisoned), "quarantined": float64(s.Quarantined),
	}
}

func measureReaper(set *observe.Set, r *reaper.Reaper) error {
	total := func(name, help string, read func(reaper.Stats) uint64) observe.Metric {
		return observe.Metric{
			Name: name, Help: help, Kind: observe.Counter,
			Read: func() map[string]float64 { return observe.One(float64(read(r.Stats()))) },
		}
	}
	return errors.Join(measureSweeps(set, r), set.Add(
		observe.Metric{
			Name: "quarantine_leases", Help: "Leases in quarantine that this reaper answers for, by state.", Kind: observe.Gauge, Label: "state",
			Read: func() map[string]float64 {
				s := r.Stats()
				return map[string]float64{"quarantined": float64(s.Quarantined), "held": float64(s.Held), "unreadable": float64(s.Bad)}
			},
		},
		observe.Metric{
			Name: "quarantine_reasons", Help: "Leases in quarantine by reason.", Kind: observe.Gauge, Label: "reason",
			Read: func() map[string]float64 {
				reasons := map[string]float64{}
				for reason, n := range r.Stats().Reasons {
					reasons[string(reason)] = float64(n)
				}
				return reasons
			},
		},
		observe.Metric{
			Name: "quarantine_oldest_seconds", Help: "Age of the oldest lease in quarantine; 0 without one. Alert on it.", Kind: observe.Gauge,
			Read: func() map[string]float64 {
				oldest := r.Stats().Oldest
				if oldest.IsZero() {
					return observe.One(0)
				}
				return observe.One(time.Since(oldest).Seconds())
			},
		},
		total("reaper_attempts_total", "Tries to destroy.", func(s reaper.Stats) uint64 { return s.Attempts }),
		total("reaper_failures_total", "Tries that did not end in proof.", func(s reaper.Stats) uint64 { return s.Failures }),
		total("reaper_destroyed_total", "Leases whose end was proven and written.", func(s reaper.Stats) uint64 { return s.Destroyed }),
	))
}

func connected(b *bus.Bus) error {
	if !b.Connected() {
		return errors.New("not connected to NATS")
	}
	return nil
}

func truth(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}
