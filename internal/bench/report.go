package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// key names a row.
type key struct {
	workload    string
	about       string
	concurrency int
}

// row holds the cells of all rounds of one workload and concurrency.
type row struct {
	key
	ours, naive []cell
}

// summary is the median over the rounds.
type summary struct {
	rate     float64 // jobs per second
	p50, p99 time.Duration
	mbps     float64
	cpu      time.Duration // per job
}

func summarize(cells []cell) summary {
	var rates, p50s, p99s, mbps, cpus []float64
	for _, c := range cells {
		slices.Sort(c.latencies)
		rates = append(rates, float64(c.jobs)/c.elapsed.Seconds())
		p50s = append(p50s, float64(quantile(c.latencies, 0.50)))
		p99s = append(p99s, float64(quantile(c.latencies, 0.99)))
		mbps = append(mbps, float64(c.bytes)/1e6/c.elapsed.Seconds())
		cpus = append(cpus, float64(c.cpu)/float64(c.jobs))
	}
	return summary{
		rate: median(rates), p50: time.Duration(median(p50s)), p99: time.Duration(median(p99s)),
		mbps: median(mbps), cpu: time.Duration(median(cpus)),
	}
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// table writes the rows; ratios are ours over naive.
func table(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := fmt.Fprintln(t, "job\tc\tours jobs/s\tnaive jobs/s\tratio\tours p50\tp99\tnaive p50\tp99\tp50 ratio\tp99 ratio\tours MB/s\tnaive MB/s\tCPU/job ours\tnaive\tratio\t"); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	for _, r := range rows {
		o, n := summarize(r.ours), summarize(r.naive)
		if _, err := fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.2f\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.1f\t%.1f\t%s\t%s\t%.2f\t\n",
			r.workload, r.concurrency, o.rate, n.rate, o.rate/n.rate, short(o.p50), short(o.p99), short(n.p50), short(n.p99),
			float64(o.p50)/float64(n.p50), float64(o.p99)/float64(n.p99), o.mbps, n.mbps, short(o.cpu), short(n.cpu), float64(o.cpu)/float64(n.cpu)); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }
