package leasepool

import (
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Config sizes the pool. A zero duration or count takes the default that its
// field names; negative ones are mistakes. The bounds of waits and calls are longer
// for a provider that says so (sandbox.Capabilities.Patience).
type Config struct {
	// Capacity is the number of sandboxes, 1 to 4096: in use, idle, being made or
	// destroyed, and in quarantine.
	Capacity int
	// Profiles are what leases are made from, at least one, each name once. The
	// warm spares of all of them together fit into Capacity.
	Profiles []Profile
	// Ledger takes the leases whose sandboxes outlive this worker. It is needed
	// where a profile's provider says Capabilities.OutlivesWorker.
	Ledger Ledger
	// AcquireTimeout bounds the wait of one Acquire; default 30 s.
	AcquireTimeout time.Duration
	// MaxWaiters bounds how many wait at once; default 1024. One more is told
	// ErrNoCapacity at once.
	MaxWaiters int
	// CreateTimeout bounds one create call; default 30 s. A call that is not back
	// a second later is abandoned: its late answer is destroyed, and one that
	// takes CreateTimeout again is quarantined unseen.
	CreateTimeout time.Duration
	// ResetTimeout bounds one reset; default 5 s.
	ResetTimeout time.Duration
	// DestroyTimeout bounds one try to destroy; default 10 s.
	DestroyTimeout time.Duration
	// DestroyTries is how often a destroy is tried before the lease goes to
	// quarantine, 1 to 100; default 3. What may not even exist (an ambiguous
	// create) is tried once.
	DestroyTries int
	// PublishTimeout bounds one try to publish a quarantine record; default 10 s.
	// The tries themselves never end by count.
	PublishTimeout time.Duration
	// LedgerTimeout bounds one call of the ledger; default 5 s. Intend and Confirm
	// have to be done within CreateTimeout as well.
	LedgerTimeout time.Duration
	// ShutdownTimeout bounds what Run does after its context has ended; default
	// 30 s. What is not proven gone after two thirds of it goes to quarantine.
	ShutdownTimeout time.Duration
}

// Profile is one kind of sandbox.
type Profile struct {
	Name     string
	Provider sandbox.Provider
	// Spec is what to create; the pool sets Lease and Profile.
	Spec sandbox.Spec
	// ReuseTenant lets a lease serve its tenant again after proof and reset. The
	// provider must be able to reset.
	ReuseTenant bool
	// Warm is how many untouched spares are kept ready, while there is room.
	Warm int
	// MaxUses is how many jobs a lease serves, up to 1,000,000; default 100.
	MaxUses int
	// MaxAge is how old a lease may be when it is handed out, from its create
	// call on; default 1 h.
	MaxAge time.Duration
	// IdleTTL is how long a lease stays idle; warm spares stay longer. Default
	// 5 min. It is looked at once a second.
	IdleTTL time.Duration
}

const (
	// maxCapacity keeps the scans over all leases short (about 40 µs at most).
	maxCapacity = 4096
	// maxUses is far above anything useful and far below any overflow.
	maxUses = 1_000_000
	// maxDuration keeps multiples of a configured duration from overflowing.
	maxDuration = 30 * 24 * time.Hour
	// maxTries keeps the time for one destroy bounded.
	maxTries = 100
)

// withDefaults fills in what is zero, and returns all mistakes at once.
func (c Config) withDefaults() (Config, error) {
	var bad mistakes
	bad.check(c.Capacity >= 1 && c.Capacity <= maxCapacity, "capacity: %d is not between 1 and %d", c.Capacity, maxCapacity)
	bad.duration("acquire timeout", &c.AcquireTimeout, 30*time.Second)
	bad.count("max waiters", &c.MaxWaiters, 1024, maxUses)
	bad.duration("create timeout", &c.CreateTimeout, 30*time.Second)
	bad.duration("reset timeout", &c.ResetTimeout, 5*time.Second)
	bad.duration("destroy timeout", &c.DestroyTimeout, 10*time.Second)
	bad.count("destroy tries", &c.DestroyTries, 3, maxTries)
	bad.duration("publish timeout", &c.PublishTimeout, 10*time.Second)
	bad.duration("ledger timeout", &c.LedgerTimeout, 5*time.Second)
	bad.duration("shutdown timeout", &c.ShutdownTimeout, 30*time.Second)
	bad.check(len(c.Profiles) > 0, "profiles: at least one is needed")
	profiles := make([]Profile, 0, len(c.Profiles))
	names, warm := map[string]bool{}, 0
	for _, p := range c.Profiles {
		bad.check(!names[p.Name], "profile %q: the name is taken", p.Name)
		names[p.Name] = true
		profiles = append(profiles, p.withDefaults(&bad, c.Capacity))
		bad.check(c.Ledger != nil || p.Provider == nil || !p.Provider.Capabilities().OutlivesWorker,
			"profile %q: the sandboxes of its provider outlive the worker, so a ledger is needed", p.Name)
		warm += max(p.Warm, 0)
	}
	c.Profiles = profiles
	bad.check(warm <= c.Capacity, "profiles: %d warm spares do not fit into a capacity of %d", warm, c.Capacity)
	return c, errors.Join(bad...)
}

func (p Profile) withDefaults(bad *mistakes, capacity int) Profile {
	at := fmt.Sprintf("profile %q: ", p.Name)
	bad.check(p.Name != "", "profile: a name is needed")
	bad.check(p.Warm >= 0 && p.Warm <= capacity, "%swarm: %d is not between 0 and the capacity", at, p.Warm)
	bad.count(at+"max uses", &p.MaxUses, 100, maxUses)
	bad.duration(at+"max age", &p.MaxAge, time.Hour)
	bad.duration(at+"idle ttl", &p.IdleTTL, 5*time.Minute)
	if p.Provider == nil {
		bad.check(false, "%sa provider is needed", at)
		return p
	}
	bad.check(!p.ReuseTenant || p.Provider.Capabilities().Reset,
		"%sprovider %s cannot reset a sandbox, so the profile cannot reuse it: set reuse to never", at, p.Provider.Name())
	return p
}

// mistakes collects what is wrong with a configuration.
type mistakes []error

func (m *mistakes) check(ok bool, format string, args ...any) {
	if !ok {
		*m = append(*m, fmt.Errorf(format, args...))
	}
}

func (m *mistakes) duration(what string, d *time.Duration, byDefault time.Duration) {
	if *d == 0 {
		*d = byDefault
	}
	m.check(*d > 0 && *d <= maxDuration, "%s: %s is not between 0 and %s", what, *d, maxDuration)
}

func (m *mistakes) count(what string, n *int, byDefault, most int) {
	if *n == 0 {
		*n = byDefault
	}
	m.check(*n > 0 && *n <= most, "%s: %d is not between 1 and %d", what, *n, most)
}
