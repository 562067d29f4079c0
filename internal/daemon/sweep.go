package daemon

import (
	"time"

	"github.com/sallyport/sallyport/internal/observe"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/wire"
)

// measureSweeps registers what the reaper's sweeps find.
func measureSweeps(set *observe.Set, r *reaper.Reaper) error {
	return set.Add(
		observe.Metric{
			Name: "reaper_sweeps_total", Help: "Sweeps for sandboxes without an owner: complete, or incomplete and without effect on what was not seen.",
			Kind: observe.Counter, Label: "result",
			Read: func() map[string]float64 {
				s := r.Stats()
				return map[string]float64{"complete": float64(s.Sweeps), "incomplete": float64(s.Incomplete)}
			},
		},
		observe.Metric{
			Name: "reaper_swept_total", Help: "Leases that sweeps put into quarantine.", Kind: observe.Counter, Label: "reason",
			Read: func() map[string]float64 {
				// Zeros from the start: an increase from nothing to one is none to Prometheus.
				swept := map[string]float64{}
				for _, reason := range []wire.QuarantineReason{wire.QuarantineOwnerGone, wire.QuarantineStaleIntent, wire.QuarantineUnowned, wire.QuarantineReappeared} {
					swept[string(reason)] = 0
				}
				for reason, n := range r.Stats().Swept {
					swept[string(reason)] = float64(n)
				}
				return swept
			},
		},
		observe.Metric{
			Name: "reaper_strays", Help: "Sandboxes without an owner that wait for a second look.", Kind: observe.Gauge,
			Read: func() map[string]float64 { return observe.One(float64(r.Stats().Strays)) },
		},
		observe.Metric{
			Name: "reaper_sweep_age_seconds", Help: "Time since the last complete sweep, before the first since the start; 0 where nothing is swept.", Kind: observe.Gauge,
			Read: func() map[string]float64 {
				at := r.Stats().SweptAt
				if at.IsZero() {
					return observe.One(0)
				}
				return observe.One(time.Since(at).Seconds())
			},
		},
		observe.Metric{
			Name: "reaper_attempts_most", Help: "Tries at the lease in quarantine that took the most so far.", Kind: observe.Gauge,
			Read: func() map[string]float64 {
				most := 0
				for _, t := range r.Tries() {
					most = max(most, t.Attempts)
				}
				return observe.One(float64(most))
			},
		},
	)
}
