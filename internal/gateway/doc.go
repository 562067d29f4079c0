// Package gateway is the way in for publishers: a NATS micro service that takes
// requests (submit), and answers where a job stands (status), ends it (cancel)
// and what it printed (read).
//
// It checks a request at once, so that a mistake is answered in one round trip,
// strips what a tenant may not say, and is the only one that needs to publish on
// the jobs' subjects. It holds no state: several instances share the work in a
// queue group. Each endpoint hands its requests to a bounded number of
// goroutines; when all are busy, requests wait in the connection.
//
// The reply subject of every request passes the reply rule before anything is
// sent to it, an error included: otherwise silence and a counter.
package gateway
