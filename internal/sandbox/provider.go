// Package sandbox is the contract between Sallyport and whatever makes its
// sandboxes: the provider, its one error type, the evidence, and the lease's
// transition function.
//
// The life of a sandbox, as a provider sees it:
//
//	Create ─▶ idle ─Prepare─▶ prepared ─Open─▶ running ─▶ ended ─Reset─▶ idle
//	            │                 └──────────Terminate──────▲
//	            └──────────────Destroy (at any time, any number of times)──▶ gone
//
// What the run left in its workspace is read with Run.Collect after the proven end
// and before Reset, when nobody is there any more who could change it.
//
// At most one Run of a sandbox exists at a time. Prepare may be called again
// only after Reset has returned nil. Every call takes a context and returns soon
// after it ends; what the call had begun is then in doubt unless the error says
// otherwise (see Kind). A provider never rounds doubt to yes or no.
package sandbox

import (
	"context"
	"io"
	"time"
)

// Provider makes sandboxes. All methods are safe for concurrent use.
type Provider interface {
	// Name is the provider's token in subjects, results and configuration.
	Name() string
	// Capabilities says what this provider can do here. It is constant after the
	// provider was made.
	Capabilities() Capabilities
	// Create makes an idle sandbox for the lease id, which is unique for ever.
	// An error of kind Ambiguous means that a sandbox may exist: the caller
	// destroys it through Destroy(handle) or quarantines it.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Destroy ends the sandbox that handle names, whoever made it, and returns
	// proof. It is idempotent: a sandbox that is surely gone is proof again. An
	// error, or a proof that is not Proven, means that it may still be there.
	Destroy(ctx context.Context, handle Handle) (Proof, error)
	// Inventory lists what carries our ownership mark on this host or account,
	// and nothing else.
	Inventory(ctx context.Context) ([]Handle, error)
	// Close lets go of the provider's own resources. Sandboxes that cannot
	// outlive the worker end with it.
	Close() error
}

// Sandbox is one sandbox. Its methods are called by one owner, except Destroy,
// which may be called at any time by anyone.
type Sandbox interface {
	Handle() Handle
	// Isolation says what is really applied.
	Isolation() Isolation
	// Prepare sets a process up behind a closed start gate. Nothing of the
	// process's own program runs before Run.Open. The error kinds Refused (bad
	// process: surely nothing happened) and all others (the sandbox is no longer
	// usable) differ in what the caller may do with the sandbox. Files that cannot
	// be placed (the workspace's bounds, a path that is taken, an error of their
	// source) are Refused, too, with a *FileError: nothing of them is left.
	Prepare(ctx context.Context, process Process, sink Sink) (Run, error)
	// Reset returns the sandbox to the state after Create. It is called only
	// after a proven end of the run. An error means that it may not be used
	// again.
	Reset(ctx context.Context) error
	// Destroy ends the sandbox and everything in it; see Provider.Destroy.
	Destroy(ctx context.Context) (Proof, error)
	// Lost is closed when the sandbox is known to be gone or broken although
	// nobody destroyed it.
	Lost() <-chan struct{}
}

// Run is one process tree in a sandbox.
type Run interface {
	// Open opens the start gate. It is called at most once. After an error of a
	// kind other than Refused the process may have started.
	Open(ctx context.Context) error
	// Wait returns when the tree's end is proven and all its output has been
	// handed to the sink, or when ctx ends: then with what is known so far
	// (End.Exit may be known although End.Proof is not Proven). Any number of
	// calls, also concurrent ones, also after the end.
	Wait(ctx context.Context) (End, error)
	// Terminate ends the run: an orderly request (SIGTERM to every process), the
	// grace period, then force (SIGKILL), then all the force that there is. It
	// returns when the end is proven or ctx ends. A run whose gate is still
	// closed ends at once, without a start. Idempotent; a second call with a
	// shorter grace shortens the first.
	Terminate(ctx context.Context, grace time.Duration) (Proof, error)
	// Collect calls take, one at a time, for each file in the workspace that spec
	// names, in the order of a walk that sorts names by their bytes, until take
	// returns an error, which it returns. What is no regular file with one link, or
	// exceeds a bound, is handed to take as refused and is never opened for its
	// content: links are followed nowhere on the way. A pattern that nothing
	// matches is no error. more counts the matches beyond spec.MaxFiles and those
	// behind other bounds, which take does not see: 0 means that it saw all.
	//
	// It is called by the sandbox's owner, after Wait has returned a proven end and
	// before Reset; at another time it is Refused. It reads no further once ctx has
	// ended.
	Collect(ctx context.Context, spec CollectSpec, take func(Collected) error) (more int, err error)
}

// Sink takes a run's output. Write may block: that is the back-pressure, and it
// must reach the process. A Write that returns an error stops the reading of
// both streams for good. The provider calls it from one goroutine at a time per
// stream, promptly for small output (no piece is held back for more than about
// 20 ms) and in pieces as large as it has (up to 256 KiB) for a flood. p is only
// valid during the call.
type Sink interface {
	Write(stream Stream, p []byte) error
}

// Stream is an output stream.
type Stream int

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Capabilities is what a provider can do.
type Capabilities struct {
	// Scope of its proof: "kernel" or "provider".
	Scope string
	// Host is the token under which its sandboxes are listed in quarantine: the
	// host's name for local ones, the account's for remote ones.
	Host string
	// OutlivesWorker says that its sandboxes live on when the worker dies.
	OutlivesWorker bool
	// Reset says that a sandbox can be returned to its first state.
	Reset bool
	// Files says that it takes files in and gives files out (Process.Files,
	// Run.Collect). Without, both are refused.
	Files bool
	// Enforces has true for each limit that it enforces.
	Enforces Enforced
	// Unenforced has, for each limit that it cannot enforce here, the reason and
	// what to do, for a person. Key: the request's field name (memory_bytes, …).
	Unenforced map[string]string
	// Isolation is what a sandbox will get here.
	Isolation Isolation
	// Patience is how long its calls may take, where that is longer than callers
	// usually wait.
	Patience Patience
}

// Patience bounds the calls of a provider that is far away, including what it has to
// clean up after itself. Zero means that the caller's usual bound is enough.
type Patience struct {
	// Create bounds Create, Setup Prepare and Open, Reset and Destroy the calls of
	// their names.
	Create, Setup, Reset, Destroy time.Duration
	// Proof is how long after a run's end, or after its grace, the proof may take.
	Proof time.Duration
}

// Enforced tells which limits are enforced. Wall time, grace and output are the
// executor's own and need nobody's help.
type Enforced struct {
	CPU, Memory, Pids, Disk, Inodes, OpenFiles, CPUShare bool
}

// Isolation is what separates a run from its host.
type Isolation struct {
	// Level: "namespaces+cgroup", "namespaces", "provider" or "none".
	Level   string
	Applied []string
	Missing []string
}

// Spec is what to create.
type Spec struct {
	// Lease is 128 random bits, as a token.
	Lease string
	// Profile is the profile's name, for labels only.
	Profile string
	// Root is the root view: empty means the host's system directories,
	// read-only.
	Root string
	// Shape is the sandbox's size in the provider's word; empty means its default.
	Shape string
	// Limits are the profile's maxima: no run in this sandbox asks for more.
	Limits Limits
	// Network is the network rule; empty means none.
	Network string
}

// Limits are effective limits. Zero means "not limited by the provider"; the
// executor never passes zero for a limit that the provider enforces.
type Limits struct {
	CPU         time.Duration
	MemoryBytes int64
	Pids        int64
	DiskBytes   int64
	Inodes      int64
	OpenFiles   int64
	// CPUShare is in percent of one core.
	CPUShare int64
}

// Process is what to run.
type Process struct {
	// Argv has at least one element; Argv[0] without a slash is looked up inside
	// the sandbox in the PATH of Env.
	Argv []string
	// Env is the whole environment, "NAME=value".
	Env []string
	// Cwd is a path inside; empty means the workspace.
	Cwd string
	// Stdin is copied to the process's standard input and then closed. Nil means
	// an empty standard input. A process that does not read it is no error.
	Stdin io.Reader
	// Files stand in the workspace before the gate opens.
	Files []File
	// Limits of this run.
	Limits Limits
}

// Handle names a sandbox so that anyone with the provider's credentials can find
// and destroy it.
type Handle struct {
	Provider string
	Lease    string
	Host     string
	// Detail is the provider's own, without secrets.
	Detail map[string]string
}

// End is what is known of a run.
type End struct {
	// Started is "no" when the program surely never ran.
	Started Started
	// Exit is nil while the leader's end is not known.
	Exit *Exit
	// StartError says why the program could not be executed.
	StartError *StartError
	// Leftover says that the leader ended while others of its tree lived.
	Leftover bool
	// OOM is the number of processes that the kernel killed for memory.
	OOM int64
	// CPUExceeded says that the provider ended the run for its CPU limit.
	CPUExceeded bool
	// OutputLost says what of the run's output was not handed to the sink and never
	// will be; nil when all was. What the sink got is then a strict prefix of it.
	OutputLost *OutputLost
	Proof      Proof
	Usage      Usage
	// ProvenAt is when the proof was complete; EndedAt when the leader ended.
	EndedAt, ProvenAt time.Time
}

// OutputLost is output that the provider had, or may have had, and could not hand over.
type OutputLost struct {
	// First and Last are the provider's own numbers of the missing pieces, over both
	// streams. Last is 0 when nobody knows how many there were, or whether any.
	First, Last uint64
	// Reason is why, for a person.
	Reason string
}

// Started says whether a program ran.
type Started int

// The answers, with doubt as its own one. The zero value is invalid.
const (
	StartedNo Started = iota + 1
	StartedMaybe
	StartedYes
)

// Exit is the leader's end: a code or a signal.
type Exit struct {
	Code int
	// Signal is 0 where the leader exited by itself.
	Signal int
}

// StartError is a program that could not be executed.
type StartError struct {
	Reason StartReason
	Errno  int
	// Path is the path, as seen inside, that the error is about.
	Path string
}

// StartReason is why, a closed set.
type StartReason string

// The reasons.
const (
	StartNotFound       StartReason = "not_found"
	StartNotExecutable  StartReason = "not_executable"
	StartBadFormat      StartReason = "bad_format"
	StartBadInterpreter StartReason = "bad_interpreter"
	StartBadCwd         StartReason = "bad_cwd"
	StartTooBig         StartReason = "arguments_too_big"
	StartSetup          StartReason = "start"
)

// Usage is what a whole tree used; -1 means not measured.
type Usage struct {
	CPUUser, CPUSystem time.Duration
	MemoryPeakBytes    int64
	PidsPeak           int64
	// Source is "cgroup" or "rusage".
	Source string
}

// Proof is positive evidence that nothing of a run or a sandbox is left.
type Proof struct {
	Proven   bool
	Evidence []Evidence
}

// Absence says that p rests on this alone: the provider does not find it. That is no
// proof for a sandbox whose create call may still go through.
func (p Proof) Absence() bool {
	missing := false
	for _, e := range p.Evidence {
		missing = missing || e.Kind == EvidenceNotFound
		if e.Kind != EvidenceNotFound && e.Kind != EvidenceSecondLook {
			return false
		}
	}
	return missing
}

// Evidence is one observation.
type Evidence struct {
	Kind   EvidenceKind
	Detail string
}

// EvidenceKind is what was observed, a closed set.
type EvidenceKind string

// The kinds.
const (
	EvidencePidfd       EvidenceKind = "pidfd"       // the pid namespace's init was seen dead by the worker itself
	EvidenceReap        EvidenceKind = "reap"        // lease init reaped it
	EvidenceCgroup      EvidenceKind = "cgroup"      // populated 0 and no task left
	EvidenceTreeExited  EvidenceKind = "tree_exited" // the provider's word, for the whole tree
	EvidenceNotFound    EvidenceKind = "not_found"   // the provider does not know it (any more)
	EvidenceDeleted     EvidenceKind = "deleted"     // the provider had it, and took the order to delete it
	EvidenceNeverMade   EvidenceKind = "never_made"  // surely nothing was created
	EvidenceBoot        EvidenceKind = "boot"        // the host has rebooted since
	EvidenceOwnerDead   EvidenceKind = "owner_dead"  // its worker, with which it dies, is dead and it is gone
	EvidenceOperator    EvidenceKind = "operator"    // a person says so
	EvidenceNotStarted  EvidenceKind = "not_started" // the gate never opened
	EvidenceSecondLook  EvidenceKind = "second_look" // a later look found it gone
	EvidenceFilesystems EvidenceKind = "filesystems" // mounts and directories are gone
)
