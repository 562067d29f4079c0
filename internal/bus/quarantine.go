package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// seq is what a write over s expects; 0 where nothing is to be replaced.
func (s *StoredQuarantine) seq() uint64 {
	if s == nil {
		return 0
	}
	return s.Seq
}

// Put publishes the record of a lease, acknowledged. It is create-only: a lease
// that has a record, whatever it says, keeps that one, and Put returns nil, so
// that publishing twice leaves one, and a late repetition does not bring back what
// is gone. Who has seen the sandbox of a lease that a record calls destroyed needs
// PutOrReopen, or Ledger.Quarantine where the lease has an entry. Errors:
// ErrUnknown, ErrStreamFull, ErrRecordTooBig, ErrNoStream; Put again until it
// returns nil.
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

// PutOrReopen publishes the record of a lease that has no ledger entry and was seen
// just now: it is created, or replaces one that says destroyed. An unfinished record
// stays as it is; so does one that rec itself began and that was resolved meanwhile.
// Errors as Put's.
func (q *Quarantines) PutOrReopen(ctx context.Context, rec wire.Quarantine) error {
	if rec.State != wire.InQuarantine {
		return fmt.Errorf("quarantine of %s: a new record's state is %q, not %q", rec.Lease, wire.InQuarantine, rec.State)
	}
	return q.bus.settle(ctx, func(ctx context.Context) ([]write, error) {
		stored, err := q.look(ctx, rec)
		if err != nil || stored != nil && (stored.Record.State != wire.Gone || resolved(stored.Record, rec)) {
			return nil, err
		}
		w, err := q.record(rec, stored.seq(), 0)
		return []write{w}, err
	})
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

// Resolve writes the end of a lease without ledger entry, state destroyed, against
// the sequence that was read, with the result retention as its time to live.
// ErrConflict means that the record changed meanwhile: read it again. Where the
// lease may have an entry, it is Ledger.Resolve that ends both.
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
	w, err := q.record(rec, expect, ttl)
	if err != nil {
		return 0, err
	}
	return q.bus.cas(ctx, w, func(m *message) bool { return bytes.Equal(m.Data, w.data) })
}

// record is the write of a record.
func (q *Quarantines) record(rec wire.Quarantine, expect uint64, ttl time.Duration) (write, error) {
	data, err := wire.EncodeQuarantine(&rec)
	if err != nil {
		return write{}, fmt.Errorf("quarantine of %s: %w", rec.Lease, err)
	}
	return write{
		subject: q.bus.subjects.Quarantine(rec.Provider, rec.Host, rec.Lease),
		stream:  q.bus.streams.Ledger, data: data, expect: &expect, ttl: ttl,
	}, nil
}

// look reads the record of rec's lease; nil when there is none.
func (q *Quarantines) look(ctx context.Context, rec wire.Quarantine) (*StoredQuarantine, error) {
	m, err := q.bus.look(ctx, q.bus.streams.Ledger, q.bus.subjects.Quarantine(rec.Provider, rec.Host, rec.Lease))
	if err != nil || m == nil {
		return nil, err
	}
	return storedQuarantine(m)
}

// Get reads one record from the leader; ErrNoRecord when there is none.
func (q *Quarantines) Get(ctx context.Context, provider, host, lease string) (*StoredQuarantine, error) {
	subject := q.bus.subjects.Quarantine(provider, host, lease)
	if subject == "" {
		return nil, fmt.Errorf("quarantine of %q.%q.%q: not a valid token", provider, host, lease)
	}
	m, err := q.bus.leaderGet(ctx, q.bus.streams.Ledger, getQuery{Last: subject})
	if err != nil {
		return nil, err
	}
	return storedQuarantine(m)
}

func storedQuarantine(m *message) (*StoredQuarantine, error) {
	rec, err := wire.DecodeQuarantine(m.Data)
	if err != nil {
		return nil, fmt.Errorf("quarantine %s: %w", m.Subject, err)
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
	return listing[StoredQuarantine]{
		stream: q.bus.streams.Ledger, filter: filter, decode: storedQuarantine,
		seq: func(r *StoredQuarantine) uint64 { return r.Seq },
	}.listAll(ctx, q.bus)
}
