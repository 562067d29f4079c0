package wire

import "time"

// RunState is the state of a run record.
type RunState string

// The run states.
const (
	RunClaimed   RunState = "claimed"
	RunReleased  RunState = "released"
	RunDone      RunState = "done"
	RunCancelled RunState = "cancelled"
)

// RunRecord is the fence of a job: the one place that says who may run it and
// how it ended. Each write is a compare-and-set by the record's own stream
// sequence, which is the epoch.
type RunRecord struct {
	V       int      `json:"v"`
	State   RunState `json:"state"`
	Attempt int      `json:"attempt"`
	Queue   string   `json:"queue"`
	// Worker owns the claim; empty in a cancelled record.
	Worker string `json:"worker,omitzero"`
	// Token is random for each claim: it tells our own write from another's
	// after an answer was lost.
	Token string `json:"token,omitzero"`
	Lease string `json:"lease,omitzero"`
	// Started is set by a renewal once the gate has opened.
	Started bool `json:"started,omitzero"`
	// JobSeq is the stream sequence of the job's message in the jobs stream.
	JobSeq uint64 `json:"job_seq"`
	// Digest is Digest(queue, body) of the request.
	Digest string `json:"digest"`
	// Result is the final decision's exact bytes; only in done and cancelled.
	Result RawResult `json:"result,omitzero"`
	// Renewals counts the writes of one claim.
	Renewals int `json:"renewals,omitzero"`
}

// RawResult is an encoded Result, kept byte for byte.
type RawResult []byte

// Quarantine is the record of a lease that could not be proven empty. It never
// holds credentials.
type Quarantine struct {
	V        int             `json:"v"`
	State    QuarantineState `json:"state"`
	Lease    string          `json:"lease"`
	Provider string          `json:"provider"`
	// Host is the host's token for a local sandbox, the account's for a remote.
	Host   string `json:"host"`
	Worker string `json:"worker"`
	// Tenant and Job are of the job that poisoned it; empty when it never
	// served one.
	Tenant  string           `json:"tenant,omitzero"`
	Job     string           `json:"job,omitzero"`
	Reason  QuarantineReason `json:"reason"`
	Message string           `json:"message,omitzero"`
	// Note is what an operator did with the record last: what, who, when and why.
	Note      string     `json:"note,omitzero"`
	Evidence  []Evidence `json:"evidence,omitempty"`
	FirstSeen time.Time  `json:"first_seen"`
	// Handle is what the provider needs to find and destroy the sandbox.
	Handle map[string]string `json:"handle,omitempty"`
	// Attempts and DestroyedAt stand in a destroyed record only.
	Attempts    int        `json:"attempts,omitzero"`
	DestroyedAt *time.Time `json:"destroyed_at,omitzero"`
}

// QuarantineState is where a quarantined lease stands.
type QuarantineState string

// The quarantine states.
const (
	InQuarantine QuarantineState = "quarantined"
	OnHold       QuarantineState = "held"
	Gone         QuarantineState = "destroyed"
)

// QuarantineReason is why a lease is in quarantine, a closed set.
type QuarantineReason string

// The quarantine reasons.
const (
	QuarantineUnproven       QuarantineReason = "unproven"        // no proof that the tree is gone
	QuarantineAmbiguousStart QuarantineReason = "ambiguous_start" // the start may have happened
	QuarantineAmbiguousMake  QuarantineReason = "ambiguous_create"
	QuarantineResetFailed    QuarantineReason = "reset_failed"
	QuarantineDestroyFailed  QuarantineReason = "destroy_failed"
	QuarantineOwnerGone      QuarantineReason = "owner_gone"
	QuarantineUnowned        QuarantineReason = "unowned"      // the inventory has it, no ledger entry owns it
	QuarantineReappeared     QuarantineReason = "reappeared"   // destroyed in the books, and yet it is there
	QuarantineStaleIntent    QuarantineReason = "stale_intent" // an intent that nobody confirmed
)

// DeadLetter is a job message that could not be run, and why.
type DeadLetter struct {
	V       int    `json:"v"`
	Tenant  string `json:"tenant"`
	Queue   string `json:"queue"`
	ID      string `json:"id"`
	Subject string `json:"subject"`
	// Seq is the message's sequence in the jobs stream.
	Seq     uint64              `json:"seq"`
	Reason  Reason              `json:"reason"`
	Message string              `json:"message"`
	Headers map[string][]string `json:"headers,omitempty"`
	// Body is the message's body, base64 in JSON; BodyCut says that only the
	// first MaxDeadBodyBytes were kept.
	Body    []byte    `json:"body,omitempty"`
	BodyCut bool      `json:"body_cut,omitzero"`
	Worker  string    `json:"worker"`
	At      time.Time `json:"at"`
}
