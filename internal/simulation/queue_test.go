package simulation_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// ackWait is how long a worker may be silent about a message.
const ackWait = 20 * time.Second

// queue is the broker's jobs and run records in memory.
type queue struct {
	s *sim

	mu      sync.Mutex
	seq     uint64
	jobs    map[string]*job
	waiting []*job // in the order of their publishing, until they are acknowledged
	changed chan struct{}
}

// job is one job and all that became of it.
type job struct {
	wire.Job
	request *wire.Request
	seq     uint64
	due     time.Time // when it may be delivered (again)
	times   int
	acked   bool

	record *record
	opens  []string // the processes that opened a start gate for it
	finals map[string]int
}

// record is the run record.
type record struct {
	state   wire.RunState
	attempt int
	token   string
	worker  *process
	result  []byte
	lease   string
	seq     uint64
	at      time.Time
}

func newQueue(s *sim) *queue {
	return &queue{s: s, jobs: map[string]*job{}, changed: make(chan struct{})}
}

func (q *queue) ring() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// publish puts a job into the queue.
func (q *queue) publish(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq++
	j.seq, j.due, j.finals = q.seq, time.Now(), map[string]int{}
	q.jobs[j.ID] = j
	q.waiting = append(q.waiting, j)
	q.s.tell("publisher", "job %s of %s: %q, profile %q, %+v", j.ID, j.Tenant, j.request.Argv, j.request.Profile, j.request.Retry)
	q.ring()
}

// next delivers a message, or says when to look again.
func (q *queue) next() (j *job, times int, wait time.Duration, changed <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wait = time.Minute
	for _, j := range q.waiting {
		left := time.Until(j.due)
		if left <= 0 {
			j.times++
			j.due = time.Now().Add(ackWait)
			return j, j.times, 0, nil
		}
		wait = min(wait, left)
	}
	return nil, 0, wait, q.changed
}

// delay moves a message's next delivery.
func (q *queue) delay(j *job, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.due = time.Now().Add(d)
	q.ring()
}

// ack takes a message out of the queue, and checks that it may be; own says that
// the job ran where it is acknowledged.
func (q *queue) ack(j *job, own bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.acked {
		return
	}
	j.acked = true
	q.waiting = slices.DeleteFunc(q.waiting, func(other *job) bool { return other == j })
	if j.record == nil || j.record.state != wire.RunDone {
		q.s.breach("%s is acknowledged without a final record", j.ID)
		return
	}
	if j.finals[string(j.record.result)] == 0 {
		q.s.breach("%s is acknowledged, its result was not published", j.ID)
	}
	r, err := wire.DecodeResult(j.record.result)
	if err != nil {
		q.s.breach("the result of %s: %v", j.ID, err)
		return
	}
	q.s.tell("queue", "%s acknowledged: %s %s", j.ID, r.Outcome, r.Reason)
	q.s.count("outcome: " + string(r.Outcome))
	if own && r.Lease != nil && r.Lease.Disposition == wire.Quarantined {
		q.s.count("acknowledged with a lease in quarantine")
		q.s.truth.settled(j.ID, r.Lease)
	}
}

// get reads a run record; nil when there is none.
func (q *queue) get(j *job) *record {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.record == nil {
		return nil
	}
	rec := *j.record
	return &rec
}

// put writes a run record against a sequence.
func (q *queue) put(j *job, rec record, expect uint64) (uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var found uint64
	if j.record != nil {
		found = j.record.seq
	}
	if found != expect {
		return 0, fmt.Errorf("record of %s: %w", j.ID, bus.ErrConflict)
	}
	if j.record != nil && j.record.state == wire.RunDone {
		q.s.breach("the final decision about %s is written over", j.ID)
	}
	q.seq++
	rec.seq, rec.at = q.seq, time.Now()
	j.record = &rec
	return rec.seq, nil
}

// opened notes that a start gate is opened, and checks that it may be.
func (q *queue) opened(p *process, id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[id]
	if j == nil {
		q.s.breach("a gate is opened for %q, which is no job", id)
		return
	}
	if j.record == nil || j.record.state == wire.RunReleased {
		q.s.breach("%s starts %s without a claim", p.name, id)
	}
	j.opens = append(j.opens, p.name)
	if len(j.opens) > 1 && !j.request.Retry.IfLost || len(j.opens) > j.request.MaxAttempts() {
		q.s.breach("%s was started %d times: %v", id, len(j.opens), j.opens)
	}
}

// announce takes a published result.
func (q *queue) announce(j *job, result []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.finals[string(result)]++
	if len(j.finals) > 1 {
		q.s.breach("%s has %d different results", j.ID, len(j.finals))
	}
}

// open are the jobs that are not at their end.
func (q *queue) open() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var open []string
	for _, id := range slices.Sorted(maps.Keys(q.jobs)) {
		if j := q.jobs[id]; !j.acked {
			open = append(open, fmt.Sprintf("%s waits (%d deliveries, record %+v)", id, j.times, j.record))
		}
	}
	return open
}

// take waits for a message.
func (q *queue) take(ctx context.Context, p *process) (*job, int, error) {
	for {
		var (
			j       *job
			times   int
			wait    time.Duration
			changed <-chan struct{}
		)
		err := p.call(ctx, "pull", func() error {
			j, times, wait, changed = q.next()
			return nil
		})
		if err != nil || j != nil {
			return j, times, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
	}
}
