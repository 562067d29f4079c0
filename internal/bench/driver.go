package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

// target is a worker under measurement: where its jobs are published.
type target struct {
	name    string
	subject func(id string) string
}

// driver submits jobs and follows them to their results.
type driver struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	next atomic.Uint64
}

// cell is what was measured for one target, workload and concurrency.
type cell struct {
	latencies []time.Duration
	elapsed   time.Duration
	jobs      int
	bytes     int64
	cpu       time.Duration // of the whole machine
}

// jobTimeout bounds one job: far above what any of them takes.
const jobTimeout = time.Minute

// run keeps c jobs in flight until all of the workload's are done.
func (d *driver) run(ctx context.Context, t target, w workload, c int) (cell, error) {
	jobs := w.jobs(c)
	var left atomic.Int64
	left.Store(int64(jobs))
	out := cell{jobs: jobs}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	cpu, err := busy()
	if err != nil {
		return cell{}, err
	}
	began := time.Now()
	for range c {
		wg.Go(func() {
			latencies, bytes, err := d.client(ctx, t, w, &left)
			mu.Lock()
			defer mu.Unlock()
			out.latencies = append(out.latencies, latencies...)
			out.bytes += bytes
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	out.elapsed = time.Since(began)
	after, err := busy()
	out.cpu = after - cpu
	return out, errors.Join(failed, err)
}

// client runs jobs one after another.
func (d *driver) client(ctx context.Context, t target, w workload, left *atomic.Int64) (latencies []time.Duration, bytes int64, err error) {
	inbox := d.nc.NewInbox()
	sub, err := d.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, fmt.Errorf("subscribe: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, 0, errors.Join(err, sub.Unsubscribe())
	}
	for left.Add(-1) >= 0 {
		began := time.Now()
		n, err := d.job(ctx, t, w, inbox, sub)
		if err != nil {
			return nil, 0, errors.Join(err, sub.Unsubscribe())
		}
		latencies = append(latencies, time.Since(began))
		bytes += n
	}
	return latencies, bytes, sub.Unsubscribe()
}

// job submits one and waits for its result.
func (d *driver) job(ctx context.Context, t target, w workload, inbox string, sub *nats.Subscription) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	msg := nats.NewMsg(t.subject("b" + strconv.FormatUint(d.next.Add(1), 36)))
	msg.Header.Set(wire.HeaderReplyTo, inbox)
	msg.Data = w.body
	if _, err := d.js.PublishMsg(ctx, msg); err != nil {
		return 0, fmt.Errorf("%s %s: submit: %w", t.name, w.name, err)
	}
	var bytes int64
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return 0, fmt.Errorf("%s %s: next event: %w", t.name, w.name, err)
		}
		switch wire.EventType(m.Header.Get(wire.HeaderEvent)) {
		case wire.EventStdout:
			bytes += int64(len(m.Data))
		case wire.EventResult:
			return bytes, check(t, w, m, bytes)
		case wire.EventAccepted, wire.EventStarted, wire.EventStderr, wire.EventEnd:
		}
	}
}

// check refuses a measurement of jobs that did not do their work. Output of core
// NATS may be lost to a slow reader; that is a failed measurement too.
func check(t target, w workload, m *nats.Msg, bytes int64) error {
	if bytes != w.bytes {
		return fmt.Errorf("%s %s: %d bytes of output arrived, not %d", t.name, w.name, bytes, w.bytes)
	}
	if t.name == naiveName {
		if string(m.Data) != "0" {
			return fmt.Errorf("%s %s: exit code %s", t.name, w.name, m.Data)
		}
		return nil
	}
	r, err := wire.DecodeResult(m.Data)
	if err != nil {
		return fmt.Errorf("%s %s: %w", t.name, w.name, err)
	}
	if r.Outcome != wire.Exited || r.ExitCode == nil || *r.ExitCode != 0 || r.Containment == nil || r.Containment.Verdict != wire.Proven {
		return fmt.Errorf("%s %s: unexpected result %s", t.name, w.name, m.Data)
	}
	return nil
}
