package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/sallyport/sallyport/internal/wire"
)

// Quarantines are the records of leases that could not be proven empty, one per
// lease. Where a record stands, the lease is in quarantine until the record says
// destroyed.
type Quarantines struct{ bus *Bus }

// Quarantines are the quarantine records.
func (b *Bus) Quarantines() *Quarantines { return &Quarantines{bus: b} }

// StoredQuarantine is a quarantine record as it stands at the leader.
type StoredQuarantine struct {
	Record wire.Quarantine
	// Seq is the record's stream sequence: what Update and Resolve expect.
	Seq  uint64
	Time time.Time
}

// Put publishes the record of a lease, acknowledged. It is create-only: a lease
// that has a record, whatever it says, keeps that one, and Put returns nil, so
// that publishing twice leaves one. Errors: ErrUnknown, ErrStreamFull,
// ErrRecordTooBig, ErrNoStream; Put again until it returns nil.
func (q *Quarantines) Put(ctx context.Context, rec wire.Quarantine) error {
	if rec.State != wire.InQuarantine {
		return fmt.Errorf("quarantine of %s: a new record's state is %q, not %q", rec.Lease, wire.InQuarantine, rec.State)
	}
	_, err := q.write(ctx, rec, 0, 0)
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// Update replaces an unfinished record by another unfinished one (hold, release
// of a hold, retry now) against the sequence that was read. Each update is a new
// delivery to the reaper. Errors as Runs.Update's.
func (q *Quarantines) Update(ctx context.Context, rec wire.Quarantine, expect uint64) (uint64, error) {
	if rec.State == wire.Gone {
		return 0, fmt.Errorf("quarantine of %s: %q is written by Resolve", rec.Lease, wire.Gone)
	}
	if expect == 0 {
		return 0, fmt.Errorf("quarantine of %s: an update needs the sequence that it replaces", rec.Lease)
	}
	return q.write(ctx, rec, expect, 0)
}

// Resolve writes the end of a lease, state destroyed, against the sequence that
// was read, with the result retention as its time to live. ErrConflict means
// that the record changed meanwhile: read it again.
func (q *Quarantines) Resolve(ctx context.Context, rec wire.Quarantine, expect uint64) error {
	if rec.State != wire.Gone {
		return fmt.Errorf("quarantine of %s: a resolved record's state is %q, not %q", rec.Lease, wire.Gone, rec.State)
	}
	if expect == 0 {
		return fmt.Errorf("quarantine of %s: resolving needs the sequence that it replaces", rec.Lease)
	}
	_, err := q.write(ctx, rec, expect, q.bus.retention)
	return err
}

func (q *Quarantines) write(ctx context.Context, rec wire.Quarantine, expect uint64, ttl time.Duration) (uint64, error) {
	data, err := wire.EncodeQuarantine(&rec)
	if err != nil {
		return 0, fmt.Errorf("quarantine of %s: %w", rec.Lease, err)
	}
	w := write{
		subject: q.bus.subjects.Quarantine(rec.Provider, rec.Host, rec.Lease),
		stream:  q.bus.streams.Ledger, data: data, expect: &expect, ttl: ttl,
	}
	return q.bus.cas(ctx, w, func(m *message) bool { return bytes.Equal(m.Data, data) })
}

// Get reads one record from the leader; ErrNoRecord when there is none.
func (q *Quarantines) Get(ctx context.Context, provider, host, lease string) (*StoredQuarantine, error) {
	subject := q.bus.subjects.Quarantine(provider, host, lease)
	if subject == "" {
		return nil, fmt.Errorf("quarantine of %q.%q.%q: not a valid token", provider, host, lease)
	}
	return q.get(ctx, subject)
}

func (q *Quarantines) get(ctx context.Context, subject string) (*StoredQuarantine, error) {
	m, err := q.bus.leaderGet(ctx, q.bus.streams.Ledger, getQuery{Last: subject})
	if err != nil {
		return nil, err
	}
	rec, err := wire.DecodeQuarantine(m.Data)
	if err != nil {
		return nil, fmt.Errorf("quarantine %s: %w", subject, err)
	}
	return &StoredQuarantine{Record: *rec, Seq: m.Seq, Time: m.Time}, nil
}

// List reads all records, finished ones too until their time to live ends,
// oldest first, at most MaxList (ErrTruncated beside them when there are more).
// One that cannot be read is an error beside the others.
func (q *Quarantines) List(ctx context.Context) ([]StoredQuarantine, error) {
	return q.list(ctx, q.bus.subjects.AllQuarantine())
}

// ListHost is List for one provider and host.
func (q *Quarantines) ListHost(ctx context.Context, provider, host string) ([]StoredQuarantine, error) {
	filter := q.bus.subjects.HostQuarantine(provider, host)
	if filter == "" {
		return nil, fmt.Errorf("quarantine of %q on %q: not a valid token", provider, host)
	}
	return q.list(ctx, filter)
}

func (q *Quarantines) list(ctx context.Context, filter string) ([]StoredQuarantine, error) {
	list, err := listRecords(ctx, q.bus, q.bus.streams.Ledger, filter, q.get)
	sort.Slice(list, func(i, j int) bool { return list[i].Seq < list[j].Seq })
	return list, err
}
