package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// What operators meet.
var (
	// ErrNotInQuarantine means that there is no record of the lease.
	ErrNotInQuarantine = errors.New("no quarantine record of this lease")
	// ErrFinished means that the lease is destroyed.
	ErrFinished = errors.New("the lease is destroyed already")
	// ErrHeld means that the lease is held: release it first.
	ErrHeld = errors.New("the lease is held; release it first")
	// ErrNoEvidence means that a record was to be resolved without a word on why.
	ErrNoEvidence = errors.New("evidence is needed: say how you know that the sandbox is gone")
)

// Records are the quarantine records that a Desk works on.
type Records interface {
	// List reads all records; an error beside some means that others are missing.
	List(ctx context.Context) ([]bus.StoredQuarantine, error)
	// Find reads the records of a lease: none or one.
	Find(ctx context.Context, lease string) ([]bus.StoredQuarantine, error)
	// Update and Resolve are those of Books.
	Update(ctx context.Context, rec wire.Quarantine, expect uint64) (uint64, error)
	Resolve(ctx context.Context, rec wire.Quarantine, expect uint64) error
}

// Desk is where operators look at quarantined leases and decide about them. It
// writes records by the sequence that it read and needs no running reaper: the change
// of a record is a delivery to the reaper of its host, now or when there is one.
type Desk struct{ records Records }

// NewDesk makes the desk of the records at b.
func NewDesk(b *bus.Bus) *Desk { return &Desk{records: deskRecords{b.Quarantines(), b.Ledger()}} }

type deskRecords struct {
	*bus.Quarantines

	ledger *bus.Ledger
}

// Resolve ends the ledger's entry with the record.
func (r deskRecords) Resolve(ctx context.Context, rec wire.Quarantine, expect uint64) error {
	return r.ledger.Resolve(ctx, rec, expect)
}

// List reads all records, oldest first, finished ones too while they are kept.
func (d *Desk) List(ctx context.Context) ([]bus.StoredQuarantine, error) { return d.records.List(ctx) }

// Show reads the record of a lease; ErrNotInQuarantine.
func (d *Desk) Show(ctx context.Context, lease string) (*bus.StoredQuarantine, error) {
	if !wire.ValidToken(lease) {
		return nil, fmt.Errorf("lease %q: %w", lease, ErrNotInQuarantine)
	}
	found, err := d.records.Find(ctx, lease)
	switch {
	case len(found) > 1:
		return nil, fmt.Errorf("lease %s: has records of %d places", lease, len(found))
	case len(found) == 1:
		return &found[0], nil
	case err != nil:
		return nil, fmt.Errorf("lease %s: %w", lease, err)
	}
	return nil, fmt.Errorf("lease %s: %w", lease, ErrNotInQuarantine)
}

// Order is what an operator wants to be done with a lease.
type Order struct {
	// Op is retry, hold, release or resolve.
	Op    wire.ReaperOp
	Lease string
	// By is who says so, Text why. Resolve needs Text: it becomes the evidence.
	By, Text string
}

// maxLooks bounds how often an order is carried out anew because the record
// changed meanwhile.
const maxLooks = 5

// Act carries an order out and returns the record as it stands then. Holding what is
// held, releasing what is not held and resolving what is destroyed change nothing and
// are no errors. Errors: ErrNotInQuarantine, ErrFinished, ErrHeld (retry),
// ErrNoEvidence, and those of the bus.
func (d *Desk) Act(ctx context.Context, o Order) (*bus.StoredQuarantine, error) {
	if o.Op == wire.OpResolve && o.Text == "" {
		return nil, fmt.Errorf("lease %s: %w", o.Lease, ErrNoEvidence)
	}
	var err error
	for range maxLooks {
		var stored *bus.StoredQuarantine
		if stored, err = d.Show(ctx, o.Lease); err != nil {
			return nil, err
		}
		if err = d.act(ctx, o, stored); err == nil {
			return stored, nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			break
		}
	}
	return nil, fmt.Errorf("lease %s: %w", o.Lease, err)
}

// act does it to the record as it was read, and notes in stored what it has become.
func (d *Desk) act(ctx context.Context, o Order, stored *bus.StoredQuarantine) (err error) {
	rec := stored.Record
	now := time.Now().UTC()
	rec.Note = note(o, now)
	switch o.Op {
	case wire.OpHold:
		rec.State = wire.OnHold
	case wire.OpRelease:
		rec.State = wire.InQuarantine
	case wire.OpRetry:
		if rec.State == wire.OnHold {
			return ErrHeld
		}
	case wire.OpResolve:
		return d.resolve(ctx, o, stored, now)
	case wire.OpList, wire.OpShow:
		return fmt.Errorf("%s changes nothing", o.Op)
	default:
		return fmt.Errorf("there is no operation %q", o.Op)
	}
	if stored.Record.State == wire.Gone {
		return ErrFinished
	}
	if o.Op != wire.OpRetry && rec.State == stored.Record.State {
		return nil
	}
	seq, err := d.records.Update(ctx, rec, stored.Seq)
	if err == nil {
		*stored = bus.StoredQuarantine{Record: rec, Seq: seq, Time: now}
	}
	return err
}

// resolve writes the end on a person's word.
func (d *Desk) resolve(ctx context.Context, o Order, stored *bus.StoredQuarantine, now time.Time) error {
	rec := stored.Record
	if rec.State == wire.Gone {
		return nil
	}
	by := o.By
	if by == "" {
		by = "an unnamed operator"
	}
	rec.State, rec.DestroyedAt, rec.Note = wire.Gone, &now, note(o, now)
	rec.Evidence = append(cut(rec.Evidence, wire.MaxEvidence-1), wire.Evidence{
		Kind: "operator", Detail: wire.Message("%s (says %s)", o.Text, by),
	})
	if err := d.records.Resolve(ctx, rec, stored.Seq); err != nil {
		return err
	}
	*stored = bus.StoredQuarantine{Record: rec, Seq: stored.Seq, Time: now}
	return nil
}

func note(o Order, now time.Time) string {
	text := fmt.Sprintf("%s at %s", o.Op, now.Format(time.RFC3339Nano))
	if o.By != "" {
		text += " by " + o.By
	}
	if o.Text != "" {
		text += ": " + o.Text
	}
	return text
}
