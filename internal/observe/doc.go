// Package observe is what an operator sees: the logger with its fixed set of
// keys, the metrics, and the health endpoints.
//
// Metrics are read from the parts' own figures at each scrape (Set.Add), or
// observed by a decorator around the consumer's handler (Set.Handler). Every
// label's values are bounded: queues by the configuration, outcomes, reasons and
// providers by closed sets. Tenants and jobs are never labels.
package observe
