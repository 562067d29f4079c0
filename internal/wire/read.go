package wire

// The exec.read endpoint: the request's body is a ReadRequest; the answer is a
// series of messages, first the stored events as they stand in the stream, each
// with its cursor in HeaderCursor, then one empty message that ends the batch.

// The headers of the read endpoint's answers.
const (
	// HeaderCursor is an event's stream sequence; in the ending message it is the
	// cursor to go on from.
	HeaderCursor = "Exec-Cursor"
	// HeaderState is the job's JobState; in the ending message only.
	HeaderState = "Exec-State"
	// HeaderMore is "true" in the ending message when more is stored already.
	HeaderMore = "Exec-More"
)

// ReadRequest asks for stored events.
type ReadRequest struct {
	// From is the cursor after which to read; 0 reads from the first event that
	// is still stored.
	From uint64 `json:"from,omitempty"`
	// Max is the most events to return, 1 to MaxReadBatch; absent means
	// MaxReadBatch.
	Max int `json:"max,omitempty"`
}

// MaxReadBatch is the most events in one answer of the read endpoint: with
// chunks of at most 256 KiB it is 16 MiB.
const MaxReadBatch = 64

// JobState is where a job stands, for the answers of the gateway.
type JobState string

// The job states.
const (
	JobQueued     JobState = "queued"
	JobRunning    JobState = "running"
	JobCancelling JobState = "cancelling"
	JobCancelled  JobState = "cancelled"
	JobDone       JobState = "done"
	JobUnknown    JobState = "unknown"
)

// JobStatus is the gateway's answer to status and cancel.
type JobStatus struct {
	State   JobState `json:"state"`
	Tenant  string   `json:"tenant"`
	ID      string   `json:"id"`
	Queue   string   `json:"queue,omitempty"`
	Attempt int      `json:"attempt,omitempty"`
	Worker  string   `json:"worker,omitempty"`
	Lease   string   `json:"lease,omitempty"`
	// Result is the final decision's document, once there is one.
	Result RawJSON `json:"result,omitempty"`
}

// RawJSON is JSON that is passed on as it stands.
type RawJSON []byte

// MarshalJSON implements json.Marshaler.
func (r RawJSON) MarshalJSON() ([]byte, error) {
	if len(r) == 0 {
		return []byte("null"), nil
	}
	return r, nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *RawJSON) UnmarshalJSON(b []byte) error {
	*r = append((*r)[:0], b...)
	return nil
}
