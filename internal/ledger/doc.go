// Package ledger keeps a worker's part of the durable books about sandboxes that
// outlive their worker: what it means to make, has made, uses and has ended, and
// its own sign of life, the epoch, by which others know whose they are. With it,
// a sandbox is found and ended whatever its worker dies of.
//
// What holds:
//
//   - An entry is written before the sandbox may exist, and never deleted: it ends
//     as destroyed, with evidence.
//   - Every write is a compare-and-set against the entry's own last sequence. Who
//     loses one has lost the lease (leasepool.ErrOvertaken).
//   - A worker whose sign of life was not acknowledged for its bound counts itself
//     out, at half the time after which others do: it drops its leases and begins a
//     new epoch before it makes others.
//   - A lease in doubt changes its entry and gets its quarantine record at once, in
//     one batch.
//
// A Keeper is safe for concurrent use; Begin and then Run are called once.
package ledger
