package bus

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/wire"
)

// FinishedEntryTTL is how long the entry of a lease that is gone, and the epoch of a
// worker that has ended, are kept, at most as long as results are: far longer than any call to make its sandbox may still be on its
// way, and short, because whoever looks for sandboxes without an owner reads all of
// them.
const FinishedEntryTTL = 2 * time.Hour

// Ledger is the book of the sandboxes that outlive their worker, one entry a
// lease, and of the workers' epochs, which say who still lives. It shares its
// stream with the quarantine records, so that a lease's entry and its record
// change together.
//
// What has ended, an entry as destroyed and an epoch as ended, is kept for a while
// (FinishedEntryTTL) and then gone, and an entry that is gone
// cannot be told from one that never was. That is safe, because lease ids are never
// used again: who still holds the sequence of such an entry meets ErrConflict, and a
// sandbox of such a lease that an inventory shows is one that nobody owns, which goes
// to quarantine as a reappeared one would.
type Ledger struct{ bus *Bus }

// Ledger is the book of leases and epochs.
func (b *Bus) Ledger() *Ledger { return &Ledger{bus: b} }

// StoredLease is a ledger entry as it stands at the leader.
type StoredLease struct {
	Record wire.LeaseRecord
	// Seq is the entry's stream sequence: what the next write expects.
	Seq uint64
	// Time is the server's time of the write.
	Time time.Time
}

// StoredEpoch is a worker's epoch as it stands at the leader.
type StoredEpoch struct {
	Record wire.EpochRecord
	Seq    uint64
	Time   time.Time
}

// Intend creates the entry of a lease, state intent. Only after it has returned
// nil may the sandbox be asked for. Errors: ErrConflict when the lease surely has
// another entry, ErrUnknown when ctx ended before the outcome was known: the
// intent may stand then, with nothing behind it. ErrStreamFull, ErrNoStream,
// ErrRecordTooBig.
func (l *Ledger) Intend(ctx context.Context, rec wire.LeaseRecord) (uint64, error) {
	if rec.State != wire.LeaseIntent {
		return 0, fmt.Errorf("lease %s: a new entry's state is %q, not %q", rec.Lease, wire.LeaseIntent, rec.State)
	}
	return l.put(ctx, rec, 0)
}

// Update replaces the entry whose sequence is expect by a ready or used one. A lost
// answer is resolved by reading the entry again from the leader. Errors as
// Intend's; ErrConflict means that somebody else decided about the lease, or that
// its entry has ended and expired: it must not be used.
func (l *Ledger) Update(ctx context.Context, rec wire.LeaseRecord, expect uint64) (uint64, error) {
	switch rec.State {
	case wire.LeaseReady, wire.LeaseInUse:
	case wire.LeaseIntent, wire.LeaseQuarantined, wire.LeaseDestroyed:
		return 0, fmt.Errorf("lease %s: state %q is not written by an update", rec.Lease, rec.State)
	default:
		return 0, fmt.Errorf("lease %s: unknown state %q", rec.Lease, rec.State)
	}
	if expect == 0 {
		return 0, fmt.Errorf("lease %s: an update needs the sequence that it replaces", rec.Lease)
	}
	return l.put(ctx, rec, expect)
}

// Finish writes the end of a lease that is not in quarantine, state destroyed with
// its evidence, against the sequence that was read, with FinishedEntryTTL as its
// time to live. Errors as Update's. The end of a lease in quarantine is
// written by Resolve.
func (l *Ledger) Finish(ctx context.Context, rec wire.LeaseRecord, expect uint64) error {
	if rec.State != wire.LeaseDestroyed {
		return fmt.Errorf("lease %s: a finished entry's state is %q, not %q", rec.Lease, wire.LeaseDestroyed, rec.State)
	}
	if expect == 0 {
		return fmt.Errorf("lease %s: finishing needs the sequence that it replaces", rec.Lease)
	}
	_, err := l.put(ctx, rec, expect)
	return err
}

func (l *Ledger) put(ctx context.Context, rec wire.LeaseRecord, expect uint64) (uint64, error) {
	w, err := l.entry(rec, expect)
	if err != nil {
		return 0, err
	}
	return l.bus.cas(ctx, w, func(m *message) bool { return bytes.Equal(m.Data, w.data) })
}

// entry is the write of an entry.
func (l *Ledger) entry(rec wire.LeaseRecord, expect uint64) (write, error) {
	data, err := wire.EncodeLease(&rec)
	if err != nil {
		return write{}, fmt.Errorf("lease %s: %w", rec.Lease, err)
	}
	w := write{subject: l.bus.subjects.Lease(rec.Provider, rec.Lease), stream: l.bus.streams.Ledger, data: data, expect: &expect}
	if rec.State == wire.LeaseDestroyed {
		w.ttl = min(l.bus.retention, FinishedEntryTTL)
	}
	return w, nil
}

// Get reads one entry from the leader; ErrNoRecord when there is none. An entry of
// another version is an error for which wire.OtherVersion is true.
func (l *Ledger) Get(ctx context.Context, provider, lease string) (*StoredLease, error) {
	subject := l.bus.subjects.Lease(provider, lease)
	if subject == "" {
		return nil, fmt.Errorf("lease %q.%q: not a valid token", provider, lease)
	}
	m, err := l.bus.leaderGet(ctx, l.bus.streams.Ledger, getQuery{Last: subject})
	if err != nil {
		return nil, err
	}
	return l.storedLease(m)
}

func (l *Ledger) storedLease(m *message) (*StoredLease, error) {
	rec, err := wire.DecodeLease(m.Data)
	if err != nil {
		return nil, fmt.Errorf("lease %s: %w", m.Subject, err)
	}
	if l.bus.subjects.Lease(rec.Provider, rec.Lease) != m.Subject {
		return nil, fmt.Errorf("lease %s: holds the entry of %s.%s", m.Subject, rec.Provider, rec.Lease)
	}
	return &StoredLease{Record: *rec, Seq: m.Seq, Time: m.Time}, nil
}

// List reads a provider's entries, finished ones too until their time to live
// ends, oldest write first, at most MaxList of them and about MaxListBytes; beyond
// that it is any of them, with ErrTruncated. One that cannot be read is an error
// beside the others.
//
// Each entry is as it stood at the leader when it was read, not all of them at one
// moment, and what was intended after the call began may be missing. So absence
// from the list proves nothing: whoever looks for sandboxes without owner takes
// the inventory first, then the list, and asks Get about each that the list does
// not have. Only ErrNoRecord says that there is no entry.
func (l *Ledger) List(ctx context.Context, provider string) ([]StoredLease, error) {
	return l.ListBut(ctx, provider, nil)
}

// ListBut is List without the leases that but says, which are not read and do not
// count in the bounds. Whoever lists again and again leaves out those that it has
// seen finished: there may be far more of them than of others.
func (l *Ledger) ListBut(ctx context.Context, provider string, but func(lease string) bool) ([]StoredLease, error) {
	filter := l.bus.subjects.ProviderLeases(provider)
	if filter == "" {
		return nil, fmt.Errorf("leases of %q: not a valid token", provider)
	}
	list := l.leases(filter, l.storedLease)
	if but != nil {
		list.but = func(subject string) bool { return but(subject[strings.LastIndexByte(subject, '.')+1:]) }
	}
	return list.listAll(ctx, l.bus)
}

// ListAll is List for all providers. The workers' epochs count in its bound.
func (l *Ledger) ListAll(ctx context.Context) ([]StoredLease, error) {
	return l.leases(l.bus.subjects.AllLeases(), func(m *message) (*StoredLease, error) {
		if _, err := l.bus.subjects.ParseEpoch(m.Subject); err == nil {
			return nil, nil //nolint:nilnil // left out of the list
		}
		return l.storedLease(m)
	}).listAll(ctx, l.bus)
}

func (l *Ledger) leases(filter string, decode func(*message) (*StoredLease, error)) listing[StoredLease] {
	return listing[StoredLease]{
		stream: l.bus.streams.Ledger, filter: filter, decode: decode, seq: func(s *StoredLease) uint64 { return s.Seq },
	}
}

// Quarantine moves an entry that was read, whatever its state, to quarantined and
// creates the lease's quarantine record, or reopens one that says destroyed (the
// lease reappeared), in one atomic batch: both or nothing. Where the record has no
// handle, it gets the entry's.
//
// It is idempotent: nil when both stand already, an unfinished record as it is
// (held, or with another reason), and when what q tells has stood and was resolved
// meanwhile. Where one of the two stands already, only the other is written. Errors:
// ErrConflict when the entry moved to anything else, was finished or is gone (read
// it again), ErrUnknown when ctx ended before the outcome was known, ErrNoBatch,
// ErrStreamFull, ErrNoStream. Before such an error nothing was written, but for
// ErrUnknown: call again with the same arguments until it is another answer.
func (l *Ledger) Quarantine(ctx context.Context, entry StoredLease, q wire.Quarantine) error {
	switch {
	case q.State != wire.InQuarantine:
		return fmt.Errorf("quarantine of %s: a new record's state is %q, not %q", q.Lease, wire.InQuarantine, q.State)
	case entry.Seq == 0:
		return fmt.Errorf("quarantine of %s: needs the entry as it was read, with its sequence", q.Lease)
	case entry.Record.Lease != q.Lease, entry.Record.Provider != q.Provider, entry.Record.Host != q.Host:
		return fmt.Errorf("quarantine of %s: the entry is of another lease (%s.%s on %s)", q.Lease, entry.Record.Provider, entry.Record.Lease, entry.Record.Host)
	}
	return l.bus.settle(ctx, func(ctx context.Context) ([]write, error) { return l.planQuarantine(ctx, entry.Seq, q) })
}

func (l *Ledger) planQuarantine(ctx context.Context, expect uint64, q wire.Quarantine) ([]write, error) {
	// The record first: where the entry that is read after it is still in quarantine,
	// a record that ended meanwhile has another sequence, and is not opened again.
	record, err := l.bus.Quarantines().look(ctx, q)
	if err != nil {
		return nil, err
	}
	found, err := l.look(ctx, q)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("lease %s: %w (no entry, expected sequence %d)", q.Lease, ErrConflict, expect)
	}
	if found.Seq != expect && found.Record.State != wire.LeaseQuarantined {
		return nil, l.moved(ctx, found, expect, q)
	}
	var writes []write
	if found.Record.State != wire.LeaseQuarantined {
		moved := found.Record
		moved.State, moved.Message, moved.Evidence, moved.DestroyedAt = wire.LeaseQuarantined, q.Message, nil, nil
		w, err := l.entry(moved, found.Seq)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	if record != nil && record.Record.State != wire.Gone {
		return writes, nil
	}
	if len(q.Handle) == 0 {
		q.Handle = found.Record.Handle
	}
	w, err := l.bus.Quarantines().record(q, record.seq(), 0)
	if err != nil {
		return nil, err
	}
	return append(writes, w), nil
}

// look reads the entry of q's lease; nil when there is none.
func (l *Ledger) look(ctx context.Context, q wire.Quarantine) (*StoredLease, error) {
	m, err := l.bus.look(ctx, l.bus.streams.Ledger, l.bus.subjects.Lease(q.Provider, q.Lease))
	if err != nil || m == nil {
		return nil, err
	}
	return l.storedLease(m)
}

// moved judges an entry that is neither as it was read nor in quarantine: what q
// tells may have stood, and have ended since.
func (l *Ledger) moved(ctx context.Context, found *StoredLease, expect uint64, q wire.Quarantine) error {
	if found.Record.State == wire.LeaseDestroyed {
		record, err := l.bus.Quarantines().look(ctx, q)
		if err != nil || record != nil && resolved(record.Record, q) {
			return err
		}
	}
	return fmt.Errorf("lease %s: %w (%s, sequence %d, expected %d)", q.Lease, ErrConflict, found.Record.State, found.Seq, expect)
}

// resolved says whether rec is the end of what q began.
func resolved(rec, q wire.Quarantine) bool {
	return rec.State == wire.Gone && rec.Reason == q.Reason && rec.Worker == q.Worker && rec.FirstSeen.Equal(q.FirstSeen)
}

// Resolve writes the end of a lease in quarantine, state destroyed, into its
// quarantine record, against the sequence that was read, and into its entry where
// there is one that is not finished, whatever its state: both in one atomic batch.
// The record then lives for the result retention, the entry for FinishedEntryTTL.
// The lease's entry
// needs evidence. Idempotent: nil when both say so already, this record with the
// very same words. Errors: ErrConflict means that the record changed meanwhile, or
// is gone: read it again; the others as Quarantine's.
func (l *Ledger) Resolve(ctx context.Context, q wire.Quarantine, expect uint64) error {
	if q.State != wire.Gone {
		return fmt.Errorf("quarantine of %s: a resolved record's state is %q, not %q", q.Lease, wire.Gone, q.State)
	}
	if expect == 0 {
		return fmt.Errorf("quarantine of %s: resolving needs the sequence that it replaces", q.Lease)
	}
	return l.bus.settle(ctx, func(ctx context.Context) ([]write, error) { return l.planResolve(ctx, q, expect) })
}

func (l *Ledger) planResolve(ctx context.Context, q wire.Quarantine, expect uint64) ([]write, error) {
	end, err := l.bus.Quarantines().record(q, expect, l.bus.retention)
	if err != nil {
		return nil, err
	}
	record, err := l.bus.look(ctx, end.stream, end.subject)
	if err != nil {
		return nil, err
	}
	found, err := l.look(ctx, q)
	if err != nil {
		return nil, err
	}
	var writes []write
	if found != nil && found.Record.State != wire.LeaseDestroyed {
		gone := found.Record
		gone.State, gone.Message, gone.Evidence, gone.DestroyedAt = wire.LeaseDestroyed, q.Message, q.Evidence, q.DestroyedAt
		w, err := l.entry(gone, found.Seq)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	switch {
	case record != nil && record.Seq == expect:
		return append(writes, end), nil
	case record != nil && bytes.Equal(record.Data, end.data):
		return writes, nil
	case record == nil:
		return nil, fmt.Errorf("%s: %w (no record, expected sequence %d)", end.subject, ErrConflict, expect)
	}
	return nil, fmt.Errorf("%s: %w (sequence %d, expected %d)", end.subject, ErrConflict, record.Seq, expect)
}

// PutEpoch writes a worker's epoch against the sequence of the record that it
// replaces; expect 0 creates the first. A renewal counts Renewals up, so that no
// two are alike. ErrConflict means that another holder of this worker's id wrote
// meanwhile, or that an observer ended the epoch: whoever renews has lost it. An
// ended epoch is kept for FinishedEntryTTL, one that is alive for ever: who
// has found it lapsed writes it ended, by sequence.
// Errors as Intend's.
func (l *Ledger) PutEpoch(ctx context.Context, rec wire.EpochRecord, expect uint64) (uint64, error) {
	data, err := wire.EncodeEpoch(&rec)
	if err != nil {
		return 0, fmt.Errorf("epoch of %s: %w", rec.Worker, err)
	}
	w := write{subject: l.bus.subjects.Epoch(rec.Worker), stream: l.bus.streams.Ledger, data: data, expect: &expect}
	if rec.State == wire.EpochEnded {
		w.ttl = min(l.bus.retention, FinishedEntryTTL)
	}
	return l.bus.cas(ctx, w, func(m *message) bool { return bytes.Equal(m.Data, data) })
}

// GetEpoch reads a worker's epoch from the leader; ErrNoRecord when there is none.
func (l *Ledger) GetEpoch(ctx context.Context, worker string) (*StoredEpoch, error) {
	subject := l.bus.subjects.Epoch(worker)
	if subject == "" {
		return nil, fmt.Errorf("epoch of %q: not a valid token", worker)
	}
	m, err := l.bus.leaderGet(ctx, l.bus.streams.Ledger, getQuery{Last: subject})
	if err != nil {
		return nil, err
	}
	return l.storedEpoch(m)
}

func (l *Ledger) storedEpoch(m *message) (*StoredEpoch, error) {
	rec, err := wire.DecodeEpoch(m.Data)
	if err != nil {
		return nil, fmt.Errorf("epoch %s: %w", m.Subject, err)
	}
	if l.bus.subjects.Epoch(rec.Worker) != m.Subject {
		return nil, fmt.Errorf("epoch %s: holds the epoch of %s", m.Subject, rec.Worker)
	}
	return &StoredEpoch{Record: *rec, Seq: m.Seq, Time: m.Time}, nil
}

// Epochs reads all workers' epochs, ended ones too until their time to live ends,
// oldest write first, bounded as List. An epoch that is missing beside an error
// may well be alive.
func (l *Ledger) Epochs(ctx context.Context) ([]StoredEpoch, error) {
	return listing[StoredEpoch]{
		stream: l.bus.streams.Ledger, filter: l.bus.subjects.AllEpochs(), decode: l.storedEpoch,
		seq: func(s *StoredEpoch) uint64 { return s.Seq },
	}.listAll(ctx, l.bus)
}
