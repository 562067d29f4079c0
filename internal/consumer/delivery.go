package consumer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

// delivery is one message that is worked on here. What stands above the mutex
// does not change after it was read.
type delivery struct {
	c   *Consumer
	msg *nats.Msg
	job wire.Job
	// key is the job's key, or the subject where that names no job.
	key       string
	seq       uint64 // in the jobs stream
	delivered uint64
	stored    time.Time // by the server's clock
	queued    time.Duration
	ackWait   time.Duration
	// reply is where the publisher wants to be answered, checked; empty for
	// nowhere.
	reply string
	mode  wire.OutputMode
	trace string
	// request is nil exactly when invalid is not.
	request *wire.Request
	invalid *wire.Invalid
	digest  string

	// ctx is the attempt's: whoever ends a run cancels it with a cause.
	ctx    context.Context //nolint:containedctx // it is the handle by which others end this job
	cancel context.CancelCauseFunc
	// hurry ends when the attempt has no time for a grace period any more.
	hurry  context.Context //nolint:containedctx // see above
	hasten context.CancelFunc
	// live ends when the delivery does, and with it the beats.
	live     context.Context //nolint:containedctx // see above
	stopBeat context.CancelFunc
	beats    sync.WaitGroup

	mu      sync.Mutex
	claim   *claim // of the attempt that runs
	beatAt  time.Time
	beating bool
	ended   bool
}

// read takes a message apart. It never fails: what is wrong stands in invalid.
func (c *Consumer) read(work context.Context, queue string, m *nats.Msg, md *nats.MsgMetadata) *delivery {
	d := &delivery{
		c: c, msg: m, key: m.Subject, seq: md.Sequence.Stream, delivered: md.NumDelivered, stored: md.Timestamp,
		queued: c.broker.age(md.Timestamp), ackWait: c.broker.wait(queue), mode: wire.OutputStored,
	}
	d.beatAt = time.Now().Add(d.ackWait / beatsPerWait)
	d.ctx, d.cancel = context.WithCancelCause(work)
	d.hurry, d.hasten = context.WithCancel(work)
	d.live, d.stopBeat = context.WithCancel(work)
	job, err := c.bus.Subjects().ParseJob(m.Subject)
	if err != nil {
		d.job = nearestJob(c.bus.Subjects(), m.Subject)
		d.invalid = &wire.Invalid{Reason: wire.ReasonSubject, Message: wire.Message("%v", err)}
		return d
	}
	d.job, d.key = job, job.Key()
	d.trace = traceparent(m.Header)
	d.digest = digest(job.Queue, m.Data)
	if d.reply, d.invalid = c.replySubject(job.Tenant, m.Header); d.invalid != nil {
		d.reply = ""
		return d
	}
	d.request, d.invalid = wire.DecodeRequest(m.Data)
	if d.invalid == nil {
		d.mode = d.request.Mode(d.reply != "")
		if d.invalid = c.handler.Check(d.request); d.invalid != nil {
			d.request = nil
		}
		return d
	}
	if d.reply != "" {
		d.mode = wire.OutputReply
	}
	return d
}

// replySubject is the reply subject that the request asks for, if it may.
func (c *Consumer) replySubject(tenant string, header nats.Header) (string, *wire.Invalid) {
	reply, bad := wire.ReplyHeader(header)
	if bad != nil || reply == "" {
		return "", bad
	}
	return reply, c.cfg.Replies.Check(tenant, reply)
}

// digest tells requests apart, those that are not JSON too.
func digest(queue string, body []byte) string {
	if d, err := wire.Digest(queue, body); err == nil {
		return d
	}
	sum := sha256.Sum256(append([]byte(queue+"\nnot JSON\n"), body...))
	return hex.EncodeToString(sum[:])
}

// nearestJob names a message whose subject names no job, for the dead letters.
func nearestJob(subjects wire.Subjects, subject string) wire.Job {
	words := strings.Split(strings.TrimPrefix(subject, subjects.Prefix()+".job."), ".")
	for len(words) < 3 {
		words = append(words, subject)
	}
	return wire.Job{Tenant: wire.Token(words[0]), Queue: wire.Token(words[1]), ID: wire.Token(strings.Join(words[2:], "."))}
}

// traceparent is the W3C trace context header when it looks like one.
func traceparent(header nats.Header) string {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	for _, name := range []string{"traceparent", "Traceparent"} {
		if v := header[name]; len(v) == 1 && len(v[0]) == length && strings.Trim(v[0], "0123456789abcdef-") == "" {
			return v[0]
		}
	}
	return ""
}

// named says whether the subject names a job.
func (d *delivery) named() bool {
	return d.invalid == nil || d.invalid.Reason != wire.ReasonSubject
}

// future says whether the request is of a version that this build does not
// speak, so that a newer worker may.
func (d *delivery) future() bool {
	return d.invalid != nil && d.invalid.Reason == wire.ReasonVersion
}

// attach makes cl the claim that beats renew.
func (d *delivery) attach(cl *claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.claim = cl
}

func (d *delivery) current() *claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claim
}

// endUnclaimed ends the attempt unless its claim is on its way already.
func (d *delivery) endUnclaimed() {
	if cl := d.current(); cl == nil || cl.forbid() {
		d.cut(run.ErrShutdown)
	}
}

// cut ends the attempt for a cause that leaves it no more than the time for a
// kill, whatever it was ended for before.
func (d *delivery) cut(cause error) {
	d.cancel(cause)
	d.hasten()
}

// end stops the beats.
func (d *delivery) end() {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.cancel(nil)
	d.hasten()
	d.stopBeat()
	d.beats.Wait()
}

// The acknowledgements of JetStream.
const (
	ackDone     = "+ACK"
	ackProgress = "+WPI"
	ackBack     = "-NAK"
)

// ask sends one acknowledgement as a request: the answer proves that the
// consumer's leader took it.
func (d *delivery) ask(ctx context.Context, what string, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if _, err := d.c.bus.Control().RequestWithContext(ctx, d.msg.Reply, []byte(what)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// giveBack returns the message to the queue, to come again after delay. It is
// tried until the ack wait returns it anyway.
func (d *delivery) giveBack(ctx context.Context, delay time.Duration) {
	d.c.count.naks.Add(1)
	// First it is not here any more: it may be back before we are done, and a beat
	// behind the nak would undo its delay.
	d.c.leave(d)
	body := []byte(ackBack)
	if delay > 0 {
		body = fmt.Appendf(body, ` {"delay": %d}`, delay)
	}
	pause := retryPause{}
	for until := time.Now().Add(d.ackWait); time.Now().Before(until); {
		if d.c.bus.Control().Publish(d.msg.Reply, body) == nil {
			return
		}
		if !pause.wait(ctx) {
			d.c.unsettle(d, "it could not be given back, it returns after the ack wait")
			return
		}
	}
	d.c.log.Warn().Str("job", d.key).Msg("job not given back, it returns after the ack wait")
}

// acknowledge removes the message from the queue. It is repeated over reconnects;
// after the ack wait the message has returned, and whoever gets it finds the
// record.
func (d *delivery) acknowledge(ctx context.Context) bool {
	pause := retryPause{}
	for until := time.Now().Add(d.ackWait); ; {
		err := d.ask(ctx, ackDone, min(d.ackWait/beatsPerWait, callTimeout))
		if err == nil {
			return true
		}
		if time.Now().After(until) || !pause.wait(ctx) {
			d.c.log.Warn().Err(err).Str("job", d.key).Msg("job not acknowledged, its result will be repeated")
			return false
		}
	}
}

// retryPause is a growing, jittered pause between tries.
type retryPause struct {
	last  time.Duration
	tries uint
}

// loud says whether the try that just failed is worth a line in the log: the
// first, second, fourth, eighth, …
func (p *retryPause) loud() bool {
	n := p.tries + 1
	return n&(n-1) == 0
}

// wait sleeps; false means that ctx ended.
func (p *retryPause) wait(ctx context.Context) bool {
	p.tries++
	p.last = min(max(2*p.last, firstRetry), lastRetry)
	timer := time.NewTimer(jitter(p.last))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
