package executor

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// recorder is the sink of one run: it numbers the output, cuts it into events,
// holds the output limit and counts. Its turn is a lock that gives up when the
// recorder is closed, because the holder may be waiting for the broker.
type recorder struct {
	out     run.Output
	mode    wire.OutputMode
	job     string
	attempt int

	turn    chan struct{} // holds one token; who has it owns the fields below
	started chan struct{} // closed when output may flow: the started event is out
	over    chan struct{} // closed when the output limit was exceeded

	// emitting ends when nobody waits for the output any more. A sink has no
	// context of its own: the provider calls it.
	emitting context.Context //nolint:containedctx // see above
	stop     context.CancelFunc

	budget      int64 // bytes of output still allowed
	inlineLimit int64 // bytes of each stream that fit the result
	exceeded    bool
	cut         bool // the result could not hold all of the output
	seq         uint64
	streams     [3]stream // by sandbox.Stream
	lost        []wire.LostRange

	startOnce sync.Once
}

type stream struct {
	offset    int64 // of the next byte
	produced  int64 // read from the process, beyond the limit too
	delivered int64
	inline    []byte
}

var (
	errOutputLimit = errors.New("output limit reached")
	errNotTaken    = errors.New("output is not taken any more")
)

func newRecorder(ctx context.Context, a run.Attempt, out run.Output, limit, inlineLimit int64) *recorder {
	emitting, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &recorder{
		out: out, mode: a.Mode, job: a.Job.Key(), attempt: a.Number,
		turn: make(chan struct{}, 1), started: make(chan struct{}), over: make(chan struct{}),
		emitting: emitting, stop: stop, budget: limit, inlineLimit: inlineLimit,
	}
	r.turn <- struct{}{}
	return r
}

// start emits the started event, or declares it lost when ctx ends first, and
// lets output flow.
func (r *recorder) start(ctx context.Context, body []byte) {
	r.startOnce.Do(func() {
		if !r.take() {
			return
		}
		defer r.give()
		r.emit(ctx, wire.EventStarted, 0, body)
		close(r.started)
	})
}

// Write implements sandbox.Sink.
func (r *recorder) Write(s sandbox.Stream, p []byte) error {
	select {
	case <-r.started:
	case <-r.emitting.Done():
		return errNotTaken
	}
	if !r.take() {
		return errNotTaken
	}
	defer r.give()
	if r.exceeded {
		return errOutputLimit
	}
	st := &r.streams[s]
	st.produced += int64(len(p))
	fits := min(int64(len(p)), r.budget)
	r.budget -= fits
	r.deliver(s, p[:fits])
	if fits < int64(len(p)) {
		r.exceeded = true
		close(r.over)
		return errOutputLimit
	}
	return nil
}

// deliver sends p where the mode wants it. The turn is held.
func (r *recorder) deliver(s sandbox.Stream, p []byte) {
	st := &r.streams[s]
	switch r.mode {
	case wire.OutputNone:
	case wire.OutputInline:
		fits := min(int64(len(p)), r.inlineLimit-int64(len(st.inline)))
		st.inline = append(st.inline, p[:fits]...)
		st.delivered += fits
		r.cut = r.cut || fits < int64(len(p))
	case wire.OutputReply, wire.OutputStored, wire.OutputBoth:
		typ := wire.EventStdout
		if s == sandbox.Stderr {
			typ = wire.EventStderr
		}
		for piece := range slices.Chunk(p, max(1, r.out.MaxChunk())) {
			if r.emit(r.emitting, typ, st.offset, piece) {
				st.delivered += int64(len(piece))
			}
			st.offset += int64(len(piece))
		}
	}
}

// emit hands one event over, or notes the hole. The turn is held.
func (r *recorder) emit(ctx context.Context, typ wire.EventType, offset int64, data []byte) bool {
	r.seq++
	ev := wire.Event{Type: typ, Job: r.job, Attempt: r.attempt, Seq: r.seq, Offset: offset, Data: data}
	if err := r.out.Emit(ctx, ev); err != nil {
		if n := len(r.lost); n > 0 && r.lost[n-1].To == r.seq-1 {
			r.lost[n-1].To = r.seq
		} else {
			r.lost = append(r.lost, wire.LostRange{From: r.seq, To: r.seq})
		}
		return false
	}
	return true
}

func (r *recorder) take() bool {
	select {
	case <-r.turn:
		return true
	case <-r.emitting.Done():
		return false
	}
}

func (r *recorder) give() { r.turn <- struct{}{} }

// close ends the taking of output: a blocked event is given up and declared
// lost. The recorder's counts are final after it.
func (r *recorder) close() {
	r.stop()
	<-r.turn
}

// summary is for the result; close was called.
func (r *recorder) summary() (sum wire.OutputSummary, stdout, stderr *wire.Inline) {
	o, e := &r.streams[sandbox.Stdout], &r.streams[sandbox.Stderr]
	sum = wire.OutputSummary{
		StdoutBytes: o.delivered, StdoutProduced: o.produced,
		StderrBytes: e.delivered, StderrProduced: e.produced,
		Truncated:  r.exceeded || r.cut || len(r.lost) > 0,
		LastSeq:    r.seq,
		LostRanges: r.lost,
	}
	if r.mode == wire.OutputInline {
		stdout, stderr = wire.NewInline(o.inline), wire.NewInline(e.inline)
	}
	return sum, stdout, stderr
}
