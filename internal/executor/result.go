package executor

import (
	"encoding/base64"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// judge turns what is known of the end into the verdict on the lease.
func (at *attempt) judge() {
	at.verdict.Proof = at.end.Proof
	switch {
	case !at.end.Proof.Proven:
		at.verdict.Doubt = leasepool.QuarantineUnproven
		at.verdict.Message = errText(at.lost, "no proof within the bound that the run's processes are gone")
	case at.lost != nil:
		at.verdict.Fresh = true // proven empty, but not a sandbox to trust again
	}
}

// result folds everything into the final decision.
func (at *attempt) result() wire.Result {
	r := at.x.base(at.Attempt)
	at.setOutcome(&r)
	at.setStart(&r)
	if e := at.end.Exit; e != nil {
		setExit(&r, *e)
	}
	at.containment(&r)
	r.Output, r.Stdout, r.Stderr = at.rec.summary()
	if lost := at.end.OutputLost; lost != nil {
		r.Output.Truncated = true
		r.Output.Unread = &wire.Unread{First: max(1, lost.First), Last: lost.Last, Reason: wire.Message("%s", lost.Reason)}
	}
	r.Files, r.FilesOmitted = at.files, at.omitted
	at.setUsage(&r)
	at.setTiming(&r)
	return r
}

// setOutcome applies the precedence: a program that was not executed, a kill by
// the kernel for memory, the first decision, the leader's own end.
func (at *attempt) setOutcome(r *wire.Result) {
	e := at.end
	switch {
	case e.StartError != nil:
		notExecuted(r, *e.StartError)
	case e.OOM > 0:
		r.Outcome = wire.OOM
		r.Message = wire.Message("memory limit of %d bytes reached: the kernel killed %d processes", value(at.limits.MemoryBytes), e.OOM)
	case at.decision != nil && !at.endedBy(at.decision.at):
		at.decided(r)
	case at.rec.exceeded: // also where the program ended before the reader came to the limit
		r.Outcome, r.Reason = wire.Limit, wire.ReasonOutput
		r.Message = wire.Message("output limit of %d bytes reached", at.outputLimit())
	case e.CPUExceeded:
		r.Outcome, r.Reason = wire.Limit, wire.ReasonCPU
		r.Message = wire.Message("CPU time limit of %d ms reached", value(at.limits.CPUMS))
	case e.Exit == nil:
		r.Outcome, r.Reason = wire.Lost, wire.ReasonSandboxGone
		r.Message = wire.Message("%s", errText(at.lost, "the end of the program is not known"))
	case e.Exit.Signal != 0:
		r.Outcome = wire.Signaled
	default:
		r.Outcome = wire.Exited
	}
}

// decided is the outcome of a run that was ended for a reason.
func (at *attempt) decided(r *wire.Result) {
	r.Outcome, r.Reason = at.decision.outcome, at.decision.reason
	switch r.Outcome {
	case wire.TimedOut:
		r.Message = wire.Message("wall time limit of %s reached", at.wall())
	case wire.Cancelled:
		r.Message = "cancelled by the publisher"
	case wire.Limit:
		r.Message = wire.Message("output limit of %d bytes reached", at.outputLimit())
	case wire.Lost:
		r.Message = "ended by its worker: " + string(r.Reason)
	case wire.Exited, wire.Signaled, wire.OOM, wire.NotStarted, wire.InvalidJob, wire.Expired: // never decided here
	}
}

// endedBy says that the leader had ended by itself before the given time.
func (at *attempt) endedBy(t time.Time) bool {
	return at.end.Exit != nil && !at.end.EndedAt.IsZero() && at.end.EndedAt.Before(t)
}

func (at *attempt) setStart(r *wire.Result) {
	switch at.end.Started {
	case sandbox.StartedNo:
		r.StartState = wire.StartNo
	case sandbox.StartedYes:
		r.StartState = wire.StartYes
	case sandbox.StartedMaybe:
		r.StartState = wire.StartMaybe
	default: // the gate was opened and nothing is known: doubt
		r.StartState = wire.StartMaybe
	}
}

// notExecuted maps an error of execve(2) to its reason and the shell's
// convention for the exit code (POSIX, Shell Command Language, 2.8.2).
func notExecuted(r *wire.Result, e sandbox.StartError) {
	r.Outcome, r.Reason = wire.NotStarted, wire.Reason(e.Reason)
	r.Message = wire.Message("%s: %s", e.Path, unix.Errno(e.Errno).Error())
	code := 0
	switch e.Reason {
	case sandbox.StartNotFound:
		code = wire.ExitNotFound
	case sandbox.StartNotExecutable, sandbox.StartBadFormat, sandbox.StartBadInterpreter, sandbox.StartTooBig:
		code = wire.ExitNotExec
	case sandbox.StartBadCwd, sandbox.StartSetup:
		return
	}
	r.ExitCode = &code
}

func setExit(r *wire.Result, e sandbox.Exit) {
	if r.Outcome == wire.NotStarted {
		return
	}
	if e.Signal != 0 {
		r.Signal = &wire.Signal{Number: e.Signal, Name: unix.SignalName(unix.Signal(e.Signal))}
		return
	}
	r.ExitCode = &e.Code
}

// containment states the proof, whatever the outcome.
func (at *attempt) containment(r *wire.Result) {
	c := &wire.Containment{Verdict: wire.Unproven, Scope: at.scope(), Isolation: at.isolation, Evidence: []wire.Evidence{}}
	if at.verdict.Proof.Proven {
		c.Verdict = wire.Proven
	}
	for _, e := range at.verdict.Proof.Evidence {
		c.Evidence = append(c.Evidence, wire.Evidence{Kind: string(e.Kind), Detail: e.Detail})
	}
	r.Containment = c
}

func (at *attempt) scope() wire.Scope {
	if at.profile.Capabilities.Scope == string(wire.ScopeKernel) {
		return wire.ScopeKernel
	}
	return wire.ScopeProvider
}

// describe adds what became of the lease.
func (at *attempt) describe(r *wire.Result, d leasepool.Disposition) {
	r.Lease = &wire.LeaseUse{
		ID: at.lease.ID(), Provider: at.lease.Provider(), Profile: at.lease.Profile(), Use: at.lease.Use(),
		Disposition: disposition(d),
	}
}

func disposition(d leasepool.Disposition) wire.Disposition {
	switch d {
	case leasepool.Reusable:
		return wire.Reusable
	case leasepool.Destroyed:
		return wire.Destroyed
	case leasepool.Quarantined:
		return wire.Quarantined
	}
	return wire.Quarantined // an unknown answer is doubt
}

func (at *attempt) setUsage(r *wire.Result) {
	u := at.end.Usage
	end := at.end.EndedAt
	if end.IsZero() {
		end = time.Now()
	}
	r.Usage = &wire.Usage{
		WallMS:          max(0, end.Sub(at.opened).Milliseconds()),
		CPUUserUS:       measured(u.CPUUser.Microseconds(), u.CPUUser >= 0),
		CPUSystemUS:     measured(u.CPUSystem.Microseconds(), u.CPUSystem >= 0),
		MemoryPeakBytes: measured(u.MemoryPeakBytes, u.MemoryPeakBytes >= 0),
		PidsPeak:        measured(u.PidsPeak, u.PidsPeak >= 0),
		OOMKills:        measured(at.end.OOM, u.Source == "cgroup"),
		Source:          u.Source,
	}
}

func measured(v int64, ok bool) *int64 {
	if !ok {
		return nil
	}
	return &v
}

func (at *attempt) setTiming(r *wire.Result) {
	r.Timing.LeaseMS = millis(at.leased.Sub(at.began))
	r.Timing.SetupMS = millis(at.opened.Sub(at.leased))
	end, proven := at.end.EndedAt, at.end.ProvenAt
	if end.IsZero() {
		end = time.Now()
	}
	if proven.IsZero() {
		proven = time.Now()
	}
	r.Timing.RunMS = millis(max(0, end.Sub(at.opened)))
	r.Timing.ProofMS = millis(max(0, proven.Sub(end)))
}

func (at *attempt) startedBody() []byte {
	b, err := wire.EncodeStarted(&wire.Started{V: wire.Version, Attempt: at.Number, Worker: at.x.cfg.Worker.ID, Lease: at.lease.ID()})
	if err != nil {
		at.log.Error().Err(err).Msg("started event not encoded")
	}
	return b
}

func isolation(i sandbox.Isolation) wire.Isolation {
	applied := i.Applied
	if applied == nil {
		applied = []string{}
	}
	return wire.Isolation{Level: i.Level, Applied: applied, Missing: i.Missing}
}

// stdin is the request's input, nil where there is none. The base64 was checked
// when the request was decoded.
func stdin(r *wire.Request) io.Reader {
	switch {
	case r.Stdin != nil:
		return strings.NewReader(*r.Stdin)
	case r.StdinBase64 != nil:
		return base64.NewDecoder(base64.StdEncoding, strings.NewReader(*r.StdinBase64))
	}
	return nil
}
