package createostest

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"path"
	"time"
)

// Op is a call of the API.
type Op string

// The calls. Other is everything else.
const (
	CreateSandbox Op = "create_sandbox"
	ListSandboxes Op = "list_sandboxes"
	GetSandbox    Op = "get_sandbox"
	PatchSandbox  Op = "patch_sandbox"
	DeleteSandbox Op = "delete_sandbox"
	PauseSandbox  Op = "pause_sandbox"
	ResumeSandbox Op = "resume_sandbox"
	PutFile       Op = "put_file"
	GetFile       Op = "get_file"
	Exec          Op = "exec"
	CreateProcess Op = "create_process"
	ListProcesses Op = "list_processes"
	GetProcess    Op = "get_process"
	Connect       Op = "connect"
	Input         Op = "input"
	CloseStdin    Op = "stdin_close"
	Resize        Op = "resize"
	Signal        Op = "signal"
	Wait          Op = "wait"
	DeleteProcess Op = "delete_process"
	Other         Op = "other"
)

// Rule says what happens to which calls.
type Rule struct {
	// Op is the call; empty means any.
	Op Op
	// Method of the request; empty means any.
	Method string
	// Path is a pattern of package path for the URL's path; empty means any.
	Path string
	// When, if not nil, must say yes, too. It is called with the server's lock held
	// and must not call the server.
	When func(Call) bool
	// Nth is the first matching call, counted from the rule's making, that the rule
	// fires on; 0 means 1.
	Nth int
	// Times is how many matching calls it fires on; 0 means 1, less than 0 all.
	Times int
	// Then is what happens, all of it.
	Then []Action
}

// rule is a Rule that is in force.
type rule struct {
	Rule
	seen, fired int
}

// fire says whether the rule fires on the call, which it counts.
func (r *rule) fire(c Call) bool {
	if r.Op != "" && r.Op != c.Op || r.Method != "" && r.Method != c.Method || r.When != nil && !r.When(c) {
		return false
	}
	if r.Path != "" {
		// A bad pattern was refused by Script.
		if ok, err := path.Match(r.Path, c.Path); err != nil || !ok {
			return false
		}
	}
	r.seen++
	if r.seen < max(r.Nth, 1) || r.Times >= 0 && r.fired >= max(r.Times, 1) {
		return false
	}
	r.fired++
	return true
}

// Action is one thing that happens to a call. The functions below make them.
type Action struct {
	kind   kind
	n      int64
	code   int
	text   string
	header http.Header
	d      time.Duration
	after  int
	// moment is what an action on a stream does between two frames, frame what it
	// does to the next data frame before that is sent. False ends the stream.
	moment func(*stream) bool
	frame  func(st *stream, view map[string]any) bool
}

// After lets an action on a stream wait until that many data frames were sent on
// the connection; without, it is 0.
func (a Action) After(frames int) Action {
	a.after = frames
	return a
}

type kind int

const (
	kindNone kind = iota
	kindStatus
	kindDelay
	kindHang
	kindCutBefore
	kindCutAfterCommit
	kindHangAfterCommit
	kindCommitThen
	kindCutBody
	kindCutWire
	kindSlowBody
	kindLieDeleted
	kindTreeExitedFalse
	kindMalformedID
	kindStream
	kindGap
	kindDuplicate
	kindEvict
	kindExitEarly
	kindNoExit
)

// Actions that answer instead of the API. The call is not processed.

// Status answers with a code and, as it is, a body. An empty body is the envelope
// that belongs to the code.
func Status(code int, body string) Action { return Action{kind: kindStatus, code: code, text: body} }

// RetryAfter answers with a code (429, 503) and a Retry-After header.
func RetryAfter(code int, d time.Duration) Action {
	return Action{kind: kindStatus, code: code, header: http.Header{"Retry-After": {retryAfter(d)}}}
}

// Redirect answers 307 and a Location.
func Redirect(url string) Action {
	return Action{kind: kindStatus, code: http.StatusTemporaryRedirect, header: http.Header{"Location": {url}}}
}

// RefuseDelete answers a DELETE with 409, as for a concurrent transition.
func RefuseDelete() Action { return Status(http.StatusConflict, "") }

// CutBefore resets the connection before the call is processed.
func CutBefore() Action { return Action{kind: kindCutBefore} }

// Hang never answers and does not process the call: it ends when the client goes
// away or the server closes.
func Hang() Action { return Action{kind: kindHang} }

// Actions on the way.

// Delay processes the call that much later, even if the client has gone by then.
func Delay(d time.Duration) Action { return Action{kind: kindDelay, d: d} }

// CutAfterCommit processes the call and resets the connection without an answer.
func CutAfterCommit() Action { return Action{kind: kindCutAfterCommit} }

// HangAfterCommit processes the call and never answers.
func HangAfterCommit() Action { return Action{kind: kindHangAfterCommit} }

// CommitThen processes the call and answers something else: 502, say, or a body
// that is no JSON. An empty body is the envelope that belongs to the code.
func CommitThen(code int, body string) Action {
	return Action{kind: kindCommitThen, code: code, text: body}
}

// CutBody resets the connection after n bytes of the answer's body.
func CutBody(n int) Action { return Action{kind: kindCutBody, n: int64(n)} }

// CutWire resets the connection after n bytes of the answer as it is on the wire,
// status line, header and chunk sizes included. Call.WireBytes says how many there
// were in an earlier run. If there are fewer, the connection is cut in a later answer.
// It needs a server that was started by Start.
func CutWire(n int64) Action { return Action{kind: kindCutWire, n: n} }

// SlowBody sends the answer's body no faster than that.
func SlowBody(bytesPerSecond int) Action { return Action{kind: kindSlowBody, n: int64(bytesPerSecond)} }

// LieDeleted answers a DELETE of a sandbox or a process as if it were done (status
// destroyed, tree_exited true) and does nothing.
func LieDeleted() Action { return Action{kind: kindLieDeleted} }

// TreeExitedFalse lets a DELETE or a GET of a process say tree_exited false,
// whatever is true. The record stays.
func TreeExitedFalse() Action { return Action{kind: kindTreeExitedFalse} }

// MalformedID creates the sandbox or process and answers with id instead of its
// own. Empty means "../escape".
func MalformedID(id string) Action {
	if id == "" {
		id = "../escape"
	}
	return Action{kind: kindMalformedID, text: id}
}

// Evict throws all output up to a sequence number out of the process's journal
// before the call is processed.
func Evict(upto int64) Action { return Action{kind: kindEvict, n: upto} }

// Actions on the stream of Connect. Those that have a place take After.

// HalfLine sends the first half of a frame and ends the stream in good order.
func HalfLine() Action {
	return Action{kind: kindStream, frame: func(st *stream, view map[string]any) bool {
		st.half(view)
		return false
	}}
}

// ResetMidLine sends the first half of a frame and resets the connection.
func ResetMidLine() Action {
	return Action{kind: kindStream, frame: func(st *stream, view map[string]any) bool {
		st.half(view)
		st.cutOff()
		return false
	}}
}

// EndStream ends the stream in good order, between two frames.
func EndStream() Action {
	return Action{kind: kindStream, moment: func(*stream) bool { return false }}
}

// Gap leaves the frame with that sequence number out.
func Gap(seq int64) Action { return Action{kind: kindGap, n: seq} }

// Duplicate replays from a sequence number, whatever the client asked for.
func Duplicate(from int64) Action {
	return Action{kind: kindDuplicate, n: from, moment: func(st *stream) bool {
		if st.sent > 0 { // else it had its moment when the stream was opened
			st.cursor = max(min(from-1, st.cursor), 0)
		}
		return true
	}}
}

// RestartCounters counts the sequence from 1 again.
func RestartCounters() Action {
	return Action{kind: kindStream, moment: func(st *stream) bool {
		st.shift = st.cursor
		return true
	}}
}

// ExitEarly sends the exit frame before the last data frame. It waits for the end
// of the process.
func ExitEarly() Action { return Action{kind: kindExitEarly} }

// NoExit ends the stream in good order instead of sending the exit frame.
func NoExit() Action { return Action{kind: kindNoExit} }

// Silent sends nothing for that long, heartbeats neither.
func Silent(d time.Duration) Action {
	return Action{kind: kindStream, moment: func(st *stream) bool { return st.silent(d) }}
}

// BadBase64 sends a data frame whose payload is not base64.
func BadBase64() Action {
	return Action{kind: kindStream, frame: func(_ *stream, view map[string]any) bool {
		view["data_base64"] = "!not-base64"
		return true
	}}
}

// BadJSON sends a line that is no JSON.
func BadJSON() Action { return Line(`{"type":"data","seq":`) }

// UnknownType sends a frame of a type that nobody knows.
func UnknownType() Action { return Line(`{"type":"surprise"}`) }

// Line sends a line as it is. A newline is added.
func Line(text string) Action {
	return Action{kind: kindStream, moment: func(st *stream) bool {
		st.text(text)
		return true
	}}
}

// ErrorFrame sends an error frame and ends the stream.
func ErrorFrame(code string) Action {
	return Action{kind: kindStream, moment: func(st *stream) bool {
		st.line(map[string]any{"type": "error", "error": code})
		return false
	}}
}

// BigFrame sends a valid data frame that is longer than 1 MiB.
func BigFrame() Action {
	return Action{kind: kindStream, frame: func(_ *stream, view map[string]any) bool {
		view["data_base64"] = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), bigFrame))
		return true
	}}
}

// effects are the actions that a call meets.
type effects []Action

func (fx effects) find(k kind) (Action, bool) {
	for _, a := range fx {
		if a.kind == k {
			return a, true
		}
	}
	return Action{}, false
}

func (fx effects) has(k kind) bool {
	_, ok := fx.find(k)
	return ok
}
