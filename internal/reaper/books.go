package reaper

import (
	"context"
	"errors"
	"maps"
	"sync"
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
	// Lease reads one ledger entry; bus.ErrNoRecord when there is none.
	Lease(ctx context.Context, provider, lease string) (*bus.StoredLease, error)
	// Leases lists a provider's ledger entries, finished ones too. With an error
	// others may be missing.
	Leases(ctx context.Context, provider string) ([]bus.StoredLease, error)
	// Epochs lists the workers' epochs. With an error others may be missing.
	Epochs(ctx context.Context) ([]bus.StoredEpoch, error)
	// PutEpoch replaces an epoch; bus.ErrConflict when it has changed.
	PutEpoch(ctx context.Context, rec wire.EpochRecord, expect uint64) (uint64, error)
	// Quarantine moves an entry that was read to quarantine, with its record, or
	// opens its finished record again; bus.ErrConflict when the entry has changed.
	Quarantine(ctx context.Context, entry bus.StoredLease, q wire.Quarantine) error
	// Unowned writes the record of a sandbox without a ledger entry; where q's reason
	// is that it reappeared, it opens its finished record again. One that stands
	// unfinished stays as it is.
	Unowned(ctx context.Context, q wire.Quarantine) error
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
func OnBus(b *bus.Bus, ackWait time.Duration) Books {
	return &onBus{Ledger: b.Ledger(), bus: b, records: b.Quarantines(), ackWait: ackWait, finished: map[string]finished{}}
}

type onBus struct {
	*bus.Ledger

	bus     *bus.Bus
	records *bus.Quarantines
	ackWait time.Duration

	mu sync.Mutex
	// finished are entries that were read as destroyed, by lease: none of them is ever
	// owned again. So a busy fleet's many are read once each, and how long a listing
	// takes, and whether it is within its bounds, depends on what is new.
	finished map[string]finished
}

// finished is what is kept of a finished entry, and until when: by then the server
// has dropped it, as a rule.
type finished struct {
	provider, host string
	seq            uint64
	until          time.Time
}

func (o *onBus) Queue(ctx context.Context, provider, host string) (Queue, error) {
	q, err := o.bus.EnsureReaper(ctx, provider, host, o.ackWait)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return q, nil
}

func (o *onBus) Quarantined(ctx context.Context, provider, host, lease string) (*bus.StoredQuarantine, error) {
	return o.records.Get(ctx, provider, host, lease)
}

func (o *onBus) QuarantinedOn(ctx context.Context, provider, host string) ([]bus.StoredQuarantine, error) {
	return o.records.ListHost(ctx, provider, host)
}

func (o *onBus) Update(ctx context.Context, rec wire.Quarantine, expect uint64) (uint64, error) {
	return o.records.Update(ctx, rec, expect)
}

func (o *onBus) Lease(ctx context.Context, provider, lease string) (*bus.StoredLease, error) {
	return o.Get(ctx, provider, lease)
}

// Leases implements Books. A finished entry that was read before comes as it was
// then, with its names, state and sequence alone.
func (o *onBus) Leases(ctx context.Context, provider string) ([]bus.StoredLease, error) {
	var known []bus.StoredLease
	list, err := o.ListBut(ctx, provider, func(lease string) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		f, ended := o.finished[lease]
		if ended = ended && f.provider == provider; ended {
			rec := wire.LeaseRecord{V: wire.Version, State: wire.LeaseDestroyed, Lease: lease, Provider: f.provider, Host: f.host}
			known = append(known, bus.StoredLease{Record: rec, Seq: f.seq})
		}
		return ended
	})
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.finished, func(_ string, f finished) bool { return now.After(f.until) })
	for i := range list {
		if rec := &list[i].Record; rec.State == wire.LeaseDestroyed {
			o.finished[rec.Lease] = finished{rec.Provider, rec.Host, list[i].Seq, now.Add(bus.FinishedEntryTTL)}
		}
	}
	return append(known, list...), err
}

// Unowned implements Books. Where the record is written between the two calls, it
// is somebody else's, who knows as much as we do.
func (o *onBus) Unowned(ctx context.Context, q wire.Quarantine) error {
	if q.Reason != wire.QuarantineReappeared {
		return o.records.Put(ctx, q)
	}
	stored, err := o.records.Get(ctx, q.Provider, q.Host, q.Lease)
	switch {
	case errors.Is(err, bus.ErrNoRecord):
		return o.records.Put(ctx, q)
	case err != nil:
		return err
	case stored.Record.State != wire.Gone:
		return nil
	}
	_, err = o.records.Update(ctx, q, stored.Seq)
	return err
}

func (o *onBus) Subjects() wire.Subjects { return o.bus.Subjects() }
