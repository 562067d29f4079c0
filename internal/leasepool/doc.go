// Package leasepool owns every sandbox of a worker from the create call to the
// proof that it is gone. The executor acquires leases from it and releases them
// with a verdict; the daemon runs it and tells it what the reaper has proven.
//
// It is a thin shell around the transition function of package sandbox: what
// happens to a lease is decided there, here stand the books, the waiting and the
// background work. What always holds:
//
//   - One lease has one holder. It comes back to another only after the end of
//     the last job was proven and the sandbox was reset.
//   - A lease that served a tenant never serves another. Warm spares are
//     untouched and belong to nobody.
//   - Capacity is given back on proof alone: a lease that is being destroyed or
//     stands in quarantine counts.
//   - A lease in doubt stays in the books, poisoned, until its quarantine record
//     is durable, however long that takes, and until it is proven gone.
//   - Who waits longest is served first, and nobody waits without a bound.
//
// All methods of Pool are safe for concurrent use. One mutex guards the books;
// the provider, the quarantine and the log are never called under it. All
// background work runs on goroutines that Pool.Run owns and waits for.
package leasepool
