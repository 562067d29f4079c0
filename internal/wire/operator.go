package wire

import "time"

// The second part of the subjects on which services take what operators ask.
const (
	kindReaper = "reaper"
	kindWorker = "worker"
)

// ReaperOp is what an operator asks about leases in quarantine.
type ReaperOp string

// The operations.
const (
	OpList    ReaperOp = "ls"
	OpShow    ReaperOp = "show"
	OpRetry   ReaperOp = "retry"   // try to destroy it now, however long the wait
	OpHold    ReaperOp = "hold"    // nobody destroys it
	OpRelease ReaperOp = "release" // end the hold
	OpResolve ReaperOp = "resolve" // it is gone, a person says so
)

// Reaper is the reapers' endpoint for an operation: <prefix>.reaper.<op>. One of
// them answers.
func (s Subjects) Reaper(op ReaperOp) string { return s.subject(kindReaper, string(op)) }

// WorkerLeases is the workers' endpoint for the leases that they hold:
// <prefix>.worker.leases. All of them answer.
func (s Subjects) WorkerLeases() string { return s.subject(kindWorker, "leases") }

// LeaseQuarantine matches the quarantine record of a lease whose provider and host
// are not known.
func (s Subjects) LeaseQuarantine(lease string) string {
	return s.filter(kindQuarantine, "*", "*", lease)
}

// ReaperRequest is the body of a request to a reaper.
type ReaperRequest struct {
	// Lease is which one; not for ls.
	Lease string `json:"lease,omitzero"`
	// By is who asks, Text why; resolve needs Text, which becomes the evidence.
	By   string `json:"by,omitzero"`
	Text string `json:"text,omitzero"`
	// After and Max page through ls: records behind the sequence After, oldest
	// first, at most Max (0: MaxReaperList).
	After uint64 `json:"after,omitzero"`
	Max   int    `json:"max,omitzero"`
}

// MaxReaperList is the most records in one answer to ls: without their evidence
// and handle they fit into the default max_payload.
const MaxReaperList = 256

// ReaperRecord is a quarantine record and where it stands.
type ReaperRecord struct {
	Seq    uint64     `json:"seq"`
	Time   time.Time  `json:"time"`
	Record Quarantine `json:"record"`
}

// ReaperList is the answer to ls. The records are without evidence and handle. More
// says that there are others behind Next.
type ReaperList struct {
	Records []ReaperRecord `json:"records"`
	More    bool           `json:"more"`
	Next    uint64         `json:"next"`
}

// HeldLeases is what one worker's pool holds.
type HeldLeases struct {
	Worker string `json:"worker"`
	Host   string `json:"host"`
	// Leases at most MaxHeldLeases; More is how many are left out.
	Leases []HeldLease `json:"leases"`
	More   int         `json:"more,omitzero"`
}

// MaxHeldLeases is above a pool's capacity as a rule and keeps the answer within
// the default max_payload.
const MaxHeldLeases = 2048

// HeldLease is one lease of a pool.
type HeldLease struct {
	Lease    string `json:"lease"`
	Provider string `json:"provider"`
	Profile  string `json:"profile"`
	// State as the transition function has it.
	State string `json:"state"`
	// Tenant that it has served; empty for a warm one.
	Tenant string `json:"tenant,omitzero"`
	Uses   int    `json:"uses,omitzero"`
	// Since is when it was asked for.
	Since time.Time `json:"since"`
}
