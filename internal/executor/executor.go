package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// Config says what the executor offers and how long it waits. Zero durations
// and sizes take the defaults.
type Config struct {
	// Profiles by name; one named DefaultProfile must be there.
	Profiles map[string]Profile
	// SetupTimeout bounds Prepare and Open; it is not part of the wall time.
	// Default 10 s.
	SetupTimeout time.Duration
	// ProofTimeout bounds the wait for the containment verdict, beyond the grace
	// period. Default 4 s.
	ProofTimeout time.Duration
	// ShutdownGrace caps the grace period of runs that a shutdown ends, so that
	// the worker's own end fits its supervisor's patience. Default 5 s.
	ShutdownGrace time.Duration
	// FilesTimeout bounds the reading of files out of a sandbox, and what objects
	// add to SetupTimeout. Default 1 min.
	FilesTimeout time.Duration
	// Objects holds files that are too big for a message. Nil means that there is
	// none: a request that names an object is refused, and so are files that do not
	// fit the result.
	Objects run.Objects
	// InlineBytes is the most output of each stream that stands in a result;
	// default and maximum wire.MaxInlineBytes.
	InlineBytes int64
	// Worker is named in every result.
	Worker wire.WorkerRef
}

// DefaultProfile is the profile of a request that names none.
const DefaultProfile = "default"

// Profile is what a request may ask for under one name.
type Profile struct {
	wire.Profile
	// Capabilities are its provider's.
	Capabilities sandbox.Capabilities
}

// Executor runs attempts.
type Executor struct {
	pool *leasepool.Pool
	log  zerolog.Logger
	cfg  Config

	mu       sync.Mutex
	failures int       // consecutive set-up failures
	lastFail time.Time // of the newest one
	lastErr  error
}

// A worker whose sandboxes fail to set up this often in a row stops pulling for
// a while instead of handing every job back to the queue.
const (
	maxSetupFailures = 3
	setupRest        = 5 * time.Second
)

// New makes an executor over pool.
func New(pool *leasepool.Pool, log zerolog.Logger, cfg Config) (*Executor, error) {
	if _, ok := cfg.Profiles[DefaultProfile]; !ok {
		return nil, fmt.Errorf("profiles: one named %q is needed", DefaultProfile)
	}
	orDefault(&cfg.SetupTimeout, 10*time.Second)
	orDefault(&cfg.ProofTimeout, 4*time.Second)
	orDefault(&cfg.ShutdownGrace, 5*time.Second)
	orDefault(&cfg.FilesTimeout, time.Minute)
	orDefault(&cfg.InlineBytes, wire.MaxInlineBytes)
	cfg.InlineBytes = min(cfg.InlineBytes, wire.MaxInlineBytes)
	return &Executor{pool: pool, log: log, cfg: cfg}, nil
}

func orDefault[T ~int64](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Ready is nil when a job could be run now, else it says why not.
func (x *Executor) Ready() error {
	if err := x.pool.Ready(); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failures >= maxSetupFailures && time.Since(x.lastFail) < setupRest {
		return fmt.Errorf("%d sandboxes in a row could not be set up, waiting before the next try: %w", x.failures, x.lastErr)
	}
	return nil
}

// Check refuses, before anything is claimed, what this worker will never run.
func (x *Executor) Check(r *wire.Request) *wire.Invalid {
	_, _, bad := x.plan(r)
	return bad
}

// plan is what a request asks for: its profile and its effective limits.
func (x *Executor) plan(r *wire.Request) (Profile, wire.Limits, *wire.Invalid) {
	p, limits, bad := wire.Admit(r, x.cfg.Profiles, func(p Profile) wire.Profile { return p.Profile }, DefaultProfile)
	if bad == nil {
		bad = x.noFiles(r, p)
	}
	return p, limits, bad
}

// Handle runs one attempt to its end. ctx ends with one of package run's causes;
// Handle then ends the run and still returns its outcome, in bounded time.
func (x *Executor) Handle(ctx context.Context, a run.Attempt, gate run.Gate, out run.Output) run.Outcome {
	p, limits, bad := x.plan(a.Request)
	if bad != nil {
		return run.Outcome{Result: x.invalid(a, bad)}
	}
	if field, why := unenforceable(limits, p.Capabilities); field != "" {
		r := x.base(a)
		r.Outcome, r.Reason, r.StartState = wire.NotStarted, wire.ReasonUnenforceable, wire.StartNo
		r.Message = wire.Message("limits.%s cannot be enforced on this host: %s", field, why)
		return run.Outcome{Result: r}
	}
	began := time.Now()
	fresh := a.Request.Lease.Reuse == wire.ReuseNever
	lease, err := x.pool.Acquire(ctx, leasepool.Want{Tenant: a.Job.Tenant, Job: a.Job.ID, Profile: p.Name, Fresh: fresh})
	if err != nil {
		return x.noLease(a, err)
	}
	at := &attempt{
		x: x, Attempt: a, profile: p, gate: gate, lease: lease, fresh: fresh, limits: limits,
		began: began, leased: time.Now(), isolation: isolation(lease.Sandbox().Isolation()),
		log: x.log.With().Str("tenant", a.Job.Tenant).Str("job", a.Job.ID).Int("attempt", a.Number).Str("lease", lease.ID()).Logger(),
	}
	at.rec = newRecorder(ctx, a, out, at.outputLimit(), x.cfg.InlineBytes)
	outcome := at.run(ctx)
	released := x.pool.Release(lease, at.verdict)
	at.describe(&outcome.Result, released.Disposition)
	outcome.Settled = released.Settled
	return outcome
}

// noLease is the outcome when no sandbox was to be had: surely nothing ran.
func (x *Executor) noLease(a run.Attempt, err error) run.Outcome {
	var se *sandbox.Error
	if !errors.As(err, &se) {
		return run.Outcome{Abandoned: true, Err: fmt.Errorf("acquire a lease: %w", err)}
	}
	x.noteSetup(err)
	if se.Kind != sandbox.Refused {
		return run.Outcome{Abandoned: true, Err: fmt.Errorf("create a sandbox: %w", err)}
	}
	r := x.base(a)
	r.Outcome, r.Reason, r.StartState = wire.NotStarted, wire.ReasonNoSandbox, wire.StartNo
	r.Message = wire.Message("no sandbox could be made: %v", err)
	return run.Outcome{Result: r}
}

// noteSetup counts set-up failures in a row; nil ends the row.
func (x *Executor) noteSetup(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil {
		x.failures = 0
		return
	}
	x.failures++
	x.lastFail, x.lastErr = time.Now(), err
}

func (x *Executor) invalid(a run.Attempt, bad *wire.Invalid) wire.Result {
	r := x.base(a)
	r.Outcome, r.Reason, r.StartState = wire.InvalidJob, bad.Reason, wire.StartNo
	r.Message = wire.Message("%v", bad)
	return r
}

func (x *Executor) base(a run.Attempt) wire.Result {
	return wire.Result{
		V: wire.Version, Tenant: a.Job.Tenant, ID: a.Job.ID, Queue: a.Job.Queue, Attempt: a.Number,
		Worker: x.cfg.Worker, Meta: a.Request.Meta,
		Timing: wire.Timing{QueuedMS: millis(a.Queued)},
	}
}
