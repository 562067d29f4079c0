package leasepool

import (
	"github.com/sallyport/sallyport/internal/sandbox"
)

// Want is what a caller asks for.
type Want struct {
	// Tenant for whom the lease is; never empty. Job is for the books alone.
	Tenant, Job string
	// Profile names one of Config.Profiles.
	Profile string
	// Fresh asks for a sandbox that served nobody before, and that serves nobody
	// afterwards.
	Fresh bool
}

// Lease is a sandbox in the hands of one holder, from Acquire to Release.
type Lease struct {
	id       string
	profile  string
	provider string
	box      sandbox.Sandbox
	use      int

	entry *entry
	// released is guarded by the pool's mutex.
	released bool
}

// ID is the lease's id: 128 random bits in 32 hexadecimal digits, unique for
// ever.
func (l *Lease) ID() string { return l.id }

// Sandbox is what was leased. It is the holder's until Release.
func (l *Lease) Sandbox() sandbox.Sandbox { return l.box }

// Use counts the jobs of this sandbox, from 1.
func (l *Lease) Use() int { return l.use }

// Profile is the name of the profile that it was made from.
func (l *Lease) Profile() string { return l.profile }

// Provider is the name of the provider that made it.
func (l *Lease) Provider() string { return l.provider }

// Verdict is what the holder knows at the end about what it ran.
type Verdict struct {
	// Proof that nothing of the job is left. Without it the lease is quarantined.
	Proof sandbox.Proof
	// Doubt quarantines the lease whatever the proof says; empty is none.
	Doubt QuarantineReason
	// Message says more about the doubt, for a person; cut at 1 KiB.
	Message string
	// Tenant and Job name who had the lease, for the quarantine record.
	Tenant, Job string
	// Fresh says that the lease may not be used again.
	Fresh bool
}

// Disposition is the decision about a released lease.
type Disposition int

// The dispositions. The zero value is invalid.
const (
	// Reusable: it is being reset, and used again if that succeeds.
	Reusable Disposition = iota + 1
	// Destroyed: it was handed over to be destroyed; if that cannot be proven it
	// goes to quarantine.
	Destroyed
	// Quarantined: it is never used again, and the reaper's.
	Quarantined
)

func (d Disposition) String() string {
	switch d {
	case Reusable:
		return "reusable"
	case Destroyed:
		return "destroyed"
	case Quarantined:
		return "quarantined"
	}
	return "unset"
}

// Released is what became of a lease.
type Released struct {
	Disposition Disposition
	// Settled is closed once the quarantine record is durable, or the sandbox was
	// proven gone before it was. It is nil where nothing has to become durable.
	Settled <-chan struct{}
}
