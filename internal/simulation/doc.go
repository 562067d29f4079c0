// Package simulation has tests only: seeded stories over the real lease pool,
// executor, ledger keeper and reaper, with the fake provider and a broker in
// memory, in virtual time. Workers crash, freeze, are cut off and come back;
// every call may fail, hang, or work and lose its answer. After each story the
// books are balanced against the truth, which the simulation alone knows:
//
//   - Every sandbox that was, or may have been, made ends destroyed with evidence.
//   - No lease is in use twice, or after doubt, or by two tenants, or before its
//     entry in the ledger says so.
//   - No worker has more sandboxes than its capacity.
//   - Each job gets exactly one final decision, and is acknowledged after that is
//     durable and after the quarantine record of its lease is.
//   - Nothing is written as destroyed that is still there.
//   - Nothing waits for ever.
//
// The queue's end of the story is a model of the consumer's rules (consumer_test.go):
// the real one needs a real server and has its own tests. The books in memory are
// held to the real ones by a conformance test.
//
// A seed gives nearly the same story again: what real code draws for itself (ids,
// jitter, the order within one nanosecond) is not the seed's. That a seed has
// failed is therefore shown again by a few runs of it (-seed=N -count=20).
package simulation
