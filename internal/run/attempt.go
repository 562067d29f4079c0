// Package run is the handover between the queue and the sandbox: one attempt of
// one job, the gate that the queue opens, and the place where output goes.
//
// The consumer makes an Attempt and hands it to a handler (the executor) that
// knows sandboxes; neither knows the other. All of it is used by one attempt
// only; Gate and Output are safe for concurrent use.
package run

import (
	"context"
	"errors"
	"time"

	"github.com/sallyport/sallyport/internal/wire"
)

// The causes with which an attempt's context ends (context.Cause). Whoever
// decides to end a run cancels with one of these; the first decision wins.
var (
	// ErrCancelled means that the publisher cancelled the job.
	ErrCancelled = errors.New("cancelled by the publisher")
	// ErrShutdown means that the worker stops and the drain time is over.
	ErrShutdown = errors.New("worker shutdown")
	// ErrFenced means that the worker may no longer own the job: it ends the run
	// and publishes nothing.
	ErrFenced = errors.New("ownership of the job lapsed")
)

// Attempt is one try at a job.
type Attempt struct {
	Job     wire.Job
	Request *wire.Request
	// Number counts from 1 per job.
	Number int
	// Queued is how long the message waited in the queue before its delivery.
	Queued time.Duration
	Mode   wire.OutputMode
	// Hurry is closed when the run must have ended within the time for a kill,
	// whatever grace period it was given: ownership lapsed, or the worker stops.
	// The context cannot say so once it has ended for another cause. Nil never is.
	Hurry <-chan struct{}
}

// Gate is the queue's word that this attempt may start.
type Gate interface {
	// Claim writes the claim for a run in the named lease and returns nil once it
	// is acknowledged. The program is started only after that. An error means
	// that this worker may not start the job: the handler ends its preparation
	// and returns an Outcome with Abandoned set.
	Claim(ctx context.Context, lease string) error
	// Started notes that the start gate was opened.
	Started()
}

// Output takes the events of one attempt, in the order of their sequence.
type Output interface {
	// Emit hands over one event; it may block for back-pressure and may keep no
	// reference to ev.Data after it returns. An error means that the event (and
	// so its sequence number) did not go out; the run goes on and the loss is
	// declared.
	Emit(ctx context.Context, ev wire.Event) error
	// MaxChunk is the greatest number of data bytes that one event may carry now
	// (the connected server's announced maximum payload less headers).
	MaxChunk() int
}

// Outcome is what a handler gives back.
type Outcome struct {
	// Result is the final decision, except where Abandoned.
	Result wire.Result
	// Abandoned says that the start gate surely never opened and that no final
	// decision was made: the job belongs back in the queue (or to another
	// worker). Err says why, for the log.
	Abandoned bool
	Err       error
	// Settled is closed once everything that must be durable before the job's
	// message is acknowledged is durable: the quarantine record of its lease.
	// Nil means that there is nothing to wait for.
	Settled <-chan struct{}
}
