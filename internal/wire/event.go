package wire

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
