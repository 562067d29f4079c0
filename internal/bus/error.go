package bus

import "errors"

// What a caller branches on. Everything else is an error to retry or to report.
var (
	// ErrNoRecord means that the leader has no such record.
	ErrNoRecord = errors.New("no such record")
	// ErrConflict means that the compare-and-set surely lost: another writer's
	// record stands there now.
	ErrConflict = errors.New("another writer was first")
	// ErrUnknown means that the outcome is in doubt: the answer was lost and the
	// record could not be read again in time. It may or may not be written.
	ErrUnknown = errors.New("outcome unknown, the answer was lost")
	// ErrRecordTooBig means that the record does not fit into one message.
	// Nothing was written.
	ErrRecordTooBig = errors.New("record exceeds the maximum message size")
	// ErrStreamFull means that the stream refuses new messages and, with them,
	// updates. Nothing was written.
	ErrStreamFull = errors.New("stream is full")
	// ErrNoStream means that nothing on the server takes this subject: the stream
	// is missing or has no leader. Nothing was written.
	ErrNoStream = errors.New("no stream takes this subject (see `sallyport streams check`)")
	// ErrNoBatch means that the ledger stream, or its server, takes no atomic
	// batches.
	ErrNoBatch = errors.New("the stream takes no atomic batches: allow_atomic must be on (run `sallyport streams apply`)")
	// ErrAlreadyQueued means that a message with this id waits in this queue.
	ErrAlreadyQueued = errors.New("already queued")
	// ErrQueueFull means that the jobs stream is at its bound.
	ErrQueueFull = errors.New("queue is full")
	// ErrNotQueued means that no message with this id is in the jobs stream.
	ErrNotQueued = errors.New("not queued")
	// ErrTooBig means that an event exceeds the connected server's maximum
	// payload or the output stream's maximum message size.
	ErrTooBig = errors.New("event exceeds the maximum payload")
	// ErrNotDelivered means that output is not confirmed yet. It is still kept
	// and sent again; call once more to wait on.
	ErrNotDelivered = errors.New("output not confirmed in time")
	// ErrDiscarded means that the output was given up (Discard).
	ErrDiscarded = errors.New("output was discarded")
	// ErrPressure means that a stream that must never be full is close to it.
	ErrPressure = errors.New("stream close to its bound")
	// ErrTruncated means that a listing was cut at its bound; what was read is
	// returned beside it.
	ErrTruncated = errors.New("listing cut at its bound")
	// ErrSilent means that the server did not answer a pull request, not even that
	// there is nothing: the permission for it may be missing.
	ErrSilent = errors.New("no answer to a pull request")
	// ErrClosed means that the bus was closed.
	ErrClosed = errors.New("bus closed")
)
