package leaseinit

import (
	"encoding/binary"
	"unsafe"
)

// Marker is argv[0] of lease init. argv[1] is the lease's id.
const Marker = "sallyport-lease"

// Socket is the descriptor number of lease init's end of the socket pair.
const Socket = 3

// MaxInline is the size in bytes of the largest Job that travels in a message. A
// larger one travels in a memory file: a message on a Unix socket is bounded by
// the host's net.core.wmem_max.
const MaxInline = 48 << 10

// MaxJob is the size in bytes of the largest encoded Job: the kernel's own bound
// on argv and environment is 6 MiB, three quarters of the largest stack.
const MaxJob = 16 << 20

// MaxJobFilter is the number of instructions of the longest job filter.
const MaxJobFilter = 16

// The kinds of messages to lease init, the first four bytes of each.
const (
	kindSetup uint32 = iota + 1
	kindJob
	kindJobFile
	kindReset
)

// OpKind is a kind of Op.
type OpKind uint32

// The kinds of Op.
const (
	// OpDir makes the directory Path.
	OpDir OpKind = iota + 1
	// OpDirSticky makes the directory Path with mode 1777.
	OpDirSticky
	// OpFile makes the file Path with the content Arg.
	OpFile
	// OpCopy makes the file Path with the content of the host's file Arg. Where
	// files are small this is cheaper than a mount, which every job copies.
	OpCopy
	// OpLink makes the symbolic link Path to Arg.
	OpLink
	// OpBind binds the host's Arg over Path with all that is mounted below:
	// read-only, nosuid, nodev.
	OpBind
	// OpDevice binds the host's device node Arg over the file Path.
	OpDevice
	// OpTree attaches the tree of mounts that travels with the Setup (Setup.Tree) at
	// the directory Path. It shows the host's Arg.
	OpTree
)

// Op is one step of making the root view, in order. Path is absolute as seen
// inside.
type Op struct {
	Kind      OpKind
	Path, Arg string
}

// Setup is what lease init needs to build the sandbox. With it travel the
// descriptors of the cgroup files that put a job's stub into its groups.
type Setup struct {
	// Base is a host directory over which the new root is mounted first. It must
	// not lead to anything that View binds.
	Base string
	// Hostname inside.
	Hostname string
	// JobUID is the uid and gid of jobs inside.
	JobUID uint32
	// Switch says that lease init is root inside and jobs change to JobUID. If
	// not, only one uid is mapped and lease init has it too.
	Switch bool
	// Into says that the last descriptor, before Tree's, is the directory of the job's
	// v2 group, to be born in, and the first one the file that moves a process there.
	Into bool
	// View is the root.
	View []Op
	// Filter is the system-call filter as an array of struct sock_filter; empty
	// means none.
	Filter []byte
	// JobFilter is the one that each job's process loads in addition, before it
	// executes the program: MaxJobFilter instructions at most.
	JobFilter []byte
	// Overlay says that the root of jobs is an overlay above LowerDir.
	Overlay bool
	// Tree says that the last of the descriptors is a detached tree of mounts
	// (open_tree(2)), for OpTree.
	Tree bool
}

// Encode returns the message.
func (s *Setup) Encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, kindSetup)
	b = appendString(b, s.Base)
	b = appendString(b, s.Hostname)
	b = binary.LittleEndian.AppendUint32(b, s.JobUID)
	for _, flag := range []bool{s.Switch, s.Overlay, s.Tree, s.Into} {
		if flag {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.View)))
	for _, op := range s.View {
		b = binary.LittleEndian.AppendUint32(b, uint32(op.Kind))
		b = appendString(b, op.Path)
		b = appendString(b, op.Arg)
	}
	return appendString(appendString(b, string(s.Filter)), string(s.JobFilter))
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

func decodeSetup(b []byte) (s Setup, ok bool) {
	d := decoder{b: b}
	if d.uint32() != kindSetup {
		return s, false
	}
	s.Base, s.Hostname, s.JobUID = d.string(), d.string(), d.uint32()
	s.Switch, s.Overlay, s.Tree, s.Into = d.byte() == 1, d.byte() == 1, d.byte() == 1, d.byte() == 1
	n := int(d.uint32())
	for i := 0; i < n && !d.short; i++ {
		s.View = append(s.View, Op{OpKind(d.uint32()), d.string(), d.string()})
	}
	s.Filter, s.JobFilter = []byte(d.string()), []byte(d.string())
	return s, !d.short && len(d.b) == 0
}

// decoder takes values off b; short is set when there were too few bytes.
type decoder struct {
	b     []byte
	short bool
}

func (d *decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.short, d.b = true, nil
		return nil
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) uint32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (d *decoder) byte() byte {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (d *decoder) string() string { return string(d.take(int(d.uint32()))) }

// Rlimit is one resource limit (getrlimit(2)), soft and hard alike.
type Rlimit struct {
	Resource, Value uint64
}

// Job is what a stub needs. With it travel the job's standard input, output and
// error, in this order.
type Job struct {
	// Seq is given back in every Report about this job.
	Seq uint32
	// Candidates are the paths to try to execute, in order.
	Candidates []string
	Argv, Env  []string
	Cwd        string
	// Workspace, Tmp and Shm are mount options (tmpfs(5)).
	Workspace, Tmp, Shm string
	Rlimits             []Rlimit
	// Processes is the limit on processes through RLIMIT_NPROC; 0 means that
	// something else limits them.
	Processes uint64
}

// jobHeader is the fixed part of an encoded Job. Tables hold offsets from the
// beginning of the message, as 64-bit words that lease init turns into pointers
// in place, each table ended by a zero word. All of it is in the machine's own
// byte order: both ends are the same binary.
type jobHeader struct {
	kind, seq           uint32
	size                uint32
	argv, env           uint32
	candidates          uint32
	cwd                 uint32
	workspace, tmp, shm uint32
	rlimits, nrlimits   uint32
	processes           uint64
}

const headerSize = int(unsafe.Sizeof(jobHeader{}))

// Encode returns the encoded job: strings must have no NUL bytes. If it is longer
// than MaxInline, Enclose makes the message and the bytes go in a memory file,
// passed as fourth descriptor.
func (j *Job) Encode() []byte {
	h := jobHeader{kind: kindJob, seq: j.Seq, processes: j.Processes}
	words := len(j.Argv) + len(j.Env) + len(j.Candidates) + 3 + 2*len(j.Rlimits)
	size := headerSize + 8*words + 4
	for _, list := range [][]string{j.Argv, j.Env, j.Candidates, {j.Cwd, j.Workspace, j.Tmp, j.Shm}} {
		for _, s := range list {
			size += len(s) + 1
		}
	}
	b := make([]byte, headerSize+8*words, size)
	at := headerSize
	word := func(v uint64) {
		binary.NativeEndian.PutUint64(b[at:], v)
		at += 8
	}
	text := func(s string) uint32 {
		off := uint32(len(b))
		b = append(append(b, s...), 0)
		return off
	}
	table := func(list []string) uint32 {
		off := uint32(at)
		for _, s := range list {
			word(uint64(text(s)))
		}
		word(0)
		return off
	}
	h.argv, h.env, h.candidates = table(j.Argv), table(j.Env), table(j.Candidates)
	h.rlimits, h.nrlimits = uint32(at), uint32(len(j.Rlimits))
	for _, r := range j.Rlimits {
		word(r.Resource)
		word(r.Value)
	}
	h.cwd, h.workspace, h.tmp, h.shm = text(j.Cwd), text(j.Workspace), text(j.Tmp), text(j.Shm)
	h.size = uint32(len(b))
	*(*jobHeader)(unsafe.Pointer(&b[0])) = h
	return b
}

// Enclose makes the message that announces a job of size bytes in a memory file.
func Enclose(size int) []byte {
	b := binary.NativeEndian.AppendUint32(nil, kindJobFile)
	return binary.NativeEndian.AppendUint32(b, uint32(size))
}

// EncodeReset makes the message that takes the last job's workspace away.
func EncodeReset() []byte { return binary.NativeEndian.AppendUint32(nil, kindReset) }

// ReportKind is a kind of Report.
type ReportKind uint32

// The kinds of Report.
const (
	// Ready: the sandbox is built.
	Ready ReportKind = iota + 1
	// Fatal: lease init could not do Stage and ends. The report is followed by
	// what it was about.
	Fatal
	// Forked: the stub lives; its pidfd comes with the message.
	Forked
	// Refused: the job was not begun: Stage failed, nothing is left of it.
	Refused
	// Waiting: the stub is ready and waits at the gate.
	Waiting
	// Unready: the stub could not do Stage and ends.
	Unready
	// Leftover: the leader has ended while others of its tree live.
	Leftover
	// Reaped: the stub's end was seen and waited for.
	Reaped
	// WasReset: nothing of the last job is left in the lease.
	WasReset
	// NotReset: Stage failed.
	NotReset
)

// Report is what lease init and the stub say. Its fixed part is passed as it is
// in memory; after a Fatal it is followed by a text.
type Report struct {
	Kind ReportKind
	Seq  uint32
	// Stage and Errno say what failed.
	Stage Stage
	Errno int32
	// Candidate is the index of the path that StageExec is about.
	Candidate uint32
	// Started says that the program was executed.
	Started uint32
	// Ended says that the leader's end is known: Status (wait(2)) and what follows.
	Ended        uint32
	Status       int32
	HasLeftover  uint32
	StubStatus   int32
	UserMicros   int64
	SystemMicros int64
	MaxRSSKiB    int64
	// EndedAt is CLOCK_MONOTONIC in nanoseconds.
	EndedAt int64
}

// ReportSize is the size of a report's fixed part in bytes.
const ReportSize = int(unsafe.Sizeof(Report{}))

// DecodeReport reads a report and the text after it.
func DecodeReport(b []byte) (r Report, text string, ok bool) {
	if len(b) < ReportSize {
		return r, "", false
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&r)), ReportSize), b)
	return r, string(b[ReportSize:]), true
}

// Stage is a step that can fail.
type Stage uint32

// The stages.
const (
	StageNone Stage = iota
	StageProtocol
	StagePrivate
	StageRoot
	StageView
	StageDevice
	StageProc
	StagePivot
	StageUserNamespaces
	StageHostname
	StagePrivileges
	StageWorkspace
	StageMap
	StageFork
	StageCgroup
	StageMask
	StageTmp
	StageSession
	StageDescriptors
	StageOOMScore
	StageRlimit
	StageUser
	StageCapabilities
	StageSignals
	StageCwd
	StageFilter
	StageExec
	StageInterpreter
	StageProcesses
	StageUnmount
	StageSockets
	StageOverlay
)

func (s Stage) String() string {
	if int(s) < len(stageNames) && stageNames[s] != "" {
		return stageNames[s]
	}
	return "unknown stage"
}

var stageNames = [...]string{
	StageNone:           "nothing",
	StageProtocol:       "read the worker's message",
	StagePrivate:        "make mounts private",
	StageRoot:           "mount the root",
	StageView:           "make the view of the system",
	StageDevice:         "bind a device",
	StageProc:           "mount /proc",
	StagePivot:          "change the root",
	StageUserNamespaces: "forbid further user namespaces",
	StageHostname:       "set the host name",
	StagePrivileges:     "give up privileges",
	StageWorkspace:      "mount the workspace",
	StageMap:            "map the job",
	StageFork:           "fork",
	StageCgroup:         "join the control group",
	StageMask:           "mask /proc",
	StageTmp:            "mount /tmp and /dev/shm",
	StageSession:        "make a session",
	StageDescriptors:    "set descriptors",
	StageOOMScore:       "set oom_score_adj",
	StageRlimit:         "set resource limits",
	StageUser:           "change the user",
	StageCapabilities:   "drop capabilities",
	StageSignals:        "reset signals",
	StageCwd:            "change the directory",
	StageFilter:         "load the system-call filter",
	StageExec:           "execute",
	StageInterpreter:    "execute the interpreter",
	StageProcesses:      "see that no process is left",
	StageUnmount:        "unmount the workspace",
	StageSockets:        "see that no socket is left",
	StageOverlay:        "mount an overlay",
}
