package simulation_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/wire"
)

// reapWait is how long a reaper may be silent about a delivery.
const reapWait = 30 * time.Second

// books are the broker's ledger in memory: quarantine records, leases, epochs. It
// is what all processes share, and it never fails; what goes wrong on the way to
// it is the desk's. TestBooksAreLikeTheRealOnes holds it to the real one.
type books struct {
	subjects wire.Subjects
	// onWrite sees each record that is written, old (nil for none) and new, with
	// the lock held.
	onWrite func(subject string, old, now []byte)

	mu      sync.Mutex
	seq     uint64
	rows    map[string]*row
	queues  map[string]*deliveries
	changed chan struct{} // closed and made again with each write
}

// row is the newest message of a subject.
type row struct {
	subject string
	seq     uint64
	at      time.Time
	data    []byte
}

// entry is a message that is to be written against a sequence.
type entry struct {
	subject string
	expect  uint64
	data    []byte
}

// deliveries are one durable consumer's.
type deliveries struct {
	filter string // a prefix of subjects
	given  map[string]*given
}

// given is what became of a subject's newest message.
type given struct {
	seq   uint64
	times int
	due   time.Time // when it may be delivered (again)
	done  bool
}

func newBooks(t testing.TB) *books {
	t.Helper()
	subjects, err := wire.NewSubjects("exec")
	require.NoError(t, err)
	return &books{
		subjects: subjects, onWrite: func(string, []byte, []byte) {},
		rows: map[string]*row{}, queues: map[string]*deliveries{}, changed: make(chan struct{}),
	}
}

// write writes all or nothing. What stands there already, byte for byte, is
// written.
func (b *books) write(entries ...entry) (seq uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writeLocked(entries...)
}

func (b *books) writeLocked(entries ...entry) (seq uint64, err error) {
	same := 0
	for _, e := range entries {
		now := b.rows[e.subject]
		if now != nil && now.seq != e.expect && bytes.Equal(now.data, e.data) {
			same++
			seq = now.seq
			continue
		}
		if found := b.seqOf(e.subject); found != e.expect {
			return 0, fmt.Errorf("%s: %w (sequence %d, expected %d)", e.subject, bus.ErrConflict, found, e.expect)
		}
	}
	if same == len(entries) {
		return seq, nil // nothing is left to write
	}
	if same > 0 {
		return 0, fmt.Errorf("%s: %w", entries[0].subject, bus.ErrConflict)
	}
	for _, e := range entries {
		b.seq++
		var old []byte
		if now := b.rows[e.subject]; now != nil {
			old = now.data
		}
		b.rows[e.subject] = &row{e.subject, b.seq, time.Now(), e.data}
		b.onWrite(e.subject, old, e.data)
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return b.seq, nil
}

func (b *books) seqOf(subject string) uint64 {
	if now := b.rows[subject]; now != nil {
		return now.seq
	}
	return 0
}

// read is the newest message of a subject.
func (b *books) read(subject string) (row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.rows[subject]; now != nil {
		return *now, nil
	}
	return row{}, fmt.Errorf("%s: %w", subject, bus.ErrNoRecord)
}

// list is every newest message whose subject has the prefix, oldest first.
func (b *books) list(prefix string) []row {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listLocked(prefix)
}

func (b *books) listLocked(prefix string) []row {
	var list []row
	for subject, r := range b.rows {
		if strings.HasPrefix(subject, prefix) {
			list = append(list, *r)
		}
	}
	slices.SortFunc(list, func(a, b row) int { return int(int64(a.seq) - int64(b.seq)) })
	return list
}

// next delivers one message of a queue, or says how long it takes until the next
// one is due; less than 0 means that only a write brings one.
func (b *books) next(name string) (r row, times int, wait time.Duration, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	wait = -1
	for _, r := range b.listLocked(q.filter) {
		g := q.given[r.subject]
		if g == nil || g.seq != r.seq {
			g = &given{seq: r.seq, due: time.Now()}
			q.given[r.subject] = g
		}
		left := time.Until(g.due)
		switch {
		case g.done:
		case left <= 0:
			g.times++
			g.due = time.Now().Add(reapWait)
			return r, g.times, 0, nil
		case wait < 0 || left < wait:
			wait = left
		}
	}
	return row{}, 0, wait, b.changed
}

func (b *books) settle(name, subject string, seq uint64, change func(g *given)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.queues[name].given[subject]; g != nil && g.seq == seq {
		change(g)
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// desk is how one process gets at the books. It has the methods of bus.Ledger and
// is the reaper's Books.
type desk struct {
	b *books
	// call carries a request there and back.
	call func(ctx context.Context, what string, effect func() error) error
}

var _ reaper.Books = (*desk)(nil)

func (d *desk) Subjects() wire.Subjects { return d.b.subjects }

// put writes one record; encode's error is the caller's own fault.
func (d *desk) put(ctx context.Context, what, subject string, expect uint64, data []byte, err error) (seq uint64, _ error) {
	if err != nil {
		return 0, err
	}
	err = d.call(ctx, what, func() (err error) {
		seq, err = d.b.write(entry{subject, expect, data})
		return err
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

func get[T any](ctx context.Context, d *desk, what, subject string, decode func([]byte) (*T, error)) (rec T, r row, err error) {
	err = d.call(ctx, what, func() (err error) {
		r, err = d.b.read(subject)
		return err
	})
	if err != nil {
		return rec, row{}, err
	}
	found, err := decode(r.data)
	if err != nil {
		return rec, row{}, err
	}
	return *found, r, nil
}

func (d *desk) listed(ctx context.Context, what, prefix string) (list []row, err error) {
	err = d.call(ctx, what, func() error {
		list = d.b.list(prefix)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Intend is bus.Ledger's.
func (d *desk) Intend(ctx context.Context, rec wire.LeaseRecord) (uint64, error) {
	data, err := wire.EncodeLease(&rec)
	return d.put(ctx, "intend "+rec.Lease, d.b.subjects.Lease(rec.Provider, rec.Lease), 0, data, err)
}

// Update is bus.Ledger's: of an entry.
func (d *desk) UpdateLease(ctx context.Context, rec wire.LeaseRecord, expect uint64) (uint64, error) {
	data, err := wire.EncodeLease(&rec)
	return d.put(ctx, string(rec.State)+" "+rec.Lease, d.b.subjects.Lease(rec.Provider, rec.Lease), expect, data, err)
}

// Finish is bus.Ledger's.
func (d *desk) Finish(ctx context.Context, rec wire.LeaseRecord, expect uint64) error {
	data, err := wire.EncodeLease(&rec)
	_, err = d.put(ctx, "finish "+rec.Lease, d.b.subjects.Lease(rec.Provider, rec.Lease), expect, data, err)
	return err
}

// Lease is bus.Ledger's Get.
func (d *desk) Lease(ctx context.Context, provider, lease string) (*bus.StoredLease, error) {
	rec, r, err := get(ctx, d, "read entry "+lease, d.b.subjects.Lease(provider, lease), wire.DecodeLease)
	if err != nil {
		return nil, err
	}
	return &bus.StoredLease{Record: rec, Seq: r.seq, Time: r.at}, nil
}

// Leases is bus.Ledger's List.
func (d *desk) Leases(ctx context.Context, provider string) ([]bus.StoredLease, error) {
	rows, err := d.listed(ctx, "list entries", d.b.subjects.Lease(provider, "x")[:len(d.b.subjects.Lease(provider, "x"))-1])
	var list []bus.StoredLease
	for _, r := range rows {
		rec, bad := wire.DecodeLease(r.data)
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		list = append(list, bus.StoredLease{Record: *rec, Seq: r.seq, Time: r.at})
	}
	return list, err
}

// PutEpoch is bus.Ledger's.
func (d *desk) PutEpoch(ctx context.Context, rec wire.EpochRecord, expect uint64) (uint64, error) {
	data, err := wire.EncodeEpoch(&rec)
	return d.put(ctx, "epoch", d.b.subjects.Epoch(rec.Worker), expect, data, err)
}

// GetEpoch is bus.Ledger's.
func (d *desk) GetEpoch(ctx context.Context, worker string) (*bus.StoredEpoch, error) {
	rec, r, err := get(ctx, d, "read epoch", d.b.subjects.Epoch(worker), wire.DecodeEpoch)
	if err != nil {
		return nil, err
	}
	return &bus.StoredEpoch{Record: rec, Seq: r.seq, Time: r.at}, nil
}

// Epochs is bus.Ledger's.
func (d *desk) Epochs(ctx context.Context) ([]bus.StoredEpoch, error) {
	subject := d.b.subjects.Epoch("x")
	rows, err := d.listed(ctx, "list epochs", subject[:len(subject)-1])
	var list []bus.StoredEpoch
	for _, r := range rows {
		rec, bad := wire.DecodeEpoch(r.data)
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		list = append(list, bus.StoredEpoch{Record: *rec, Seq: r.seq, Time: r.at})
	}
	return list, err
}

// Quarantine is bus.Ledger's: entry and record in one batch.
func (d *desk) Quarantine(ctx context.Context, stored bus.StoredLease, q wire.Quarantine) error {
	return d.call(ctx, "quarantine "+q.Lease, func() error {
		d.b.mu.Lock()
		defer d.b.mu.Unlock()
		return d.b.quarantine(stored.Seq, q)
	})
}

func (b *books) quarantine(expect uint64, q wire.Quarantine) error {
	at, place := b.subjects.Lease(q.Provider, q.Lease), b.subjects.Quarantine(q.Provider, q.Host, q.Lease)
	if b.rows[at] == nil {
		return fmt.Errorf("%s: %w (no entry)", at, bus.ErrConflict)
	}
	found, err := wire.DecodeLease(b.rows[at].data)
	if err != nil {
		return err
	}
	if b.seqOf(at) != expect && found.State != wire.LeaseQuarantined {
		if now := b.record(place); found.State == wire.LeaseDestroyed && now != nil && resolved(now, q) {
			return nil
		}
		return fmt.Errorf("%s: %w (%s)", at, bus.ErrConflict, found.State)
	}
	var batch []entry
	if found.State != wire.LeaseQuarantined {
		moved := *found
		moved.State, moved.Message, moved.Evidence, moved.DestroyedAt = wire.LeaseQuarantined, q.Message, nil, nil
		data, err := wire.EncodeLease(&moved)
		if err != nil {
			return err
		}
		batch = append(batch, entry{at, b.seqOf(at), data})
	}
	if !b.openRecord(place) {
		if len(q.Handle) == 0 {
			q.Handle = found.Handle
		}
		data, err := wire.EncodeQuarantine(&q)
		if err != nil {
			return err
		}
		batch = append(batch, entry{place, b.seqOf(place), data})
	}
	_, err = b.writeLocked(batch...)
	return err
}

// resolved says whether now is the end of what q began.
func resolved(now *wire.Quarantine, q wire.Quarantine) bool {
	return now.State == wire.Gone && now.Reason == q.Reason && now.Worker == q.Worker && now.FirstSeen.Equal(q.FirstSeen)
}

func (b *books) record(subject string) *wire.Quarantine {
	now := b.rows[subject]
	if now == nil {
		return nil
	}
	rec, err := wire.DecodeQuarantine(now.data)
	if err != nil {
		return nil
	}
	return rec
}

func (b *books) quarantined(subject string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.openRecord(subject)
}

// openRecord says whether an unfinished quarantine record stands there.
func (b *books) openRecord(subject string) bool {
	rec := b.record(subject)
	return rec != nil && rec.State != wire.Gone
}

// Put is bus.Quarantines' Put.
func (d *desk) Put(ctx context.Context, q wire.Quarantine) error {
	data, err := wire.EncodeQuarantine(&q)
	if err != nil {
		return err
	}
	return d.call(ctx, "quarantine record "+q.Lease, func() error {
		_, err := d.b.write(entry{d.b.subjects.Quarantine(q.Provider, q.Host, q.Lease), 0, data})
		if errors.Is(err, bus.ErrConflict) {
			return nil
		}
		return err
	})
}

// Unowned is Put, or PutOrReopen for what has reappeared.
func (d *desk) Unowned(ctx context.Context, q wire.Quarantine) error {
	if q.Reason == wire.QuarantineReappeared {
		return d.PutOrReopen(ctx, q)
	}
	return d.Put(ctx, q)
}

// PutOrReopen is bus.Quarantines': it opens a destroyed record again.
func (d *desk) PutOrReopen(ctx context.Context, q wire.Quarantine) error {
	data, err := wire.EncodeQuarantine(&q)
	if err != nil {
		return err
	}
	place := d.b.subjects.Quarantine(q.Provider, q.Host, q.Lease)
	return d.call(ctx, "unowned "+q.Lease, func() error {
		d.b.mu.Lock()
		defer d.b.mu.Unlock()
		if now := d.b.record(place); now != nil && (now.State != wire.Gone || resolved(now, q)) {
			return nil
		}
		_, err := d.b.writeLocked(entry{place, d.b.seqOf(place), data})
		return err
	})
}

// Resolve is bus.Ledger's: record and entry in one batch.
func (d *desk) Resolve(ctx context.Context, q wire.Quarantine, expect uint64) error {
	return d.call(ctx, "resolve "+q.Lease, func() error {
		d.b.mu.Lock()
		defer d.b.mu.Unlock()
		return d.b.resolve(q, expect)
	})
}

func (b *books) resolve(q wire.Quarantine, expect uint64) error {
	at, place := b.subjects.Lease(q.Provider, q.Lease), b.subjects.Quarantine(q.Provider, q.Host, q.Lease)
	end, err := wire.EncodeQuarantine(&q)
	if err != nil {
		return err
	}
	batch := []entry{}
	if stands := b.rows[at]; stands != nil {
		now, err := wire.DecodeLease(stands.data)
		if err != nil {
			return err
		}
		if now.State != wire.LeaseDestroyed {
			now.State, now.Message, now.Evidence, now.DestroyedAt = wire.LeaseDestroyed, q.Message, q.Evidence, q.DestroyedAt
			data, err := wire.EncodeLease(now)
			if err != nil {
				return err
			}
			batch = append(batch, entry{at, stands.seq, data})
		}
	}
	if stands := b.rows[place]; stands == nil || stands.seq == expect || !bytes.Equal(stands.data, end) {
		batch = append(batch, entry{place, expect, end})
	}
	_, err = b.writeLocked(batch...)
	return err
}

// Update is bus.Quarantines' Update.
func (d *desk) Update(ctx context.Context, q wire.Quarantine, expect uint64) (uint64, error) {
	data, err := wire.EncodeQuarantine(&q)
	return d.put(ctx, string(q.State)+" "+q.Lease, d.b.subjects.Quarantine(q.Provider, q.Host, q.Lease), expect, data, err)
}

// Quarantined is bus.Quarantines' Get.
func (d *desk) Quarantined(ctx context.Context, provider, host, lease string) (*bus.StoredQuarantine, error) {
	rec, r, err := get(ctx, d, "read record "+lease, d.b.subjects.Quarantine(provider, host, lease), wire.DecodeQuarantine)
	if err != nil {
		return nil, err
	}
	return &bus.StoredQuarantine{Record: rec, Seq: r.seq, Time: r.at}, nil
}

// QuarantinedOn is bus.Quarantines' ListHost.
func (d *desk) QuarantinedOn(ctx context.Context, provider, host string) ([]bus.StoredQuarantine, error) {
	rows, err := d.listed(ctx, "list records", d.b.prefix(provider, host))
	var list []bus.StoredQuarantine
	for _, r := range rows {
		rec, bad := wire.DecodeQuarantine(r.data)
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		list = append(list, bus.StoredQuarantine{Record: *rec, Seq: r.seq, Time: r.at})
	}
	return list, err
}

// prefix of the quarantine subjects of one provider and host.
func (b *books) prefix(provider, host string) string {
	subject := b.subjects.Quarantine(provider, host, "x")
	return subject[:len(subject)-1]
}

// Queue opens the deliveries for a provider and host, which outlive who opens
// them.
func (d *desk) Queue(ctx context.Context, provider, host string) (reaper.Queue, error) {
	name := provider + "." + host
	err := d.call(ctx, "open "+name, func() error {
		d.b.mu.Lock()
		defer d.b.mu.Unlock()
		if d.b.queues[name] == nil {
			d.b.queues[name] = &deliveries{filter: d.b.prefix(provider, host), given: map[string]*given{}}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &counter{d, name}, nil
}

// counter takes deliveries of one queue.
type counter struct {
	d    *desk
	name string
}

// Fetch implements reaper.Queue.
func (c *counter) Fetch(ctx context.Context, _ int, wait time.Duration) ([]*bus.Delivery, error) {
	over := time.Now().Add(wait)
	for {
		var (
			r       row
			times   int
			next    time.Duration
			changed <-chan struct{}
		)
		err := c.d.call(ctx, "fetch", func() error {
			r, times, next, changed = c.d.b.next(c.name)
			return nil
		})
		if err != nil {
			return nil, err
		}
		if times > 0 {
			return []*bus.Delivery{c.delivery(r, times)}, nil
		}
		left := time.Until(over)
		if left <= 0 {
			return nil, nil
		}
		if next >= 0 && next < left {
			left = next
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

func (c *counter) delivery(r row, times int) *bus.Delivery {
	out := &bus.Delivery{
		Settler: settler{c, r.subject, r.seq}, Subject: r.subject, Seq: r.seq, Time: r.at, Deliveries: times, AckWait: reapWait,
	}
	rec, err := wire.DecodeQuarantine(r.data)
	if err != nil {
		out.Err = err
		return out
	}
	out.Record = *rec
	return out
}

// Close implements reaper.Queue.
func (*counter) Close() error { return nil }

// settler settles one delivery.
type settler struct {
	c       *counter
	subject string
	seq     uint64
}

func (s settler) settle(ctx context.Context, what string, change func(*given)) error {
	return s.c.d.call(ctx, what+" "+s.subject, func() error {
		s.c.d.b.settle(s.c.name, s.subject, s.seq, change)
		return nil
	})
}

// Ack implements bus.Settler.
func (s settler) Ack(ctx context.Context) error {
	return s.settle(ctx, "ack", func(g *given) { g.done = true })
}

// InProgress implements bus.Settler.
func (s settler) InProgress(ctx context.Context) error {
	return s.settle(ctx, "in progress", func(g *given) { g.due = time.Now().Add(reapWait) })
}

// NakDelay implements bus.Settler.
func (s settler) NakDelay(ctx context.Context, delay time.Duration) error {
	return s.settle(ctx, "nak", func(g *given) { g.due = time.Now().Add(delay) })
}
