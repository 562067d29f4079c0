// Package executor runs one attempt in one lease and folds all that happened
// into one wire.Result.
//
// The consumer calls it through its Handler interface; it knows sandboxes and
// the lease pool, and no NATS. Executor is safe for concurrent use; everything
// about one attempt is owned by that attempt's goroutine (type attempt), apart
// from the recorder, which takes output from the provider's goroutines.
//
// Invariants: the program starts only after the gate's claim returned nil; the
// first decision to end a run wins; the wait for the proof is bounded; whatever
// happens, the lease is released exactly once, in the function that acquired it.
package executor
