package bus

import "context"

// ReadObject reads what an object store says about an object.
var ReadObject = readObject

// ListWithin is List within other bounds.
func (l *Ledger) ListWithin(ctx context.Context, provider string, records int, bytes int64) ([]StoredLease, error) {
	return l.leases(l.bus.subjects.ProviderLeases(provider), l.storedLease).records(ctx, l.bus, listBound{records: records, bytes: bytes})
}
