package observe

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// Jobs wraps next so that each attempt that it handles is counted by queue,
// outcome and reason, and its times are observed by queue.
func (s *Set) Jobs(next consumer.Handler) (consumer.Handler, error) {
	// From 1 ms, a warm lease's part, to an hour, the shipped profile's longest
	// wall time.
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600}
	j := &jobs{
		Handler: next,
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "attempts_total",
			Help: "Attempts by queue, outcome (abandoned: back to the queue before the start) and reason.",
		}, []string{"queue", "outcome", "reason"}),
		unproven: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "unproven_total",
			Help: "Attempts after which it was not proven that nothing is left.",
		}),
		output: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "output_bytes_total", Help: "Bytes that programs wrote, as delivered.",
		}, []string{"stream"}),
		phase: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "phase_seconds", Buckets: buckets,
			Help: "Where the time of an attempt went: queued, lease, setup, run, proof, handled (all but queued).",
		}, []string{"queue", "phase"}),
	}
	return j, s.register(j.attempts, j.unproven, j.output, j.phase)
}

type jobs struct {
	consumer.Handler

	attempts *prometheus.CounterVec
	unproven prometheus.Counter
	output   *prometheus.CounterVec
	phase    *prometheus.HistogramVec
}

// Handle observes what the wrapped handler did.
func (j *jobs) Handle(ctx context.Context, a run.Attempt, gate run.Gate, out run.Output) run.Outcome {
	began := time.Now()
	outcome := j.Handler.Handle(ctx, a, gate, out)
	queue, r := a.Job.Queue, outcome.Result
	j.phase.WithLabelValues(queue, "handled").Observe(time.Since(began).Seconds())
	if outcome.Abandoned {
		j.attempts.WithLabelValues(queue, "abandoned", "").Inc()
		return outcome
	}
	j.attempts.WithLabelValues(queue, string(r.Outcome), string(r.Reason)).Inc()
	if r.Containment != nil && r.Containment.Verdict == wire.Unproven {
		j.unproven.Inc()
	}
	j.output.WithLabelValues("stdout").Add(float64(r.Output.StdoutBytes))
	j.output.WithLabelValues("stderr").Add(float64(r.Output.StderrBytes))
	for phase, ms := range map[string]float64{
		"queued": r.Timing.QueuedMS, "lease": r.Timing.LeaseMS, "setup": r.Timing.SetupMS,
		"run": r.Timing.RunMS, "proof": r.Timing.ProofMS,
	} {
		j.phase.WithLabelValues(queue, phase).Observe(ms / 1000)
	}
	return outcome
}
