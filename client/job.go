package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/wire"
)

// Job is a submitted job and the stream of its events. It is used by one
// goroutine at a time.
type Job struct {
	Tenant, Queue, ID string

	nc      *nats.Conn
	sub     *nats.Subscription
	attempt int
	seq     uint64
	lost    []wire.LostRange
	result  *Result
	// output says that the request sends the output here, so that a hole is a loss.
	output bool
	// early is an event that overtook the gateway's answer.
	early *nats.Msg
}

// accepted waits for the gateway's first answer. A worker that was fast may have
// overtaken it: its event says as much, and is kept for Next.
func (j *Job) accepted(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	msg, err := j.sub.NextMsgWithContext(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ErrMaybeAccepted
	case errors.Is(err, nats.ErrNoResponders):
		return ErrNoGateway
	case err != nil:
		return fmt.Errorf("wait for the gateway: %w", err)
	}
	ev, err := wire.ParseEvent(msg.Header, msg.Data)
	if err != nil {
		if failed := serviceError(msg); failed != nil {
			return failed
		}
		return fmt.Errorf("gateway's answer: %w", err)
	}
	switch ev.Type {
	case wire.EventAccepted:
		var a wire.Accepted
		if err := json.Unmarshal(ev.Data, &a); err != nil {
			return fmt.Errorf("gateway's answer: %w", err)
		}
		j.ID = a.ID
		return nil
	case wire.EventResult:
		r, err := wire.DecodeResult(ev.Data)
		if err != nil {
			return fmt.Errorf("gateway's answer: %w", err)
		}
		if serviceError(msg) != nil {
			return &RefusedError{Result: *r} // the gateway's own word, nothing was queued
		}
		j.ID, j.early = r.ID, msg
		return nil
	case wire.EventStarted, wire.EventStdout, wire.EventStderr:
		if id, ok := strings.CutPrefix(ev.Job, j.Tenant+"."); ok {
			j.ID, j.early = id, msg
			return nil
		}
	case wire.EventEnd:
	}
	return fmt.Errorf("gateway's answer: unexpected event %q", ev.Type)
}

// Next is the next event. Events of an older attempt than the newest seen are
// dropped, repeated ones too; a hole in the sequence is noted (see Lost). After
// the result's event it returns io.EOF.
func (j *Job) Next(ctx context.Context) (Event, error) {
	for j.result == nil {
		msg, err := j.nextMsg(ctx)
		if err != nil {
			return Event{}, fmt.Errorf("next event: %w", err)
		}
		ev, err := wire.ParseEvent(msg.Header, msg.Data)
		if err != nil {
			return Event{}, fmt.Errorf("next event: %w", err)
		}
		if ev.Type == wire.EventEnd {
			return Event{}, ErrCutOff
		}
		stale := ev.Attempt < j.attempt || (ev.Attempt == j.attempt && ev.Seq <= j.seq)
		if stale && ev.Type != wire.EventResult {
			continue
		}
		j.follow(ev)
		if ev.Type == wire.EventResult {
			if j.result, err = wire.DecodeResult(ev.Data); err != nil {
				return Event{}, fmt.Errorf("result: %w", err)
			}
		}
		return ev, nil
	}
	return Event{}, io.EOF
}

func (j *Job) nextMsg(ctx context.Context) (*nats.Msg, error) {
	if msg := j.early; msg != nil {
		j.early = nil
		return msg, nil
	}
	return j.sub.NextMsgWithContext(ctx)
}

// follow notes holes in the sequence.
func (j *Job) follow(ev Event) {
	if ev.Attempt > j.attempt {
		j.attempt, j.seq, j.lost = ev.Attempt, 0, nil
	}
	if ev.Seq > j.seq+1 && j.output {
		j.lost = append(j.lost, wire.LostRange{From: j.seq + 1, To: ev.Seq - 1})
	}
	j.seq = max(j.seq, ev.Seq)
}

// Lost are the ranges of sequence numbers of the newest attempt that did not
// arrive here though the request's output mode sends them here.
func (j *Job) Lost() []wire.LostRange { return j.lost }

// Copy writes the output as it comes and returns the result. Either writer may
// be nil. Bytes are passed on as they are.
func (j *Job) Copy(ctx context.Context, stdout, stderr io.Writer) (*Result, error) {
	for {
		ev, err := j.Next(ctx)
		if errors.Is(err, io.EOF) {
			return j.result, nil
		}
		if err != nil {
			return nil, err
		}
		var w io.Writer
		switch ev.Type {
		case wire.EventStdout:
			w = stdout
		case wire.EventStderr:
			w = stderr
		case wire.EventAccepted, wire.EventStarted, wire.EventResult, wire.EventEnd:
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(ev.Data); err != nil {
			return nil, fmt.Errorf("write the job's output: %w", err)
		}
	}
}

// Close ends the following of the job; the job itself goes on.
func (j *Job) Close() error {
	if err := j.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}
