package wire

// Result is the one final decision about a job, version 1. A program that fails
// is a result with outcome exited; Sallyport's own failures are the outcomes
// not_started and lost.
type Result struct {
	V       int     `json:"v"`
	Tenant  string  `json:"tenant"`
	ID      string  `json:"id"`
	Queue   string  `json:"queue,omitzero"`
	Attempt int     `json:"attempt"`
	Outcome Outcome `json:"outcome"`
	Reason  Reason  `json:"reason,omitzero"`
	// Message is for a person, at most MaxMessageBytes.
	Message string `json:"message,omitzero"`
	// ExitCode (0 to 255) and Signal exclude each other. Both may stand beside
	// timed_out, cancelled, oom and limit, as detail.
	ExitCode    *int          `json:"exit_code,omitzero"`
	Signal      *Signal       `json:"signal,omitzero"`
	StartState  StartState    `json:"start_state"`
	Containment *Containment  `json:"containment,omitzero"`
	Lease       *LeaseUse     `json:"lease,omitzero"`
	Usage       *Usage        `json:"usage,omitzero"`
	Output      OutputSummary `json:"output"`
	// Files are the matches of the request's collect, in the order of their paths.
	Files []CollectedFile `json:"files,omitempty"`
	// FilesOmitted counts the matches that Files has no room for.
	FilesOmitted int               `json:"files_omitted,omitzero"`
	Stdout       *Inline           `json:"stdout,omitzero"`
	Stderr       *Inline           `json:"stderr,omitzero"`
	Timing       Timing            `json:"timing"`
	Worker       WorkerRef         `json:"worker"`
	Meta         map[string]string `json:"meta,omitempty"`
}

// Outcome is how a job ended.
type Outcome string

// The outcomes, a closed set.
const (
	Exited     Outcome = "exited"
	Signaled   Outcome = "signaled"
	TimedOut   Outcome = "timed_out"
	Cancelled  Outcome = "cancelled"
	OOM        Outcome = "oom"
	Limit      Outcome = "limit"
	NotStarted Outcome = "not_started"
	Lost       Outcome = "lost"
	InvalidJob Outcome = "invalid"
	Expired    Outcome = "expired"
)

// Reason tells kinds of one outcome apart.
type Reason string

// The reasons, a closed set per outcome.
const (
	// limit
	ReasonOutput Reason = "output"
	ReasonCPU    Reason = "cpu"
	ReasonDisk   Reason = "disk"

	// not_started: the program surely did not run.
	ReasonNotFound        Reason = "not_found"       // exit code 127, as for a shell
	ReasonNotExecutable   Reason = "not_executable"  // exit code 126, as for a shell
	ReasonBadFormat       Reason = "bad_format"      // no #! line, other architecture
	ReasonBadInterpreter  Reason = "bad_interpreter" // the #! line names a missing file
	ReasonBadCwd          Reason = "bad_cwd"         // no such directory inside
	ReasonArgumentsTooBig Reason = "arguments_too_big"
	ReasonUnenforceable   Reason = "unenforceable" // a limit that this host cannot enforce
	ReasonNoSandbox       Reason = "no_sandbox"    // a sandbox could not be made
	ReasonStart           Reason = "start"         // set-up inside the sandbox failed
	ReasonFiles           Reason = "files"         // an input file could not be placed

	// lost: it may have started and its end is not known.
	ReasonWorkerGone  Reason = "worker_gone"
	ReasonSandboxGone Reason = "sandbox_gone"
	ReasonShutdown    Reason = "shutdown"
	ReasonAmbiguous   Reason = "ambiguous_start"
	ReasonInternal    Reason = "internal"

	// invalid: the request is at fault.
	ReasonNotJSON     Reason = "not_json"
	ReasonField       Reason = "field"       // a field is unknown, missing or wrong
	ReasonTooBig      Reason = "too_big"     // a bound is exceeded
	ReasonVersion     Reason = "version"     // a version that nobody here speaks
	ReasonUnsupported Reason = "unsupported" // valid in the format, not offered here
	ReasonProfile     Reason = "profile"     // no such profile
	ReasonQueue       Reason = "queue"       // no such queue
	ReasonReply       Reason = "reply"       // the reply subject is not allowed
	ReasonIDConflict  Reason = "id_conflict" // the id stands for another request
	ReasonSubject     Reason = "subject"     // the subject is not a job subject

	// expired
	ReasonDeadline Reason = "deadline"
	ReasonQueueAge Reason = "queue_age"
)

// StartState says whether the program may have run.
type StartState string

// The start states.
const (
	StartNo    StartState = "not_started"
	StartMaybe StartState = "may_have_started"
	StartYes   StartState = "started"
)

// Signal is a terminating signal (signal(7)).
type Signal struct {
	Number int `json:"number"`
	// Name is as in kill -l with SIG in front; empty for a real-time signal.
	Name string `json:"name,omitzero"`
}

// Containment is the proof that nothing of the run is left.
type Containment struct {
	Verdict   Verdict    `json:"verdict"`
	Scope     Scope      `json:"scope"`
	Evidence  []Evidence `json:"evidence"`
	Isolation Isolation  `json:"isolation"`
}

// Verdict is proven or unproven; there is nothing between.
type Verdict string

// The verdicts.
const (
	Proven   Verdict = "proven"
	Unproven Verdict = "unproven"
)

// Scope is who gave the evidence.
type Scope string

// The scopes.
const (
	ScopeKernel   Scope = "kernel"
	ScopeProvider Scope = "provider"
)

// Evidence is one observation.
type Evidence struct {
	// Kind is from the provider's closed set, for instance pidfd, reap, cgroup.
	Kind string `json:"kind"`
	// Detail is for a person.
	Detail string `json:"detail,omitzero"`
}

// Isolation is what was really applied to the run.
type Isolation struct {
	// Level is namespaces+cgroup, namespaces, provider or none.
	Level   string   `json:"level"`
	Applied []string `json:"applied"`
	Missing []string `json:"missing,omitempty"`
}

// LeaseUse is which sandbox the run used and what became of it.
type LeaseUse struct {
	ID       string `json:"id"`
	Provider string `json:"provider"`
	Profile  string `json:"profile"`
	// Use is 1 for the first job of the lease.
	Use         int         `json:"use"`
	Disposition Disposition `json:"disposition"`
}

// Disposition is the decision about the lease after the run.
type Disposition string

// The dispositions. Destroyed means handed over to be destroyed: destroying is
// never waited for, and one that fails goes to quarantine.
const (
	Reusable    Disposition = "reusable"
	Destroyed   Disposition = "destroyed"
	Quarantined Disposition = "quarantined"
)

// Usage is what the whole tree used; a nil field could not be measured here.
type Usage struct {
	WallMS          int64  `json:"wall_ms"`
	CPUUserUS       *int64 `json:"cpu_user_us,omitzero"`
	CPUSystemUS     *int64 `json:"cpu_system_us,omitzero"`
	MemoryPeakBytes *int64 `json:"memory_peak_bytes,omitzero"`
	PidsPeak        *int64 `json:"pids_peak,omitzero"`
	OOMKills        *int64 `json:"oom_kills,omitzero"`
	// Source says where the figures come from: cgroup or rusage. With rusage the
	// memory peak is that of the largest single process, and orphans that were
	// killed with the namespace are not counted.
	Source string `json:"source,omitzero"`
}

// OutputSummary counts the output. Delivered is a strict prefix of produced.
type OutputSummary struct {
	StdoutBytes    int64       `json:"stdout_bytes"`
	StderrBytes    int64       `json:"stderr_bytes"`
	StdoutProduced int64       `json:"stdout_produced"`
	StderrProduced int64       `json:"stderr_produced"`
	Truncated      bool        `json:"truncated"`
	LastSeq        uint64      `json:"last_seq"`
	LostRanges     []LostRange `json:"lost_ranges,omitempty"`
	// Unread is output that never left the sandbox: it has no events at all.
	Unread *Unread `json:"unread,omitzero"`
}

// Unread is output that the sandbox's provider had, or may have had, and could not
// hand over. What arrived is a strict prefix of what was written.
type Unread struct {
	// First and Last are the provider's own numbers of the missing pieces, over both
	// streams; Last is 0 where nobody knows how many there were, or whether any.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Reason is why, for a person.
	Reason string `json:"reason"`
}

// LostRange is a range of event sequence numbers that did not arrive, both ends
// included.
type LostRange struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// CollectedFile is an output file: here in base64 (an empty one has none), in the
// object store, or refused.
type CollectedFile struct {
	// Path is relative to the workspace. Where the name is no plain text (see
	// FileName), it is escaped, and the file refused.
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Base64 string `json:"base64,omitzero"`
	// Object names the tenant's object that holds it, as in File.
	Object string `json:"object,omitzero"`
	// Refuse says why it was not collected, for a person.
	Refuse string `json:"refused,omitzero"`
}

// Inline is output that stands in the result: text when all of it is UTF-8 that
// JSON can carry without blowing up, base64 otherwise.
type Inline struct {
	Encoding string `json:"encoding"` // text | base64
	Data     string `json:"data"`
}

// Timing is where the time went, in milliseconds with three decimals.
type Timing struct {
	QueuedMS float64 `json:"queued_ms"`
	LeaseMS  float64 `json:"lease_ms"`
	SetupMS  float64 `json:"setup_ms"`
	RunMS    float64 `json:"run_ms"`
	ProofMS  float64 `json:"proof_ms"`
}

// WorkerRef names the worker that decided.
type WorkerRef struct {
	ID      string `json:"id"`
	Version string `json:"version"`
}
