package daemon

import (
	"context"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/wire"
)

// quarantiner publishes the pool's quarantine records.
type quarantiner struct {
	records *bus.Quarantines
	worker  string
}

// Quarantine implements leasepool.Quarantiner.
func (q quarantiner) Quarantine(ctx context.Context, r leasepool.Record) error {
	rec := wire.Quarantine{
		V: wire.Version, State: wire.InQuarantine,
		Lease: r.Handle.Lease, Provider: r.Handle.Provider, Host: r.Handle.Host, Handle: r.Handle.Detail,
		Worker: q.worker, Tenant: r.Tenant, Job: r.Job,
		Reason: quarantineReason(r.Reason), Message: wire.Message("%s", r.Message), FirstSeen: r.FirstSeen,
	}
	for _, e := range r.Evidence {
		rec.Evidence = append(rec.Evidence, wire.Evidence{Kind: string(e.Kind), Detail: wire.Message("%s", e.Detail)})
	}
	return q.records.Put(ctx, rec)
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
