// Package daemon builds each service's object graph from a Config and runs it:
// the worker, the reaper, the gateway, and dev, which is all of them around an
// embedded NATS server in one process.
//
// Each Run… function blocks until its context ends or a part fails, and returns
// when everything it started has ended. Its defers, read upwards, are the order
// of shutdown: what others need stops last.
package daemon
