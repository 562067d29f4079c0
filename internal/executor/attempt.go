package executor

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// attempt is one run in one lease. It is owned by the goroutine of Handle.
type attempt struct {
	run.Attempt
	x         *Executor
	profile   Profile
	gate      run.Gate
	lease     *leasepool.Lease
	fresh     bool
	limits    wire.Limits
	isolation wire.Isolation
	rec       *recorder
	log       zerolog.Logger

	began, leased, opened time.Time

	decision *decision // why this run was ended; the first one stays
	end      sandbox.End
	lost     error // the provider's word that the run cannot be followed any more
	verdict  leasepool.Verdict

	inputs  *inputs
	files   []wire.CollectedFile
	omitted int
}

// decision is why a run is ended before its program ends.
type decision struct {
	at      time.Time
	outcome wire.Outcome
	reason  wire.Reason
	grace   time.Duration
}

// run takes the attempt from the acquired lease to its outcome and sets the
// verdict under which the lease is to be released.
func (at *attempt) run(ctx context.Context) run.Outcome {
	defer at.rec.stop()
	at.verdict = leasepool.Verdict{Tenant: at.Job.Tenant, Job: at.Job.ID, Fresh: at.fresh}
	process, claimErr, err := at.prepare(ctx)
	switch {
	case err != nil:
		return at.notPrepared(claimErr, err)
	case claimErr != nil:
		return at.notClaimed(ctx, process, claimErr)
	}
	if err := at.open(ctx, process); err != nil {
		return at.notOpened(ctx, process, err)
	}
	at.x.noteSetup(nil)
	at.announce(ctx)
	at.follow(ctx, process)
	at.rec.close()
	at.judge()
	at.collect(ctx, process)
	return run.Outcome{Result: at.result()}
}

// prepare sets the process up behind the closed gate while the claim is written.
func (at *attempt) prepare(ctx context.Context) (process sandbox.Run, claimErr, err error) {
	ctx, cancel := context.WithTimeout(ctx, at.setupTime()+at.filesTime())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { claimErr = at.gate.Claim(ctx, at.lease.ID()) })
	at.inputs = newInputs(ctx, at)
	process, err = at.lease.Sandbox().Prepare(ctx, at.process(), at.rec)
	at.inputs.close()
	wg.Wait()
	return process, claimErr, err
}

// notPrepared ends an attempt whose process could not be set up: surely nothing
// of the program ran.
func (at *attempt) notPrepared(claimErr, err error) run.Outcome {
	at.verdict.Proof = sandbox.Proof{Proven: true, Evidence: []sandbox.Evidence{{Kind: sandbox.EvidenceNotStarted, Detail: "the start gate never opened"}}}
	refused := sandbox.KindOf(err) == sandbox.Refused
	if !refused {
		at.verdict.Fresh = true // not usable any more; its destruction is the proof
		at.x.noteSetup(err)
	}
	if claimErr != nil {
		return run.Outcome{Abandoned: true, Err: claimErr}
	}
	if !refused || at.inputs.unavailable {
		return run.Outcome{Abandoned: true, Err: err}
	}
	r := at.x.base(at.Attempt)
	r.Outcome, r.Reason, r.StartState = wire.NotStarted, wire.ReasonStart, wire.StartNo
	if _, ok := errors.AsType[*sandbox.FileError](err); ok {
		r.Reason = wire.ReasonFiles
	}
	r.Message = wire.Message("%v", err)
	return run.Outcome{Result: r}
}

// notClaimed ends a prepared process that may not start here.
func (at *attempt) notClaimed(ctx context.Context, process sandbox.Run, claimErr error) run.Outcome {
	at.terminateClosed(ctx, process)
	return run.Outcome{Abandoned: true, Err: claimErr}
}

// terminateClosed ends a process whose gate never opened.
func (at *attempt) terminateClosed(ctx context.Context, process sandbox.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), at.proofTime())
	defer cancel()
	proof, err := process.Terminate(ctx, 0)
	at.verdict.Proof = proof
	if err != nil || !proof.Proven {
		at.verdict.Doubt = leasepool.QuarantineUnproven
		at.verdict.Message = errText(err, "a process that was not started could not be proven gone")
	}
}

// open starts the program. The started event goes out before any output.
func (at *attempt) open(ctx context.Context, process sandbox.Run) error {
	if ctx.Err() != nil {
		return sandbox.Errorf(sandbox.Refused, "open", "%w", context.Cause(ctx))
	}
	// Open is not cut short by a cancel: a half-told start would be in doubt.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), at.setupTime())
	defer cancel()
	at.opened = time.Now()
	if err := process.Open(ctx); err != nil {
		return err
	}
	at.gate.Started()
	return nil
}

// announce emits the started event. Whoever takes it may be slow: the program
// runs already, so its wall time and the end of ctx count meanwhile.
func (at *attempt) announce(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, at.opened.Add(at.wall()))
	defer cancel()
	at.rec.start(ctx, at.startedBody())
}

// notOpened ends an attempt whose program did not start, or may have.
func (at *attempt) notOpened(ctx context.Context, process sandbox.Run, err error) run.Outcome {
	at.terminateClosed(ctx, process)
	at.rec.close()
	r := at.x.base(at.Attempt)
	switch {
	case sandbox.KindOf(err) != sandbox.Refused:
		at.verdict.Doubt = leasepool.QuarantineAmbiguousStart
		at.verdict.Message = err.Error()
		r.Outcome, r.Reason, r.StartState = wire.Lost, wire.ReasonAmbiguous, wire.StartMaybe
		// Whatever it wrote was not taken: output follows the started event.
		r.Output.Truncated = true
		r.Output.Unread = &wire.Unread{First: 1, Reason: "nobody knows whether the program was started: its output was not read"}
	case ctx.Err() != nil:
		return at.endedBeforeStart(ctx, r)
	default:
		r.Outcome, r.Reason, r.StartState = wire.NotStarted, wire.ReasonStart, wire.StartNo
	}
	r.Message = wire.Message("%v", err)
	at.containment(&r)
	return run.Outcome{Result: r}
}

// endedBeforeStart is the outcome when the context ended before the gate opened.
func (at *attempt) endedBeforeStart(ctx context.Context, r wire.Result) run.Outcome {
	cause := context.Cause(ctx)
	if !errors.Is(cause, run.ErrCancelled) {
		return run.Outcome{Abandoned: true, Err: cause}
	}
	r.Outcome, r.StartState = wire.Cancelled, wire.StartNo
	r.Message = "cancelled before the start"
	at.containment(&r)
	return run.Outcome{Result: r}
}

// follow waits for the end, ends the run where something says so, and sees to
// it that the wait for the proof is bounded.
func (at *attempt) follow(ctx context.Context, process sandbox.Run) {
	// The run is followed beyond the end of ctx, which only asks for its end.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &follower{ended: make(chan struct{}), done: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { f.watch(following, process) })
	defer wg.Wait()
	defer stop()

	wall := time.NewTimer(time.Until(at.opened.Add(at.wall())))
	defer wall.Stop()
	var proof <-chan time.Time
	ended := f.ended
	for at.decision == nil {
		select {
		case <-f.done:
			at.end, at.lost = f.end, f.err
			return
		case <-ended:
			// The leader is gone; what is left must follow within the bound.
			ended, proof = nil, time.After(at.proofTime())
		case <-at.lease.Sandbox().Lost():
			at.decide(wire.Lost, wire.ReasonSandboxGone, 0)
		case <-proof:
			proof = nil
			if !f.proven() {
				at.decide(wire.Lost, wire.ReasonSandboxGone, 0)
			}
		case <-wall.C:
			at.decide(wire.TimedOut, "", at.grace())
		case <-at.rec.over:
			at.decide(wire.Limit, wire.ReasonOutput, at.grace())
		case <-ctx.Done():
			at.decideBy(context.Cause(ctx))
		}
	}
	at.finish(ctx, process, f)
}

// decide records why the run is ended, before anything is killed.
func (at *attempt) decide(o wire.Outcome, r wire.Reason, grace time.Duration) {
	at.decision = &decision{at: time.Now(), outcome: o, reason: r, grace: grace}
}

func (at *attempt) decideBy(cause error) {
	switch {
	case errors.Is(cause, run.ErrCancelled):
		at.decide(wire.Cancelled, "", at.grace())
	case errors.Is(cause, run.ErrShutdown):
		at.decide(wire.Lost, wire.ReasonShutdown, min(at.grace(), at.x.cfg.ShutdownGrace))
	case errors.Is(cause, run.ErrFenced):
		at.decide(wire.Lost, wire.ReasonWorkerGone, 0)
	default:
		at.decide(wire.Lost, wire.ReasonInternal, 0)
	}
}

// finish ends the run for the decision's reason and takes what is known once the
// end is proven, or the bound is over.
func (at *attempt) finish(ctx context.Context, process sandbox.Run, f *follower) {
	bound := at.decision.grace + at.proofTime()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	var hurrying sync.WaitGroup
	defer hurrying.Wait()
	defer cancel()
	hurrying.Go(func() { at.hurry(ctx, cancel, process) })
	proof, err := process.Terminate(ctx, at.decision.grace)
	if err != nil {
		at.log.Warn().Err(err).Msg("run not terminated")
	}
	select {
	case <-f.done:
		at.end, at.lost = f.end, f.err
	case <-ctx.Done():
		// Output that nobody takes must not hold the verdict up.
		at.rec.stop()
		at.end = f.last()
	}
	if !at.end.Proof.Proven && proof.Proven {
		at.end.Proof = proof
	}
}

// hurry shortens the grace period and the bound of an end that was decided
// before the worker learned that it has no time for it.
func (at *attempt) hurry(ctx context.Context, cut context.CancelFunc, process sandbox.Run) {
	select {
	case <-at.Hurry:
	case <-ctx.Done():
		return
	}
	grace := min(at.decision.grace, at.x.cfg.ShutdownGrace)
	bound := time.AfterFunc(grace+at.proofTime(), cut)
	defer bound.Stop()
	if _, err := process.Terminate(ctx, grace); err != nil {
		at.log.Warn().Err(err).Msg("run not terminated in a hurry")
	}
	<-ctx.Done()
}

// setupTime and proofTime are the bounds, longer where the provider is far away.
func (at *attempt) setupTime() time.Duration {
	return max(at.x.cfg.SetupTimeout, at.profile.Capabilities.Patience.Setup)
}

func (at *attempt) proofTime() time.Duration {
	return max(at.x.cfg.ProofTimeout, at.profile.Capabilities.Patience.Proof)
}

// process is what the provider is to run.
func (at *attempt) process() sandbox.Process {
	return sandbox.Process{
		Argv:   at.Request.Argv,
		Env:    environment(at.Request.Env),
		Cwd:    at.Request.Cwd,
		Stdin:  stdin(at.Request),
		Files:  at.inputs.files,
		Limits: providerLimits(at.limits),
	}
}

// environment is the documented base with the request's own on top. The worker's
// own environment never reaches a job.
func environment(request map[string]string) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/workspace", "TMPDIR": "/tmp", "USER": "job", "LOGNAME": "job", "LANG": "C.UTF-8",
	}
	maps.Copy(env, request)
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

func errText(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}
