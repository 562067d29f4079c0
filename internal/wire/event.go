package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// The headers of a request and of an event.
const (
	HeaderReplyTo = "Exec-Reply-To"
	HeaderID      = "Exec-Id"
	HeaderEvent   = "Exec-Event"
	HeaderJob     = "Exec-Job"
	HeaderAttempt = "Exec-Attempt"
	HeaderSeq     = "Exec-Seq"
	HeaderOffset  = "Exec-Offset"
)

// EventType is the kind of an event.
type EventType string

// The events, in the order in which a reader sees them.
const (
	EventAccepted EventType = "accepted" // by the gateway, without attempt and seq
	EventStarted  EventType = "started"
	EventStdout   EventType = "stdout"
	EventStderr   EventType = "stderr"
	EventResult   EventType = "result"
	EventEnd      EventType = "end" // empty, on a reply subject only
)

// Event is one message of a job's output. Its data travels as raw bytes, the
// rest in headers.
type Event struct {
	Type    EventType
	Job     string // "<tenant>.<id>"
	Attempt int
	// Seq counts from 1 in each attempt, +1 over all its events, both streams.
	Seq uint64
	// Offset is the byte offset of Data within its stream.
	Offset int64
	Data   []byte
}

// EventHeaderBytes is an upper bound of what Headers takes on the wire: the
// status line, a name, ": ", a value and CRLF for each header, and a blank line.
// The longest values are a tenant and an id of MaxTokenBytes each and numbers of
// 19 or 20 digits; a test holds the sum below this.
const EventHeaderBytes = 320

// Headers are the headers of e, for core NATS and for the stored output alike.
// Values consist of the closed set of event names, tokens and digits; an event
// whose type or job is anything else gets no header for it, which every reader
// refuses. Attempt and Seq are left out when they are not positive (an accepted
// event has neither), Offset where the event carries no output.
func (e Event) Headers() map[string][]string {
	headers := make(map[string][]string, 5)
	if e.Type.Valid() {
		headers[HeaderEvent] = []string{string(e.Type)}
	}
	if validKey(e.Job) {
		headers[HeaderJob] = []string{e.Job}
	}
	if e.Attempt > 0 {
		headers[HeaderAttempt] = []string{strconv.Itoa(e.Attempt)}
	}
	if e.Seq > 0 {
		headers[HeaderSeq] = []string{strconv.FormatUint(e.Seq, 10)}
	}
	if e.Type.Output() && e.Offset >= 0 {
		headers[HeaderOffset] = []string{strconv.FormatInt(e.Offset, 10)}
	}
	return headers
}

// ParseEvent reads the headers of a message as an event that carries data. Other
// headers than ours are ignored; one of ours that is missing, repeated or not in
// its canonical form is an error, because a guess would hide a gap.
func ParseEvent(headers map[string][]string, data []byte) (Event, error) {
	e := Event{Data: data}
	kind, err := one(headers, HeaderEvent)
	if err != nil {
		return Event{}, err
	}
	if e.Type = EventType(kind); !e.Type.Valid() {
		return Event{}, fmt.Errorf("header %s: %s is no event", HeaderEvent, quoted(kind))
	}
	if e.Job, err = one(headers, HeaderJob); err != nil {
		return Event{}, err
	}
	attempt, err := number(headers, HeaderAttempt, 1<<31-1)
	if err != nil {
		return Event{}, err
	}
	e.Attempt = int(attempt)
	if e.Seq, err = number(headers, HeaderSeq, 1<<64-1); err != nil {
		return Event{}, err
	}
	offset, err := number(headers, HeaderOffset, 1<<63-1)
	if err != nil {
		return Event{}, err
	}
	e.Offset = int64(offset)
	if err := e.check(headers); err != nil {
		return Event{}, err
	}
	return e, nil
}

// check holds the rules for which event has which headers.
func (e Event) check(headers map[string][]string) error {
	// A refusal by the gateway may have no job: its subject named none.
	nameless := e.Job == "" && (e.Type == EventResult || e.Type == EventEnd)
	if !nameless && !validKey(e.Job) {
		return fmt.Errorf("header %s: must be <tenant>.<id>, not %s", HeaderJob, quoted(e.Job))
	}
	if numbered := e.Type.Output() || e.Type == EventStarted; numbered && (e.Attempt == 0 || e.Seq == 0) {
		return fmt.Errorf("event %s: must have %s and %s", e.Type, HeaderAttempt, HeaderSeq)
	}
	if e.Type == EventAccepted && (e.Attempt != 0 || e.Seq != 0) {
		return fmt.Errorf("event %s: must have neither %s nor %s", e.Type, HeaderAttempt, HeaderSeq)
	}
	if _, has := headers[HeaderOffset]; has != e.Type.Output() {
		return fmt.Errorf("event %s: header %s belongs to stdout and stderr, and to them always", e.Type, HeaderOffset)
	}
	return nil
}

// Valid says whether t is one of the events.
func (t EventType) Valid() bool {
	switch t {
	case EventAccepted, EventStarted, EventStdout, EventStderr, EventResult, EventEnd:
		return true
	}
	return false
}

// Output says whether t carries output of the program.
func (t EventType) Output() bool { return t == EventStdout || t == EventStderr }

// ParseKey reads a Job.Key.
func ParseKey(key string) (tenant, id string, err error) {
	tenant, id, _ = strings.Cut(key, ".")
	if !ValidToken(tenant) || !ValidToken(id) {
		return "", "", fmt.Errorf("job key %s: must be <tenant>.<id>", quoted(key))
	}
	return tenant, id, nil
}

func validKey(key string) bool {
	_, _, err := ParseKey(key)
	return err == nil
}

// one is the only value of a header, "" when there is none.
func one(headers map[string][]string, name string) (string, error) {
	values := headers[name]
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", fmt.Errorf("header %s: stands %d times", name, len(values))
}

// number is the value of a numeric header, 0 when there is none.
func number(headers map[string][]string, name string, limit uint64) (uint64, error) {
	text, err := one(headers, name)
	if err != nil || len(headers[name]) == 0 {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > limit || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("header %s: must be a whole number up to %d, not %s", name, limit, quoted(text))
	}
	return n, nil
}

// Started is the body of a started event.
type Started struct {
	V       int    `json:"v"`
	Attempt int    `json:"attempt"`
	Worker  string `json:"worker"`
	Lease   string `json:"lease"`
}

// Accepted is the body of an accepted event.
type Accepted struct {
	V      int    `json:"v"`
	Tenant string `json:"tenant"`
	Queue  string `json:"queue"`
	ID     string `json:"id"`
}
