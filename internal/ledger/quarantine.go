package ledger

import (
	"context"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/wire"
)

// Records are the quarantine records, as *bus.Quarantines keeps them.
type Records interface {
	PutOrReopen(ctx context.Context, rec wire.Quarantine) error
}

// Quarantiner makes a worker's quarantine records durable: it implements
// leasepool.Quarantiner.
type Quarantiner struct {
	Records Records
	// Keeper has the entries of sandboxes that outlive the worker; nil without any.
	Keeper *Keeper
	// Worker is who writes.
	Worker string
}

// Quarantine implements leasepool.Quarantiner.
func (q Quarantiner) Quarantine(ctx context.Context, r leasepool.Record) error {
	rec := wire.Quarantine{
		V: wire.Version, State: wire.InQuarantine,
		Lease: r.Handle.Lease, Provider: r.Handle.Provider, Host: r.Handle.Host, Handle: r.Handle.Detail,
		Worker: q.Worker, Tenant: r.Tenant, Job: r.Job,
		Reason: quarantineReason(r.Reason), Message: wire.Message("%s", r.Message), Evidence: evidence(r.Evidence),
		FirstSeen: r.FirstSeen,
	}
	if q.Keeper != nil {
		if written, err := q.Keeper.Quarantine(ctx, rec.Lease, rec); written || err != nil {
			return err
		}
	}
	// Without an entry, or with one that has ended: the sandbox may have come back, as
	// one whose create call is answered after the reaper has found nothing.
	return q.Records.PutOrReopen(ctx, rec)
}

// quarantineReason translates one closed set into the other; a word that is in
// neither counts as the strongest doubt.
func quarantineReason(r leasepool.QuarantineReason) wire.QuarantineReason {
	switch r {
	case leasepool.QuarantineUnproven:
		return wire.QuarantineUnproven
	case leasepool.QuarantineAmbiguousStart:
		return wire.QuarantineAmbiguousStart
	case leasepool.QuarantineAmbiguousMake:
		return wire.QuarantineAmbiguousMake
	case leasepool.QuarantineResetFailed:
		return wire.QuarantineResetFailed
	case leasepool.QuarantineDestroyFailed:
		return wire.QuarantineDestroyFailed
	case leasepool.QuarantineOwnerGone:
		return wire.QuarantineOwnerGone
	}
	return wire.QuarantineUnproven
}
