package wire

import (
	"fmt"
	"time"
	"unicode/utf8"
)

const (
	// maxEpochBound keeps twice the bound far from every overflow, and a dead
	// worker's leases from lying about for days.
	maxEpochBound = 24 * time.Hour
	// maxVersionBytes bounds the text of a build's version.
	maxVersionBytes = 256
)

// LeaseRecord is the ledger's entry of a sandbox that outlives its worker. The
// intent is durable before the sandbox is asked for, so that nothing which may
// exist is ever unknown. Each write is a compare-and-set by the entry's own
// stream sequence. An entry is never deleted: it ends as destroyed, with
// evidence and a time to live. It never holds credentials.
type LeaseRecord struct {
	V     int              `json:"v"`
	State LeaseRecordState `json:"state"`
	// Lease is 128 random bits, as a token, and never used again.
	Lease    string `json:"lease"`
	Provider string `json:"provider"`
	// Host is the host's token for a local sandbox, the account's for a remote.
	Host    string `json:"host"`
	Profile string `json:"profile"`
	// Worker owns the lease in the Epoch in which it wrote the intent: the token of
	// that worker's start, as in its EpochRecord.
	Worker string `json:"worker"`
	Epoch  string `json:"epoch"`
	// Tenant and Job are of the last use; empty before the first. Job is a job's id
	// or <tenant>.<id>, and empty where the pool did not know it.
	Tenant string `json:"tenant,omitzero"`
	Job    string `json:"job,omitzero"`
	// Uses counts the uses, the one that runs included.
	Uses int `json:"uses,omitzero"`
	// Handle is what the provider needs to find and destroy the sandbox; before the
	// confirm only what was known then, as a rule nothing.
	Handle map[string]string `json:"handle,omitempty"`
	// Intended is when the intent was written, by the worker's clock.
	Intended time.Time  `json:"intended"`
	Message  string     `json:"message,omitzero"`
	Evidence []Evidence `json:"evidence,omitempty"`
	// DestroyedAt stands in a destroyed entry only.
	DestroyedAt *time.Time `json:"destroyed_at,omitzero"`
}

// LeaseRecordState is where a lease of the ledger stands.
type LeaseRecordState string

// The states of a ledger entry.
const (
	LeaseIntent      LeaseRecordState = "intent"      // the sandbox may exist
	LeaseReady       LeaseRecordState = "ready"       // it exists and nobody uses it
	LeaseInUse       LeaseRecordState = "in_use"      // it may have served Tenant
	LeaseQuarantined LeaseRecordState = "quarantined" // the quarantine record decides
	LeaseDestroyed   LeaseRecordState = "destroyed"   // it is proven gone, or was never made
)

// EpochRecord says that a worker lives, in the lease part of the ledger, because
// what becomes of a dead worker's leases is decided by it. The worker renews it
// by sequence within every bound; where it was not renewed for Lapse, by its
// observer's clock, the leases of that epoch have no owner any more.
type EpochRecord struct {
	V     int        `json:"v"`
	State EpochState `json:"state"`
	// Worker is the worker's id, Epoch the token of its present start: whoever
	// starts again under the same id has another.
	Worker  string `json:"worker"`
	Epoch   string `json:"epoch"`
	Host    string `json:"host"`
	Version string `json:"version,omitzero"`
	// Started is when the epoch began, by the worker's clock: for people.
	Started time.Time `json:"started"`
	// BoundMS is the longest time between two renewals, 1 ms to 24 h.
	BoundMS int64 `json:"bound_ms"`
	// Renewals counts the writes of one epoch, so that no two are the same bytes.
	Renewals int `json:"renewals,omitzero"`
}

// EpochState is whether an epoch goes on.
type EpochState string

// The states of an epoch.
const (
	EpochAlive EpochState = "alive"
	// EpochEnded was written by the worker itself, at the end of an orderly stop:
	// what it left in the ledger has no owner at once.
	EpochEnded EpochState = "ended"
)

// Bound is the longest time between two renewals.
func (e *EpochRecord) Bound() time.Duration { return time.Duration(e.BoundMS) * time.Millisecond }

// Lapse is how long an alive record must have stood unchanged before its observer
// may hold the epoch for over: twice the bound.
func (e *EpochRecord) Lapse() time.Duration { return 2 * e.Bound() }

// EncodeLease encodes r. Texts and evidence are cut to their bounds. V may be
// zero.
func EncodeLease(r *LeaseRecord) ([]byte, error) {
	tidy := *r
	tidy.V = Version
	tidy.Message = bounded(r.Message)
	tidy.Evidence = tidyEvidence(r.Evidence)
	if bad := tidy.Validate(); bad != nil {
		return nil, fmt.Errorf("encode ledger entry: %w", bad)
	}
	return encode("ledger entry", tidy)
}

// DecodeLease reads a ledger entry. An unknown field is an error: whoever rewrites
// an entry must not drop what a newer worker wrote into it. An entry of another
// version is an error for which OtherVersion is true; leave it alone.
func DecodeLease(data []byte) (*LeaseRecord, error) {
	return decodeValid[LeaseRecord](document{name: "ledger entry", maxBytes: MaxRecordBytes}, data)
}

// EncodeEpoch encodes r. V may be zero.
func EncodeEpoch(r *EpochRecord) ([]byte, error) {
	stamped := *r
	stamped.V = Version
	if bad := stamped.Validate(); bad != nil {
		return nil, fmt.Errorf("encode worker's epoch: %w", bad)
	}
	return encode("worker's epoch", stamped)
}

// DecodeEpoch reads an epoch record, strictly, as DecodeLease does.
func DecodeEpoch(data []byte) (*EpochRecord, error) {
	return decodeValid[EpochRecord](document{name: "worker's epoch", maxBytes: MaxRecordBytes}, data)
}

// Validate checks the rules of a ledger entry: it has an owner in every state, a
// use has a tenant, and what is destroyed has its time and its evidence.
func (r *LeaseRecord) Validate() *Invalid {
	if !r.State.Valid() {
		return invalid(ReasonField, "state", "must be %s, not %s", choice(leaseRecordStates()), quoted(string(r.State)))
	}
	for _, word := range []struct {
		field, value string
		optional     bool
	}{
		{"lease", r.Lease, false},
		{"provider", r.Provider, false},
		{"host", r.Host, false},
		{"profile", r.Profile, false},
		{"worker", r.Worker, false},
		{"epoch", r.Epoch, false},
		{"tenant", r.Tenant, true},
	} {
		if bad := checkWord(word.field, word.value, word.optional); bad != nil {
			return bad
		}
	}
	if bad := r.checkUse(); bad != nil {
		return bad
	}
	gone := r.State == LeaseDestroyed
	switch {
	case r.Provider == epochToken:
		return invalid(ReasonField, "provider", "must not be %q, where the workers' epochs stand", epochToken)
	case r.Intended.IsZero():
		return invalid(ReasonField, "intended", "must be set")
	case gone != (r.DestroyedAt != nil):
		return invalid(ReasonField, "destroyed_at", "must stand in the state %s, and in no other", LeaseDestroyed)
	case gone && len(r.Evidence) == 0:
		return invalid(ReasonField, "evidence", "must not be empty in the state %s", LeaseDestroyed)
	case len(r.Message) > MaxMessageBytes:
		return invalid(ReasonTooBig, "message", "must have at most %d bytes, not %d", MaxMessageBytes, len(r.Message))
	}
	if bad := checkHandle(r.Handle); bad != nil {
		return bad
	}
	return checkEvidence("evidence", r.Evidence)
}

func (r *LeaseRecord) checkUse() *Invalid {
	switch {
	case r.Uses < 0:
		return invalid(ReasonField, "uses", "must not be negative")
	case r.State == LeaseIntent && r.Uses > 0:
		return invalid(ReasonField, "uses", "must not stand in the state %s", LeaseIntent)
	case r.State == LeaseInUse && r.Uses == 0:
		return invalid(ReasonField, "uses", "must be at least 1 in the state %s", LeaseInUse)
	case (r.Tenant != "") != (r.Uses > 0):
		return invalid(ReasonField, "tenant", "must stand beside uses, and nowhere else")
	case r.Job != "" && r.Tenant == "":
		return invalid(ReasonField, "job", "must not stand without a tenant")
	case r.Job != "" && !ValidToken(r.Job) && !validKey(r.Job):
		return invalid(ReasonField, "job", "must be a job's id or <tenant>.<id>, not %s", quoted(r.Job))
	}
	return nil
}

// Validate checks the rules of an epoch record.
func (e *EpochRecord) Validate() *Invalid {
	if !e.State.Valid() {
		return invalid(ReasonField, "state", "must be %s, not %s", choice(epochStates()), quoted(string(e.State)))
	}
	for _, word := range []struct{ field, value string }{{"worker", e.Worker}, {"epoch", e.Epoch}, {"host", e.Host}} {
		if bad := checkWord(word.field, word.value, false); bad != nil {
			return bad
		}
	}
	switch {
	case len(e.Version) > maxVersionBytes || !utf8.ValidString(e.Version):
		return invalid(ReasonField, "version", "must be UTF-8 text of at most %d bytes", maxVersionBytes)
	case e.Started.IsZero():
		return invalid(ReasonField, "started", "must be set")
	case e.BoundMS < 1 || e.BoundMS > maxEpochBound.Milliseconds():
		return invalid(ReasonField, "bound_ms", "must be %s, not %d", wholeNumberText("milliseconds", 1, maxEpochBound.Milliseconds()), e.BoundMS)
	case e.Renewals < 0:
		return invalid(ReasonField, "renewals", "must not be negative")
	}
	return nil
}
