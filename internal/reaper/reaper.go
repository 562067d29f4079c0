package reaper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// The defaults of a Config.
const (
	DefaultParallel = 8
	DefaultMaxSlow  = 64
	// DefaultSlowAfter is far above a healthy destroy (milliseconds for local
	// sandboxes, a second or two for an API's).
	DefaultSlowAfter = 2 * time.Second
	// DefaultAttemptTimeout is half the ack wait of the reaper's consumer.
	DefaultAttemptTimeout = 30 * time.Second
	DefaultMinBackoff     = time.Second
	DefaultMaxBackoff     = 10 * time.Minute
	DefaultListInterval   = 5 * time.Minute
	// DefaultOverdue is twice the ack wait: a delivery that is that late is lost.
	DefaultOverdue = 2 * time.Minute
	// DefaultCreateDeadline is above every provider's longest create call, with
	// room for clocks that differ.
	DefaultCreateDeadline = 10 * time.Minute
	// DefaultSweepInterval is a look that costs a listing of the ledger and one of
	// the inventory.
	DefaultSweepInterval = time.Minute
	DefaultSweepTimeout  = 5 * time.Minute
)

// Config says what to reap, and how hard. A zero field takes its default.
type Config struct {
	// Provider restricts the reaper to the records of one provider; empty means
	// all those that New was given.
	Provider string
	// Host whose records are taken: empty means the provider's own
	// (Capabilities.Host), bus.AnyHost all. A record of a host that the provider
	// here does not serve is left.
	Host string
	// Parallel is how many tries run at once for each provider, at least 1.
	Parallel int
	// SlowAfter is when a running try leaves its place to the next one, and
	// MaxSlow how many such tries may go on beside the Parallel ones. Past that,
	// a slow try is cut off and comes again.
	SlowAfter time.Duration
	MaxSlow   int
	// AttemptTimeout bounds one try.
	AttemptTimeout time.Duration
	// MinBackoff and MaxBackoff bound the wait between two tries at one lease,
	// which doubles with each and is jittered downwards by up to a half.
	MinBackoff, MaxBackoff time.Duration
	// ListInterval is the time between two listings of all records; jittered
	// likewise.
	ListInterval time.Duration
	// Overdue is how late an expected delivery must be for a listing to act in
	// its place.
	Overdue time.Duration
	// CreateDeadline is how long after its record was written a sandbox whose
	// create was ambiguous may still appear: until then, not finding it proves
	// nothing. For providers whose sandboxes outlive the worker.
	CreateDeadline time.Duration
	// Sweep also looks for sandboxes without an owner: ledger entries of dead
	// workers, intents that nobody confirmed, and what the inventory has and the
	// ledger does not own. It concerns the providers here whose sandboxes outlive the
	// worker; what is left of others is their own business at their next start.
	Sweep bool
	// SweepInterval is the time between two sweeps, and the least time between the two
	// looks that it takes to call a sandbox unowned. SweepTimeout bounds one sweep.
	SweepInterval, SweepTimeout time.Duration
	// OnGone is told each lease that is destroyed, by whomever, with the
	// evidence, possibly more than once. It must not block. May be nil.
	OnGone func(lease string, proof sandbox.Proof)
}

// Reaper destroys what stands in quarantine.
type Reaper struct {
	books     Books
	providers map[string]sandbox.Provider
	log       zerolog.Logger
	cfg       Config
	book      *book
	sources   []*source
}

// New makes a reaper of the records in books for the providers, by name. The
// providers stay the caller's. All mistakes in cfg are reported at once.
func New(books Books, providers map[string]sandbox.Provider, log zerolog.Logger, cfg Config) (*Reaper, error) {
	cfg.setDefaults()
	if err := cfg.validate(providers); err != nil {
		return nil, fmt.Errorf("reaper: %w", err)
	}
	r := &Reaper{
		books: books, providers: maps.Clone(providers), log: log, cfg: cfg, book: newBook(),
	}
	names := []string{cfg.Provider}
	if cfg.Provider == "" {
		names = slices.Sorted(maps.Keys(providers))
	}
	for _, name := range names {
		host := cfg.Host
		if host == "" {
			host = providers[name].Capabilities().Host
		}
		r.sources = append(r.sources, newSource(r, name, host))
	}
	return r, nil
}

func (c *Config) setDefaults() {
	setDefault(&c.Parallel, DefaultParallel)
	setDefault(&c.MaxSlow, DefaultMaxSlow)
	setDefault(&c.SlowAfter, DefaultSlowAfter)
	setDefault(&c.AttemptTimeout, DefaultAttemptTimeout)
	setDefault(&c.MinBackoff, DefaultMinBackoff)
	setDefault(&c.MaxBackoff, DefaultMaxBackoff)
	setDefault(&c.ListInterval, DefaultListInterval)
	setDefault(&c.Overdue, DefaultOverdue)
	setDefault(&c.CreateDeadline, DefaultCreateDeadline)
	setDefault(&c.SweepInterval, DefaultSweepInterval)
	setDefault(&c.SweepTimeout, DefaultSweepTimeout)
	if c.OnGone == nil {
		c.OnGone = func(string, sandbox.Proof) {}
	}
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

func (c *Config) validate(providers map[string]sandbox.Provider) error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(c.Provider == "" && len(providers) == 0, "there is no provider to reap for")
	fault(c.Provider != "" && !wire.ValidToken(c.Provider), "provider %q is not a token", c.Provider)
	fault(c.Host != "" && c.Host != bus.AnyHost && !wire.ValidToken(c.Host), "host %q is not a token", c.Host)
	fault(c.Provider != "" && c.Host == "" && providers[c.Provider] == nil, "provider %q is not here, so its host must be given", c.Provider)
	for name, p := range providers {
		fault(!wire.ValidToken(name) || p.Name() != name, "provider %q calls itself %q", name, p.Name())
	}
	fault(c.Parallel < 1, "parallel: %d is below 1", c.Parallel)
	fault(c.MaxSlow < 1, "max_slow: %d is below 1", c.MaxSlow)
	for name, d := range map[string]time.Duration{
		"slow_after": c.SlowAfter, "attempt_timeout": c.AttemptTimeout, "min_backoff": c.MinBackoff,
		"list_interval": c.ListInterval, "overdue": c.Overdue, "create_deadline": c.CreateDeadline,
		"sweep_interval": c.SweepInterval, "sweep_timeout": c.SweepTimeout,
	} {
		fault(d <= 0, "%s: %s is not positive", name, d)
	}
	fault(c.MaxBackoff < c.MinBackoff, "max_backoff: %s is below min_backoff %s", c.MaxBackoff, c.MinBackoff)
	return errors.Join(faults...)
}

// Run reaps until ctx ends, then cuts the running tries off, hands their records
// back, and returns nil. A broker that is away is waited for.
func (r *Reaper) Run(ctx context.Context) error {
	var sources sync.WaitGroup
	for _, s := range r.sources {
		sources.Go(func() { s.run(ctx) })
	}
	sources.Wait()
	return nil
}

// Ready is nil while every consumer is being pulled, else it says what is wrong.
func (r *Reaper) Ready() error {
	var faults []error
	for _, s := range r.sources {
		faults = append(faults, s.ready())
	}
	return errors.Join(faults...)
}

// Stats is how the quarantine stands, as far as this reaper knows.
func (r *Reaper) Stats() Stats {
	stats := r.book.stats()
	for _, s := range r.sources {
		stats.Working += len(s.lanes.quick)
		stats.Slow += len(s.lanes.slow)
	}
	return stats
}

// Tries is what this reaper tried at each unfinished lease, by lease.
func (r *Reaper) Tries() map[string]Tries { return r.book.tries() }
