package reaper

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// Stats is how the quarantine stands, as far as one reaper knows from what was
// delivered to it and from its listings.
type Stats struct {
	// Quarantined are the leases that wait to be destroyed, Held those that an
	// operator holds, Bad the records that cannot be read. They exclude each
	// other.
	Quarantined, Held, Bad int
	// Oldest is when the oldest of the quarantined leases was first seen; zero
	// without one.
	Oldest time.Time
	// Reasons counts the quarantined leases by their reason.
	Reasons map[wire.QuarantineReason]int
	// Attempts, Failures and Destroyed count since the start. A lease counts as
	// destroyed where its end was written, so once over all reapers.
	Attempts, Failures, Destroyed uint64
	// Working and Slow are the places that are taken in the two lanes; one of
	// Working belongs to the next delivery.
	Working, Slow int
	// Listed is when the last complete listing was made.
	Listed time.Time
	// Sweeps counts the sweeps that saw everything, Incomplete the others, Swept the
	// leases that they put into quarantine, by reason.
	Sweeps, Incomplete uint64
	Swept              map[wire.QuarantineReason]uint64
	// SweptAt is when the last complete sweep ended, of the provider that waits for
	// its next the longest; before a provider's first, when it began to be swept. Zero
	// where nothing is swept. Strays are the sandboxes without an owner that wait for
	// a second look.
	SweptAt time.Time
	Strays  int
}

// Tries is what a reaper tried at one lease.
type Tries struct {
	// Attempts counts those before it too, as far as the server knows them.
	Attempts int
	// LastError says why the last one failed; empty before the first.
	LastError string
	// Next is about when the next one begins.
	Next time.Time
}

// book is what the reaper knows about unfinished records. It has an entry for
// each, so its bound is that of the listing and the ledger. Nothing in it is
// needed to be right: after a restart it fills again.
type book struct {
	mu      sync.Mutex
	entries map[string]*entry // by subject
	strays  map[*source]int
	sweeps  map[*source]time.Time // when each was last swept completely
	counts  Stats
	// finished are the records that ended while a source is listing: what its list
	// says of them may be older.
	finished map[*source]map[string]bool
}

type entry struct {
	source *source
	lease  string
	state  wire.QuarantineState // empty for a bad record
	reason wire.QuarantineReason
	seen   time.Time
	// stood is since when this reaper knows the record as it stands, by seq.
	stood    sighting
	attempts int
	err      string
	// next is when the next delivery is due.
	next    time.Time
	working bool
	// badSeq is the record that was reported as bad.
	badSeq uint64
}

func newBook() *book {
	return &book{entries: map[string]*entry{}, counts: Stats{Swept: map[wire.QuarantineReason]uint64{}}, strays: map[*source]int{}, sweeps: map[*source]time.Time{}, finished: map[*source]map[string]bool{}}
}

func (b *book) entry(s *source, subject, lease string) *entry {
	e := b.entries[subject]
	if e == nil {
		e = &entry{source: s, lease: lease}
		b.entries[subject] = e
	}
	return e
}

// begin takes a record for work; false if it is being worked on.
func (b *book) begin(s *source, subject, lease string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(s, subject, lease)
	if e.working {
		return false
	}
	e.working = true
	return true
}

// end gives a record back; the next delivery is due at next.
func (b *book) end(subject string, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[subject]; e != nil {
		e.working = false
		e.next = next
	}
}

// read notes what the record says.
func (b *book) read(subject string, stored *bus.StoredQuarantine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[subject]; e != nil {
		e.read(stored)
	}
}

func (e *entry) read(stored *bus.StoredQuarantine) {
	rec := stored.Record
	e.state, e.reason, e.seen, e.badSeq = rec.State, rec.Reason, rec.FirstSeen, 0
	e.stood = e.stood.at(stored.Seq)
}

// stands is how long this reaper has known the record as it is, by its monotonic
// clock: the wall clocks of two machines, or of one that is set, say less.
func (b *book) stands(subject string, seq uint64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[subject]; e != nil && e.stood.seq == seq {
		return time.Since(e.stood.since)
	}
	return 0
}

// attempt counts a try and returns its number, at least what the server says.
func (b *book) attempt(subject string, deliveries int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Attempts++
	e := b.entries[subject]
	if e == nil {
		return max(1, deliveries)
	}
	e.attempts = max(e.attempts+1, deliveries)
	return e.attempts
}

// failed counts a try without proof; true when its reason is news.
func (b *book) failed(subject, why string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Failures++
	e := b.entries[subject]
	if e == nil || e.err == why {
		return e == nil
	}
	e.err = why
	return true
}

// bad notes a record that cannot be read; true when that is news.
func (b *book) bad(s *source, subject, lease string, seq uint64, why string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(s, subject, lease)
	news := e.badSeq == 0 || seq > e.badSeq
	e.state, e.reason, e.err = "", "", why
	e.badSeq = max(e.badSeq, seq, 1)
	return news
}

// forget drops a finished record.
func (b *book) forget(subject string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entries, subject)
	for _, finished := range b.finished {
		finished[subject] = true
	}
}

// listing notes that s begins to read all records.
func (b *book) listing(s *source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished[s] = map[string]bool{}
}

func (b *book) destroyed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Destroyed++
}

// sighted notes an unfinished record of a listing, and says whether a delivery
// of it is overdue by more than late. One that is new here gets grace first:
// another reaper may be at it.
func (b *book) sighted(s *source, subject string, stored *bus.StoredQuarantine, grace, late time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.finished[s][subject] {
		return false
	}
	now, rec := time.Now(), stored.Record
	e, known := b.entries[subject]
	if !known {
		e = b.entry(s, subject, rec.Lease)
		e.next = now.Add(grace)
	}
	e.read(stored)
	return !e.working && rec.State == wire.InQuarantine && now.Sub(e.next) > late
}

// listed ends a listing of s, and where it was complete drops what it did not have.
func (b *book) listed(s *source, complete bool, begun time.Time, have map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.finished, s)
	if !complete {
		return
	}
	maps.DeleteFunc(b.entries, func(subject string, e *entry) bool {
		return e.source == s && !have[subject] && !e.working && e.next.Before(begun)
	})
	b.counts.Listed = begun
}

// sweeping notes that s is swept from now on.
func (b *book) sweeping(s *source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweeps[s] = time.Now()
}

// swept notes the end of a sweep.
func (b *book) swept(s *source, complete bool, strays int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strays[s] = strays
	if !complete {
		b.counts.Incomplete++
		return
	}
	b.counts.Sweeps++
	b.sweeps[s] = time.Now()
}

// moved counts a lease that a sweep put into quarantine.
func (b *book) moved(reason wire.QuarantineReason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Swept[reason]++
}

func (b *book) stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	stats := b.counts
	stats.Swept = maps.Clone(b.counts.Swept)
	for _, n := range b.strays {
		stats.Strays += n
	}
	for _, at := range b.sweeps {
		if stats.SweptAt.IsZero() || at.Before(stats.SweptAt) {
			stats.SweptAt = at
		}
	}
	stats.Reasons = map[wire.QuarantineReason]int{}
	for _, e := range b.entries {
		switch e.state {
		case wire.InQuarantine:
			stats.Quarantined++
			stats.Reasons[e.reason]++
			if stats.Oldest.IsZero() || e.seen.Before(stats.Oldest) {
				stats.Oldest = e.seen
			}
		case wire.OnHold:
			stats.Held++
		case wire.Gone:
		default:
			if e.badSeq > 0 {
				stats.Bad++
			}
		}
	}
	return stats
}

func (b *book) tries() map[string]Tries {
	b.mu.Lock()
	defer b.mu.Unlock()
	tries := make(map[string]Tries, len(b.entries))
	for _, subject := range slices.Sorted(maps.Keys(b.entries)) {
		e := b.entries[subject]
		tries[e.lease] = Tries{Attempts: e.attempts, LastError: e.err, Next: e.next}
	}
	return tries
}
