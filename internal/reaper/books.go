package reaper

import (
	"context"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// Books are the durable books that a reaper works on: the quarantine records and
// the ledger. All writes are by the sequence that was read, so that any number of
// reapers and operators may work on the same books. OnBus is the real one.
type Books interface {
	// Queue opens the deliveries of the records of one provider and host
	// (bus.AnyHost: all hosts).
	Queue(ctx context.Context, provider, host string) (Queue, error)
	// Quarantined reads one record; bus.ErrNoRecord when there is none.
	Quarantined(ctx context.Context, provider, host, lease string) (*bus.StoredQuarantine, error)
	// QuarantinedOn lists the records of one provider and host, finished ones too.
	// An error beside records means that others are missing.
	QuarantinedOn(ctx context.Context, provider, host string) ([]bus.StoredQuarantine, error)
	// Resolve writes a record's end, and that of its ledger entry where there is
	// one; bus.ErrConflict when the record has changed.
	Resolve(ctx context.Context, rec wire.Quarantine, expect uint64) error
	// Update replaces an unfinished record by another one, which is a delivery of
	// its own; bus.ErrConflict when the record has changed.
	Update(ctx context.Context, rec wire.Quarantine, expect uint64) (uint64, error)
	// Subjects names the records.
	Subjects() wire.Subjects
}

// Queue delivers records, each until it is settled.
type Queue interface {
	// Fetch waits up to wait for up to limit deliveries. None is no error. What is
	// on its way when ctx ends comes with the next Fetch.
	Fetch(ctx context.Context, limit int, wait time.Duration) ([]*bus.Delivery, error)
	// Close ends the deliveries; those that are not settled come again elsewhere.
	Close() error
}

// OnBus are the books at b. A delivery about which a reaper is silent comes again
// after ackWait (1 s or more; 0: a minute), which all reapers of a provider and
// host should agree about.
func OnBus(b *bus.Bus, ackWait time.Duration) Books { return onBus{bus: b, ackWait: ackWait} }

type onBus struct {
	bus     *bus.Bus
	ackWait time.Duration
}

func (o onBus) Queue(ctx context.Context, provider, host string) (Queue, error) {
	q, err := o.bus.EnsureReaper(ctx, provider, host, o.ackWait)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return q, nil
}

func (o onBus) Quarantined(ctx context.Context, provider, host, lease string) (*bus.StoredQuarantine, error) {
	return o.bus.Quarantines().Get(ctx, provider, host, lease)
}

func (o onBus) QuarantinedOn(ctx context.Context, provider, host string) ([]bus.StoredQuarantine, error) {
	return o.bus.Quarantines().ListHost(ctx, provider, host)
}

func (o onBus) Resolve(ctx context.Context, rec wire.Quarantine, expect uint64) error {
	return o.bus.Quarantines().Resolve(ctx, rec, expect)
}

func (o onBus) Update(ctx context.Context, rec wire.Quarantine, expect uint64) (uint64, error) {
	return o.bus.Quarantines().Update(ctx, rec, expect)
}

func (o onBus) Subjects() wire.Subjects { return o.bus.Subjects() }
