package wire

import "time"

// Version is the only request and result version that this build speaks.
const Version = 1

// Request is what a publisher asks for, version 1. The id, the tenant and the
// queue stand in the subject, the reply subject in a header. The zero value of
// an optional field means absent.
type Request struct {
	V           int               `json:"v"`
	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env,omitempty"`
	Cwd         string            `json:"cwd,omitzero"`
	Stdin       *string           `json:"stdin,omitzero"`
	StdinBase64 *string           `json:"stdin_base64,omitzero"`
	Files       []File            `json:"files,omitempty"`
	Collect     []string          `json:"collect,omitempty"`
	Limits      Limits            `json:"limits,omitzero"`
	Profile     string            `json:"profile,omitzero"`
	Lease       LeaseRule         `json:"lease,omitzero"`
	Retry       Retry             `json:"retry,omitzero"`
	Output      OutputMode        `json:"output,omitzero"`
	Deadline    *time.Time        `json:"deadline,omitzero"`
	NotBefore   *time.Time        `json:"not_before,omitzero"`
	Priority    *int              `json:"priority,omitzero"`
	Meta        map[string]string `json:"meta,omitempty"`
}

// File is an input that is placed in the workspace before the start, owned by the
// job's user. It has exactly one of Text, Base64 and Object.
type File struct {
	// Path is relative to the workspace; missing directories are made.
	Path   string  `json:"path"`
	Text   *string `json:"text,omitzero"`
	Base64 *string `json:"base64,omitzero"`
	// Object names an object of the same tenant in the object store.
	Object string `json:"object,omitzero"`
	// Mode is its permissions in octal, for instance "0755"; default "0644".
	Mode string `json:"mode,omitzero"`
}

// Limits bound one run. A nil field takes the profile's default; a set one is
// at least 1 and at most the profile's maximum. There is no "unlimited".
type Limits struct {
	// WallMS is the longest wall time in milliseconds, on the monotonic clock.
	WallMS *int64 `json:"wall_ms,omitzero"`
	// CPUMS is the longest CPU time of the whole tree in milliseconds.
	CPUMS *int64 `json:"cpu_ms,omitzero"`
	// MemoryBytes bounds the memory of the whole tree, swap included.
	MemoryBytes *int64 `json:"memory_bytes,omitzero"`
	// Pids bounds the number of tasks (threads count) of the tree.
	Pids *int64 `json:"pids,omitzero"`
	// OutputBytes bounds stdout and stderr together.
	OutputBytes *int64 `json:"output_bytes,omitzero"`
	// DiskBytes bounds the bytes in the workspace.
	DiskBytes *int64 `json:"disk_bytes,omitzero"`
	// Inodes bounds the number of files in the workspace.
	Inodes *int64 `json:"inodes,omitzero"`
	// OpenFiles is RLIMIT_NOFILE of each process (getrlimit(2)).
	OpenFiles *int64 `json:"open_files,omitzero"`
	// CPUShare is the CPU bandwidth in percent of one core (100 = one core).
	CPUShare *int64 `json:"cpu_share,omitzero"`
	// GraceMS is the time between SIGTERM and SIGKILL in milliseconds.
	GraceMS *int64 `json:"grace_ms,omitzero"`
}

// LeaseRule says whether the lease may serve the same tenant again.
type LeaseRule struct {
	Reuse Reuse `json:"reuse,omitzero"`
}

// Reuse is a lease's reuse rule.
type Reuse string

// The reuse rules. The empty value takes the profile's rule.
const (
	ReuseNever  Reuse = "never"
	ReuseTenant Reuse = "tenant"
)

// Retry says what may be done when the job is lost.
type Retry struct {
	// MaxAttempts is the number of starts in all, 1 to 10; absent means 1.
	MaxAttempts *int `json:"max_attempts,omitzero"`
	// IfLost allows another attempt of a job that may have started.
	IfLost bool `json:"if_lost,omitzero"`
}

// OutputMode says where the output goes.
type OutputMode string

// The output modes. The empty value means reply when the request has a reply
// subject, stored when it has none.
const (
	OutputStored OutputMode = "stored"
	OutputReply  OutputMode = "reply"
	OutputBoth   OutputMode = "both"
	OutputInline OutputMode = "inline"
	OutputNone   OutputMode = "none"
)

// Mode is the effective output mode of r, given whether it has a reply subject.
func (r *Request) Mode(hasReply bool) OutputMode {
	switch {
	case r.Output != "":
		return r.Output
	case hasReply:
		return OutputReply
	default:
		return OutputStored
	}
}

// MaxAttempts is the number of starts that r allows, at least 1.
func (r *Request) MaxAttempts() int {
	if r.Retry.MaxAttempts != nil {
		return *r.Retry.MaxAttempts
	}
	if r.Retry.IfLost {
		return 2
	}
	return 1
}
