package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/wire"
)

// QueuedMessage is a message that waits in the jobs stream, or is being worked
// on: a work queue keeps it until it is acknowledged.
type QueuedMessage struct {
	Job wire.Job
	// Seq is the message's sequence in the jobs stream.
	Seq     uint64
	Time    time.Time
	Headers map[string][]string
	Body    []byte
}

// Enqueue puts a job into its queue, acknowledged. Headers that the server acts
// on (wire.ReservedHeader) are left out. Errors: ErrAlreadyQueued, ErrQueueFull,
// ErrRecordTooBig, ErrNoStream, and ErrUnknown when the answer was lost: sending
// the same job again is then safe, as the run record fences it.
func (b *Bus) Enqueue(ctx context.Context, job wire.Job, body []byte, headers map[string][]string) error {
	w := write{
		subject: b.subjects.Job(job), stream: b.streams.Jobs, data: body,
		header: cleanHeader(headers),
	}
	_, err := b.publish(ctx, w)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrStreamFull):
		return b.whyRefused(ctx, job, err)
	case errors.Is(err, ErrUnknown):
		return b.resolveEnqueue(ctx, w, err)
	default:
		return err
	}
}

// resolveEnqueue looks whether a message whose answer was lost is there. Where it
// is not, it may also have been taken already, so the doubt stays.
func (b *Bus) resolveEnqueue(ctx context.Context, w write, lost error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*b.timeout)
	defer cancel()
	for {
		found, err := b.leaderGet(ctx, b.streams.Jobs, getQuery{Last: w.subject})
		switch {
		case err == nil && bytes.Equal(found.Data, w.data):
			return nil
		case err == nil:
			return fmt.Errorf("%s: %w", w.subject, ErrAlreadyQueued)
		case errors.Is(err, ErrNoRecord):
			return lost
		}
		if pause(ctx, retryPause) != nil {
			return lost
		}
	}
}

// whyRefused tells the two refusals apart that share one code: this subject has
// its message, or the stream is at its bound.
func (b *Bus) whyRefused(ctx context.Context, job wire.Job, refused error) error {
	_, err := b.leaderGet(ctx, b.streams.Jobs, getQuery{Last: b.subjects.Job(job)})
	switch {
	case err == nil:
		return fmt.Errorf("job %s in queue %s: %w", job.Key(), job.Queue, ErrAlreadyQueued)
	case errors.Is(err, ErrNoRecord):
		return fmt.Errorf("queue %s: %w: %w", job.Queue, ErrQueueFull, refused)
	default:
		return fmt.Errorf("job %s: refused (%w) and the queue cannot be read: %w", job.Key(), refused, err)
	}
}

// QueuedMessage reads the message of a job whose queue need not be known, from
// the leader; of several queues, the one that was queued first. ErrNotQueued
// when there is none.
func (b *Bus) QueuedMessage(ctx context.Context, tenant, id string) (*QueuedMessage, error) {
	subject := b.subjects.QueuedJob(tenant, id)
	if subject == "" || tenant == "*" || id == "*" {
		return nil, fmt.Errorf("job %q.%q: not a valid token", tenant, id)
	}
	m, err := b.leaderGet(ctx, b.streams.Jobs, getQuery{Seq: 1, Next: subject})
	if errors.Is(err, ErrNoRecord) {
		return nil, fmt.Errorf("job %s.%s: %w", tenant, id, ErrNotQueued)
	}
	if err != nil {
		return nil, err
	}
	job, err := b.subjects.ParseJob(m.Subject)
	if err != nil {
		return nil, err
	}
	return &QueuedMessage{Job: job, Seq: m.Seq, Time: m.Time, Headers: m.Header, Body: m.Data}, nil
}
