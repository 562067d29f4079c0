package observe

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// namespace begins the name of every metric.
const namespace = "sallyport"

// Kind tells a figure that only rises from one that also falls.
type Kind int

// The kinds. The zero value is invalid.
const (
	Counter Kind = iota + 1
	Gauge
)

// Metric is one figure, read at each scrape.
type Metric struct {
	// Name without the prefix, in snake case; a counter's ends in _total.
	Name, Help string
	Kind       Kind
	// Label is the one label's name; empty means that there is none.
	Label string
	// Read gives the value for each of the label's values, or for "" where there
	// is no label. It must return soon.
	Read func() map[string]float64
}

// One is Read's answer for a metric without a label.
func One(value float64) map[string]float64 { return map[string]float64{"": value} }

// Set is the metrics of one process. It is safe for concurrent use.
type Set struct {
	registry *prometheus.Registry
}

// NewSet makes a Set that already holds the Go runtime's and the process's own
// metrics, and the build's version.
func NewSet(version string) (*Set, error) {
	s := &Set{registry: prometheus.NewRegistry()}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the label names the build.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	return s, s.register(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

func (s *Set) register(cs ...prometheus.Collector) error {
	for _, c := range cs {
		if err := s.registry.Register(c); err != nil {
			return fmt.Errorf("register a metric: %w", err)
		}
	}
	return nil
}

// Add registers metrics. A name may be used once.
func (s *Set) Add(metrics ...Metric) error {
	for _, m := range metrics {
		if err := s.register(newReader(m)); err != nil {
			return err
		}
	}
	return nil
}

// Handler serves the metrics in the Prometheus text format.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// reader is a Metric as a collector.
type reader struct {
	Metric
	desc *prometheus.Desc
}

func newReader(m Metric) reader {
	var labels []string
	if m.Label != "" {
		labels = []string{m.Label}
	}
	return reader{m, prometheus.NewDesc(prometheus.BuildFQName(namespace, "", m.Name), m.Help, labels, nil)}
}

func (r reader) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc }

func (r reader) Collect(ch chan<- prometheus.Metric) {
	kind := prometheus.GaugeValue
	if r.Kind == Counter {
		kind = prometheus.CounterValue
	}
	for label, value := range r.Read() {
		var labels []string
		if r.Label != "" {
			labels = []string{label}
		}
		metric, err := prometheus.NewConstMetric(r.desc, kind, value, labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(r.desc, err)
		}
		ch <- metric
	}
}
