package leasepool

import (
	"context"
	"errors"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// ErrOvertaken is a Ledger's answer that somebody else decided about a lease: it
// may not be used, only destroyed.
var ErrOvertaken = errors.New("somebody else decided about the lease")

// Ledger is the durable book of sandboxes that outlive their worker. Only leases
// of providers that say Capabilities.OutlivesWorker are written.
//
// A call returns soon after its context ends; calls for one lease come one after
// another, except that Destroyed may come beside any other one that does not
// return. An error that is not ErrOvertaken means that the entry may have been
// written or not.
type Ledger interface {
	// Intend is durable before Create is called: nothing is created after an error.
	Intend(ctx context.Context, h sandbox.Handle, profile string) error
	// Confirm notes the handle of the sandbox that was made. After ErrOvertaken it is
	// destroyed and never used. Repeated after an error.
	Confirm(ctx context.Context, h sandbox.Handle) error
	// Use marks the lease in use before each job. After ErrOvertaken it is never
	// used. Repeated for the same use after an error, perhaps for another tenant
	// where none had it before.
	Use(ctx context.Context, lease string, u Use) error
	// Destroyed ends the entry with evidence. It is idempotent: an entry that is not
	// there, has ended, or is the reaper's since it stands in quarantine, is nil.
	Destroyed(ctx context.Context, lease string, proof sandbox.Proof) error
}

// Use is one job's use of a lease.
type Use struct {
	Tenant string
	// Use counts the jobs of this sandbox, from 1.
	Use int
}

// Disown drops every lease that stands in the ledger, since the worker may not
// call them its own any more: its epoch has lapsed. Once it returns, none of them
// is handed out: idle ones are destroyed, those in use serve nobody afterwards,
// those that are being made are destroyed when they come. Leases made after it are
// of the new epoch.
func (p *Pool) Disown() {}
