package leasepool

import (
	"context"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Quarantiner makes quarantine records durable.
type Quarantiner interface {
	// Quarantine returns nil once the record is durable. The pool calls it for
	// the same lease until it does; a record that is there already is success. It
	// returns soon after ctx ends, and is called concurrently for different
	// leases.
	Quarantine(ctx context.Context, r Record) error
}

// Record is what there is to say about a lease that cannot be proven empty or
// gone.
type Record struct {
	// Handle is what its provider needs to destroy it.
	Handle sandbox.Handle
	// Tenant and Job are of the job that poisoned it, or the tenant that it
	// belongs to; empty if it never served one.
	Tenant, Job string
	Reason      QuarantineReason
	// Message is for a person, at most 1 KiB.
	Message string
	// Evidence is what is known so far.
	Evidence []sandbox.Evidence
	// FirstSeen is when the doubt arose.
	FirstSeen time.Time
}

// QuarantineReason is why, a closed set with the words of the wire format.
type QuarantineReason string

// The reasons.
const (
	QuarantineUnproven       QuarantineReason = "unproven"         // no proof that the job is gone
	QuarantineAmbiguousStart QuarantineReason = "ambiguous_start"  // the start may have happened
	QuarantineAmbiguousMake  QuarantineReason = "ambiguous_create" // the sandbox may have been made
	QuarantineResetFailed    QuarantineReason = "reset_failed"
	QuarantineDestroyFailed  QuarantineReason = "destroy_failed"
	QuarantineOwnerGone      QuarantineReason = "owner_gone" // its holder never gave it back
)

// maxMessageBytes bounds a message in a record.
const maxMessageBytes = 1 << 10

func bounded(message string) string {
	if len(message) > maxMessageBytes {
		message = message[:maxMessageBytes]
	}
	return strings.ToValidUTF8(message, "?")
}
