package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

// The headers that decide a write.
const (
	headerExpectSubjectSeq = "Nats-Expected-Last-Subject-Sequence"
	headerExpectStream     = "Nats-Expected-Stream"
	headerTTL              = "Nats-TTL"
)

// headerRoom is what a record's own headers need at most, within the maximum
// payload, which counts headers too.
const headerRoom = 512

// retryPause separates two tries at the same request: long enough for a leader
// election to move on, short against the ack wait.
const retryPause = 100 * time.Millisecond

// leaderTries and leaderPause span the time that a stream may be without leader
// (nats.go's own publish waits as long).
const (
	leaderTries = 3
	leaderPause = 250 * time.Millisecond
)

// message is one message as it is stored.
type message struct {
	Subject string
	Seq     uint64
	Time    time.Time
	Header  nats.Header
	Data    []byte
}

// request asks the JetStream API. The answer's own error is returned as a
// *jetstream.APIError.
func (b *Bus) request(ctx context.Context, endpoint string, body, answer any) error {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return fmt.Errorf("%s: %w", endpoint, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	msg, err := b.control.RequestWithContext(ctx, b.api+"."+endpoint, payload)
	if err != nil {
		return fmt.Errorf("%s: %w", endpoint, err)
	}
	// Most answers have none: do not decode a megabyte twice.
	if bytes.Contains(msg.Data, []byte(`"error"`)) {
		var head struct {
			Error *jetstream.APIError `json:"error"`
		}
		if err := json.Unmarshal(msg.Data, &head); err != nil {
			return fmt.Errorf("%s: answer: %w", endpoint, err)
		}
		if head.Error != nil {
			return fmt.Errorf("%s: %w", endpoint, head.Error)
		}
	}
	if err := json.Unmarshal(msg.Data, answer); err != nil {
		return fmt.Errorf("%s: answer: %w", endpoint, err)
	}
	return nil
}

// leaderGet reads one message from the stream's leader: the last one on subject,
// or the first one that matches it. ErrNoRecord when there is none.
func (b *Bus) leaderGet(ctx context.Context, stream string, q getQuery) (*message, error) {
	var answer struct {
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := b.request(ctx, "STREAM.MSG.GET."+stream, q, &answer); err != nil {
		if hasCode(err, codeNotFound) {
			return nil, ErrNoRecord
		}
		return nil, err
	}
	m := answer.Message
	out := &message{Subject: m.Subject, Seq: m.Seq, Time: m.Time, Data: m.Data}
	if len(m.Header) > 0 {
		header, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return nil, fmt.Errorf("headers of %s sequence %d: %w", stream, m.Seq, err)
		}
		out.Header = header
	}
	return out, nil
}

// getQuery is the body of STREAM.MSG.GET.
type getQuery struct {
	Seq  uint64 `json:"seq,omitempty"`
	Last string `json:"last_by_subj,omitempty"`
	Next string `json:"next_by_subj,omitempty"`
}

// write is one acknowledged write.
type write struct {
	subject string
	stream  string
	header  nats.Header
	data    []byte
	// expect is the expected last sequence of the subject; nil for none.
	expect *uint64
	ttl    time.Duration
}

// publish sends w as a request and reads the answer. Errors: ErrConflict for a
// surely lost compare-and-set, errInFlight for one that may be decided by a
// write in flight, ErrRecordTooBig, ErrStreamFull, ErrNoStream, ErrUnknown when
// no answer came, and errNotSent when it surely did not leave.
func (b *Bus) publish(ctx context.Context, w write) (uint64, error) {
	msg, err := b.message(w)
	if err != nil {
		return 0, err
	}
	answer, err := b.ask(ctx, msg)
	if err != nil {
		return 0, publishError(w, err)
	}
	var ack struct {
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
		Error  *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("%s: %w: answer: %w", w.subject, ErrUnknown, err)
	}
	if ack.Error != nil {
		return 0, refusal(w, ack.Error)
	}
	if ack.Stream != w.stream || ack.Seq == 0 {
		return 0, fmt.Errorf("%s: %w: answered by stream %q, not %s", w.subject, ErrUnknown, ack.Stream, w.stream)
	}
	return ack.Seq, nil
}

// message is w as it is sent, or says why it can surely not be written.
func (b *Bus) message(w write) (*nats.Msg, error) {
	if w.subject == "" {
		return nil, fmt.Errorf("stream %s: a word of the subject is no valid token", w.stream)
	}
	if int64(len(w.data)+headerRoom) > b.control.MaxPayload() {
		return nil, fmt.Errorf("%w: %d bytes, the server takes %d with headers", ErrRecordTooBig, len(w.data), b.control.MaxPayload())
	}
	msg := &nats.Msg{Subject: w.subject, Data: w.data, Header: nats.Header{}}
	maps.Copy(msg.Header, w.header)
	msg.Header[headerExpectStream] = []string{w.stream}
	if w.expect != nil {
		msg.Header[headerExpectSubjectSeq] = []string{strconv.FormatUint(*w.expect, 10)}
	}
	if w.ttl > 0 {
		msg.Header[headerTTL] = []string{w.ttl.Truncate(time.Second).String()}
	}
	return msg, nil
}

// ask sends a message and waits for the stream's answer. Between two leaders
// nobody takes a subject for a moment, and nothing is written: it asks again.
func (b *Bus) ask(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	for try := 1; ; try++ {
		once, cancel := context.WithTimeout(ctx, b.timeout)
		answer, err := b.control.RequestMsgWithContext(once, msg)
		cancel()
		if !errors.Is(err, nats.ErrNoResponders) || try == leaderTries || pause(ctx, leaderPause) != nil {
			return answer, err
		}
	}
}

var (
	// errInFlight: the compare-and-set met a write that is not decided yet.
	errInFlight = errors.New("another write is in flight")
	// errNotSent: the message surely did not get into a stream, for a reason that
	// passes.
	errNotSent = errors.New("not written for now")
)

func publishError(w write, err error) error {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%s: %w", w.subject, ErrNoStream)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%s: %w", w.subject, ErrRecordTooBig)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%s: %w: %w", w.subject, errNotSent, offline(err))
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrHeadersNotSupported):
		return fmt.Errorf("%s: %w", w.subject, err)
	default:
		return fmt.Errorf("%s: %w: %w", w.subject, ErrUnknown, err)
	}
}

// refusal turns the server's refusal of a publish into ours. A refusal was
// decided: nothing was written, except where it says "in flight".
func refusal(w write, apiErr *jetstream.APIError) error {
	switch int(apiErr.ErrorCode) {
	case codeWrongLastSeq:
		return fmt.Errorf("%s: %w: %w", w.subject, ErrConflict, apiErr)
	case codeWrongLastSeqConst:
		return fmt.Errorf("%s: %w: %w", w.subject, errInFlight, apiErr)
	case codeMessageTooBig, codeHeaderTooBig:
		return fmt.Errorf("%s: %w: %w", w.subject, ErrRecordTooBig, apiErr)
	case codeStoreFailed, codeStorageExceeded, codeInsufficient:
		return fmt.Errorf("%s: %w: %w", w.subject, ErrStreamFull, apiErr)
	case codeClusterNotAvail, codeBatchIncomplete, codeBatchesInFlight:
		return fmt.Errorf("%s: %w: %w", w.subject, errNotSent, apiErr)
	case codeNoBatches:
		return fmt.Errorf("%s: %w: %w", w.subject, ErrNoBatch, apiErr)
	default:
		return fmt.Errorf("%s: %w", w.subject, apiErr)
	}
}

// cas writes w against its expected sequence and stays with it until the outcome
// is known or ctx ends (then ErrUnknown, or errNotSent's error when nothing ever
// left). ours tells whether a record that stands there is the one that we wrote.
func (b *Bus) cas(ctx context.Context, w write, ours func(*message) bool) (uint64, error) {
	var doubt bool
	for {
		seq, err := b.publish(ctx, w)
		if err == nil {
			return seq, nil
		}
		conflict := errors.Is(err, ErrConflict) || errors.Is(err, errInFlight)
		unknown := errors.Is(err, ErrUnknown)
		doubt = doubt || unknown
		retry := unknown || conflict || errors.Is(err, errNotSent) || doubt && errors.Is(err, ErrNoStream)
		if !retry {
			return 0, err
		}
		if conflict || unknown {
			found, getErr := b.leaderGet(ctx, w.stream, getQuery{Last: w.subject})
			switch {
			case getErr == nil && found.Seq != *w.expect && ours(found):
				return found.Seq, nil
			case getErr == nil && found.Seq != *w.expect:
				return 0, fmt.Errorf("%s: %w (sequence %d, expected %d)", w.subject, ErrConflict, found.Seq, *w.expect)
			case errors.Is(getErr, ErrNoRecord) && *w.expect != 0:
				// The record that we would replace is gone, with its time to live.
				return 0, fmt.Errorf("%s: %w (no record, expected sequence %d)", w.subject, ErrConflict, *w.expect)
			}
			// The old record still stands, or the leader did not answer. The same
			// bytes against the same sequence can win at most once: try again.
		}
		waitErr := pause(ctx, retryPause)
		if waitErr == nil && b.control.IsClosed() { // it does not come back
			waitErr = nats.ErrConnectionClosed
		}
		if waitErr != nil {
			if doubt || conflict {
				return 0, fmt.Errorf("%s: %w: %w", w.subject, ErrUnknown, waitErr)
			}
			return 0, err
		}
	}
}

// pause waits d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// streamInfo is what we read of STREAM.INFO.
type streamInfo struct {
	Config jetstream.StreamConfig `json:"config"`
	State  struct {
		Msgs     uint64            `json:"messages"`
		Bytes    uint64            `json:"bytes"`
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
	// Time is the leader's clock.
	Time   time.Time `json:"ts"`
	Total  int       `json:"total"`
	Limit  int       `json:"limit"`
	Offset int       `json:"offset"`
}

func (b *Bus) streamInfo(ctx context.Context, stream string) (*streamInfo, error) {
	info := &streamInfo{}
	if err := b.request(ctx, "STREAM.INFO."+stream, nil, info); err != nil {
		return nil, err
	}
	return info, nil
}

// subjectList lists the subjects of stream that match filter, at most limit of those
// that but (may be nil) does not leave out.
func (b *Bus) subjectList(ctx context.Context, stream, filter string, but func(string) bool, limit int) (subjects []string, truncated bool, err error) {
	offset := 0
	for {
		info := &streamInfo{}
		query := struct {
			Filter string `json:"subjects_filter"`
			Offset int    `json:"offset"`
		}{filter, offset}
		if err := b.request(ctx, "STREAM.INFO."+stream, query, info); err != nil {
			return nil, false, err
		}
		for s := range info.State.Subjects {
			if but != nil && but(s) {
				continue
			}
			if len(subjects) == limit {
				return subjects, true, nil
			}
			subjects = append(subjects, s)
		}
		offset += len(info.State.Subjects)
		if len(info.State.Subjects) == 0 || offset >= info.Total {
			return subjects, false, nil
		}
	}
}

// ServerTime is the clock of the run stream's leader, the one that also stamps
// the records: a record's age is the difference of the two.
func (b *Bus) ServerTime(ctx context.Context) (time.Time, error) {
	info, err := b.streamInfo(ctx, b.streams.Runs)
	if err != nil {
		return time.Time{}, err
	}
	if info.Time.IsZero() {
		return time.Time{}, fmt.Errorf("stream %s: the answer has no time", b.streams.Runs)
	}
	return info.Time, nil
}

func hasCode(err error, codes ...int) bool {
	var apiErr *jetstream.APIError
	if !errors.As(err, &apiErr) {
		return false
	}
	return slices.Contains(codes, int(apiErr.ErrorCode))
}

// cleanHeader copies headers without those that the server acts on.
// nats.go writes names and values as they are: a line break in one would start
// a header of its own.
func cleanHeader(in map[string][]string) nats.Header {
	oneLine := strings.NewReplacer("\r", " ", "\n", " ")
	out := nats.Header{}
	for name, values := range in {
		if name == "" || wire.ReservedHeader(name) || strings.ContainsAny(name, "\r\n\t: ") {
			continue
		}
		for _, v := range values {
			out[name] = append(out[name], oneLine.Replace(v))
		}
	}
	return out
}
