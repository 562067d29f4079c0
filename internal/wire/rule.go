package wire

import (
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of lists that we write ourselves; whoever fills them stays far below.
const (
	maxLostRanges  = 1024
	maxHandle      = 32
	maxHandleBytes = 4 << 10
)

// Validate checks the rules of a result: closed sets, the detail that an outcome
// must have, and that no two fields contradict each other.
func (r *Result) Validate() *Invalid {
	for _, check := range []func() *Invalid{
		r.checkIdentity, r.checkOutcome, r.checkDetail, r.checkContainment, r.checkLease, r.checkOutput, r.checkFiles,
		func() *Invalid { return checkMeta(r.Meta) },
	} {
		if bad := check(); bad != nil {
			return bad
		}
	}
	return nil
}

func (r *Result) checkIdentity() *Invalid {
	// A request that was refused may have come without a usable name.
	optional := r.Outcome == InvalidJob
	for _, word := range []struct {
		field, value string
		optional     bool
	}{{"tenant", r.Tenant, optional}, {"id", r.ID, optional}, {"queue", r.Queue, true}} {
		if bad := checkWord(word.field, word.value, word.optional); bad != nil {
			return bad
		}
	}
	if r.Attempt < 0 {
		return invalid(ReasonField, "attempt", "must not be negative")
	}
	return nil
}

func (r *Result) checkOutcome() *Invalid {
	if !r.Outcome.Valid() {
		return invalid(ReasonField, "outcome", "must be %s, not %s", choice(outcomes()), quoted(string(r.Outcome)))
	}
	reasons := r.Outcome.Reasons()
	switch {
	case len(reasons) == 0 && r.Reason != "":
		return invalid(ReasonField, "reason", "must not stand beside outcome %s", r.Outcome)
	case len(reasons) > 0 && !slices.Contains(reasons, r.Reason):
		return invalid(ReasonField, "reason", "must be %s beside outcome %s, not %s", choice(reasons), r.Outcome, quoted(string(r.Reason)))
	case !r.StartState.Valid():
		return invalid(ReasonField, "start_state", "must be %s, not %s", choice(startStates()), quoted(string(r.StartState)))
	}
	switch r.Outcome {
	case Exited, Signaled:
		if r.StartState != StartYes {
			return invalid(ReasonField, "start_state", "must be %s beside outcome %s", StartYes, r.Outcome)
		}
	case NotStarted, InvalidJob, Expired:
		if r.StartState != StartNo {
			return invalid(ReasonField, "start_state", "must be %s beside outcome %s", StartNo, r.Outcome)
		}
	case TimedOut, Cancelled, OOM, Limit, Lost:
	}
	if len(r.Message) > MaxMessageBytes {
		return invalid(ReasonTooBig, "message", "must have at most %d bytes, not %d", MaxMessageBytes, len(r.Message))
	}
	return nil
}

func (r *Result) checkDetail() *Invalid {
	switch {
	case r.ExitCode != nil && r.Signal != nil:
		return invalid(ReasonField, "signal", "must not stand beside exit_code")
	case r.ExitCode != nil && (*r.ExitCode < 0 || *r.ExitCode > maxExitCode):
		return invalid(ReasonField, "exit_code", "must be from 0 to %d, not %d", maxExitCode, *r.ExitCode)
	case r.Signal != nil && (r.Signal.Number < 1 || r.Signal.Number > maxSignal):
		return invalid(ReasonField, "signal.number", "must be from 1 to %d, not %d", maxSignal, r.Signal.Number)
	case r.Outcome == Exited && r.ExitCode == nil:
		return invalid(ReasonField, "exit_code", "must stand beside outcome %s", Exited)
	case r.Outcome == Signaled && r.Signal == nil:
		return invalid(ReasonField, "signal", "must stand beside outcome %s", Signaled)
	}
	return nil
}

func (r *Result) checkContainment() *Invalid {
	c := r.Containment
	if c == nil {
		return nil
	}
	switch {
	case !c.Verdict.Valid():
		return invalid(ReasonField, "containment.verdict", "must be %s, not %s", choice(verdicts()), quoted(string(c.Verdict)))
	case !c.Scope.Valid():
		return invalid(ReasonField, "containment.scope", "must be %s, not %s", choice(scopes()), quoted(string(c.Scope)))
	}
	return checkEvidence("containment.evidence", c.Evidence)
}

func (r *Result) checkLease() *Invalid {
	if r.Lease == nil {
		return nil
	}
	if !r.Lease.Disposition.Valid() {
		return invalid(ReasonField, "lease.disposition", "must be %s, not %s", choice(dispositions()), quoted(string(r.Lease.Disposition)))
	}
	// An unproven tree in a lease that goes on is the one thing that must never be.
	unproven := r.Containment != nil && r.Containment.Verdict == Unproven
	if unproven && r.Lease.Disposition == Reusable {
		return invalid(ReasonField, "lease.disposition", "must not be %s beside an unproven containment", Reusable)
	}
	return nil
}

func (r *Result) checkOutput() *Invalid {
	o := r.Output
	for _, stream := range []struct {
		field               string
		delivered, produced int64
	}{{"output.stdout_bytes", o.StdoutBytes, o.StdoutProduced}, {"output.stderr_bytes", o.StderrBytes, o.StderrProduced}} {
		if stream.delivered < 0 || stream.delivered > stream.produced {
			return invalid(ReasonField, stream.field, "must be from 0 to the %d bytes that were produced, not %d", stream.produced, stream.delivered)
		}
	}
	if len(o.LostRanges) > maxLostRanges {
		return invalid(ReasonTooBig, "output.lost_ranges", "must have at most %d elements, not %d", maxLostRanges, len(o.LostRanges))
	}
	for i, lost := range o.LostRanges {
		if lost.From == 0 || lost.From > lost.To {
			return invalid(ReasonField, element("output.lost_ranges", i), "must run from 1 or more upwards")
		}
	}
	if u := o.Unread; u != nil && (u.First == 0 || u.Last != 0 && u.Last < u.First) {
		return invalid(ReasonField, "output.unread", "must run from 1 or more upwards")
	}
	if o.Unread != nil && !o.Truncated {
		return invalid(ReasonField, "output.truncated", "must be true where output is unread")
	}
	for _, inline := range []struct {
		field string
		data  *Inline
	}{{"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if _, err := inline.data.Bytes(); err != nil {
			return invalid(ReasonField, inline.field, "must be text or valid base64")
		}
	}
	return nil
}

// WithoutInline is a copy of r without inline output and without the contents of
// collected files, for a result that a server refused for its size. Truncated
// says that something is missing.
func (r *Result) WithoutInline() *Result {
	slim := *r
	if r.Stdout != nil || r.Stderr != nil {
		slim.Output.Truncated = true
	}
	slim.Stdout, slim.Stderr = nil, nil
	slim.Files = slices.Clone(r.Files)
	for i := range slim.Files {
		if slim.Files[i].Base64 != "" {
			slim.Files[i].Base64, slim.Files[i].Refuse = "", "the result became too big"
		}
	}
	return &slim
}

// tidy is a copy of r within the bounds of everything that is text or measured.
func (r *Result) tidy() *Result {
	tidy := *r
	tidy.V = Version
	tidy.Message = bounded(r.Message)
	if r.Containment != nil {
		containment := *r.Containment
		containment.Evidence = tidyEvidence(containment.Evidence)
		tidy.Containment = &containment
	}
	tidy.Output.LostRanges = tidyRanges(r.Output.LostRanges)
	if u := r.Output.Unread; u != nil {
		tidy.Output.Unread = &Unread{First: u.First, Last: u.Last, Reason: bounded(u.Reason)}
	}
	for _, ms := range []*float64{&tidy.Timing.QueuedMS, &tidy.Timing.LeaseMS, &tidy.Timing.SetupMS, &tidy.Timing.RunMS, &tidy.Timing.ProofMS} {
		*ms = tidyMS(*ms)
	}
	return &tidy
}

// tidyMS rounds to a microsecond. A queue wait between two hosts' clocks may come
// out negative: it is then not known, and not worth a lost result.
func tidyMS(ms float64) float64 {
	if math.IsNaN(ms) || math.IsInf(ms, 0) || ms < 0 {
		return 0
	}
	return math.Round(ms*1000) / 1000
}

// tidyRanges lets the last range that fits cover all that follow: a reader may
// then take for lost what arrived, but never for complete what did not.
func tidyRanges(ranges []LostRange) []LostRange {
	if len(ranges) <= maxLostRanges {
		return ranges
	}
	tidy := slices.Clone(ranges[:maxLostRanges])
	tidy[maxLostRanges-1].To = ranges[len(ranges)-1].To
	return tidy
}

func tidyEvidence(evidence []Evidence) []Evidence {
	tidy := slices.Clone(evidence[:min(len(evidence), MaxEvidence)])
	for i := range tidy {
		tidy[i].Kind, tidy[i].Detail = Token(tidy[i].Kind), bounded(tidy[i].Detail)
	}
	return tidy
}

func checkEvidence(field string, evidence []Evidence) *Invalid {
	if len(evidence) > MaxEvidence {
		return invalid(ReasonTooBig, field, "must have at most %d elements, not %d", MaxEvidence, len(evidence))
	}
	for i, piece := range evidence {
		if !ValidToken(piece.Kind) {
			return invalid(ReasonField, element(field, i)+".kind", "must be %s, not %s", tokenText(), quoted(piece.Kind))
		}
		if len(piece.Detail) > MaxMessageBytes {
			return invalid(ReasonTooBig, element(field, i)+".detail", "must have at most %d bytes, not %d", MaxMessageBytes, len(piece.Detail))
		}
	}
	return nil
}

// Validate checks the rules of a run record: a claim has an owner and a token, a
// final state has its result, and no other state has one.
func (r *RunRecord) Validate() *Invalid {
	if !r.State.Valid() {
		return invalid(ReasonField, "state", "must be %s, not %s", choice(runStates()), quoted(string(r.State)))
	}
	claimed := r.State == RunClaimed
	for _, word := range []struct {
		field, value string
		optional     bool
	}{
		{"queue", r.Queue, false},
		{"worker", r.Worker, !claimed},
		{"token", r.Token, !claimed},
		{"lease", r.Lease, true},
		{"digest", r.Digest, false},
	} {
		if bad := checkWord(word.field, word.value, word.optional); bad != nil {
			return bad
		}
	}
	switch {
	case r.Attempt < 0 || claimed && r.Attempt == 0:
		return invalid(ReasonField, "attempt", "must not be %d in state %s", r.Attempt, r.State)
	case r.Renewals < 0:
		return invalid(ReasonField, "renewals", "must not be negative")
	case r.State.Terminal() != (len(r.Result) > 0):
		return invalid(ReasonField, "result", "must stand in the states %s and %s, and in no other", RunDone, RunCancelled)
	case r.State.Terminal() && r.Result[0] != '{':
		return invalid(ReasonField, "result", "must be an object")
	}
	return nil
}

// Validate checks the rules of a quarantine record.
func (q *Quarantine) Validate() *Invalid {
	if !q.State.Valid() {
		return invalid(ReasonField, "state", "must be %s, not %s", choice(quarantineStates()), quoted(string(q.State)))
	}
	if !q.Reason.Valid() {
		return invalid(ReasonField, "reason", "must be %s, not %s", choice(quarantineReasons()), quoted(string(q.Reason)))
	}
	for _, word := range []struct {
		field, value string
		optional     bool
	}{{"lease", q.Lease, false}, {"provider", q.Provider, false}, {"host", q.Host, false}, {"worker", q.Worker, true}, {"tenant", q.Tenant, true}} {
		if bad := checkWord(word.field, word.value, word.optional); bad != nil {
			return bad
		}
	}
	switch {
	case q.Job != "" && !ValidToken(q.Job) && !validKey(q.Job):
		return invalid(ReasonField, "job", "must be a job's id or <tenant>.<id>, not %s", quoted(q.Job))
	case q.FirstSeen.IsZero():
		return invalid(ReasonField, "first_seen", "must be set")
	case (q.State == Gone) != (q.DestroyedAt != nil):
		return invalid(ReasonField, "destroyed_at", "must stand in the state %s, and in no other", Gone)
	case q.Attempts < 0:
		return invalid(ReasonField, "attempts", "must not be negative")
	case len(q.Message) > MaxMessageBytes:
		return invalid(ReasonTooBig, "message", "must have at most %d bytes, not %d", MaxMessageBytes, len(q.Message))
	case len(q.Note) > MaxMessageBytes:
		return invalid(ReasonTooBig, "note", "must have at most %d bytes, not %d", MaxMessageBytes, len(q.Note))
	}
	if bad := checkHandle(q.Handle); bad != nil {
		return bad
	}
	return checkEvidence("evidence", q.Evidence)
}

// checkHandle refuses what the encoder would change: with a handle that lost a
// byte nobody finds the sandbox again.
func checkHandle(handle map[string]string) *Invalid {
	total := 0
	for _, key := range sortedKeys(handle) {
		if !utf8.ValidString(key) || !utf8.ValidString(handle[key]) {
			return invalid(ReasonField, member("handle", key), "must be UTF-8 text")
		}
		total += len(key) + len(handle[key])
	}
	if len(handle) > maxHandle || total > maxHandleBytes {
		return invalid(ReasonTooBig, "handle", "must have at most %d entries and %d bytes", maxHandle, maxHandleBytes)
	}
	return nil
}

// Validate checks the rules of a dead letter.
func (d *DeadLetter) Validate() *Invalid {
	for _, word := range []struct{ field, value string }{{"tenant", d.Tenant}, {"queue", d.Queue}, {"id", d.ID}} {
		if bad := checkWord(word.field, word.value, true); bad != nil {
			return bad
		}
	}
	switch {
	case d.Subject == "" || strings.ContainsAny(d.Subject, " \t\r\n"):
		return invalid(ReasonField, "subject", "must be the subject on which the message came")
	case !d.Reason.Valid():
		return invalid(ReasonField, "reason", "must be a reason of a result, not %s", quoted(string(d.Reason)))
	case len(d.Message) > MaxMessageBytes:
		return invalid(ReasonTooBig, "message", "must have at most %d bytes, not %d", MaxMessageBytes, len(d.Message))
	case len(d.Body) > MaxDeadBodyBytes:
		return invalid(ReasonTooBig, "body", "must have at most %d bytes, not %d", MaxDeadBodyBytes, len(d.Body))
	case d.At.IsZero():
		return invalid(ReasonField, "at", "must be set")
	}
	return nil
}

// Validate checks the body of a started event.
func (s *Started) Validate() *Invalid {
	if s.Attempt < 1 {
		return invalid(ReasonField, "attempt", "must be at least 1, not %d", s.Attempt)
	}
	if bad := checkWord("worker", s.Worker, false); bad != nil {
		return bad
	}
	return checkWord("lease", s.Lease, false)
}

// Validate checks the body of an accepted event.
func (a *Accepted) Validate() *Invalid {
	for _, word := range []struct{ field, value string }{{"tenant", a.Tenant}, {"queue", a.Queue}, {"id", a.ID}} {
		if bad := checkWord(word.field, word.value, false); bad != nil {
			return bad
		}
	}
	return nil
}

func checkWord(field, value string, optional bool) *Invalid {
	if value == "" && optional || ValidToken(value) {
		return nil
	}
	return invalid(ReasonField, field, "must be %s, not %s", tokenText(), quoted(value))
}
