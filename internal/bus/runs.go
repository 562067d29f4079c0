package bus

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/wire"
)

// Runs are the run records, one per job.
type Runs struct{ bus *Bus }

// Runs are the run records.
func (b *Bus) Runs() *Runs { return &Runs{bus: b} }

// Stored is a run record as it stands at the leader.
type Stored struct {
	Record wire.RunRecord
	// Seq is the record's stream sequence: the epoch, and what Update expects.
	Seq uint64
	// Time is the server's time of the write; compare it with ServerTime alone.
	Time time.Time
}

// Create writes the first record of a job. Exactly one of any number of
// concurrent creators wins. Errors: ErrConflict when another record surely
// stands there, ErrUnknown when ctx ended before the outcome was known,
// ErrRecordTooBig, ErrStreamFull, ErrNoStream.
func (r *Runs) Create(ctx context.Context, tenant, id string, rec wire.RunRecord) (uint64, error) {
	return r.Update(ctx, tenant, id, rec, 0)
}

// Update replaces the record whose sequence is expect (0: there is none). A lost
// answer is resolved by reading the record again from the leader: the bytes that
// stand there, the claim's token and its count of renewals among them, are ours
// or not. Errors as Create's. A terminal record carries the result retention as
// its time to live.
func (r *Runs) Update(ctx context.Context, tenant, id string, rec wire.RunRecord, expect uint64) (uint64, error) {
	data, err := wire.EncodeRunRecord(&rec)
	if err != nil {
		return 0, fmt.Errorf("run record: %w", err)
	}
	// A server may take more, but no reader would.
	if len(data) > wire.MaxRecordBytes {
		return 0, fmt.Errorf("run record: %w: %d bytes, at most %d", ErrRecordTooBig, len(data), wire.MaxRecordBytes)
	}
	w := write{subject: r.bus.subjects.Run(tenant, id), stream: r.bus.streams.Runs, data: data, expect: &expect}
	switch rec.State {
	case wire.RunDone, wire.RunCancelled:
		w.ttl = r.bus.retention
	case wire.RunClaimed, wire.RunReleased:
	default:
		return 0, fmt.Errorf("run record: unknown state %q", rec.State)
	}
	return r.bus.cas(ctx, w, func(m *message) bool { return bytes.Equal(m.Data, data) })
}

// Get reads the record from the leader; ErrNoRecord when there is none.
func (r *Runs) Get(ctx context.Context, tenant, id string) (*Stored, error) {
	subject := r.bus.subjects.Run(tenant, id)
	if subject == "" {
		return nil, fmt.Errorf("run record of %q.%q: not a valid token", tenant, id)
	}
	m, err := r.bus.leaderGet(ctx, r.bus.streams.Runs, getQuery{Last: subject})
	if err != nil {
		return nil, err
	}
	rec, err := wire.DecodeRunRecord(m.Data)
	if err != nil {
		return nil, fmt.Errorf("run record %s: %w", subject, err)
	}
	return &Stored{Record: *rec, Seq: m.Seq, Time: m.Time}, nil
}
