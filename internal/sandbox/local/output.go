package local

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
)

const (
	// chunkBytes is the largest piece of output that is handed on.
	chunkBytes = 256 << 10
	// joinTime is how long pieces that follow a piece are held back to be joined.
	joinTime = 10 * time.Millisecond
	// floodBytes in one read is a flood: the pipe is then made larger.
	floodBytes = 32 << 10
	// floodPipe is the largest pipe that an ordinary user may have by default
	// (pipe(7), /proc/sys/fs/pipe-max-size).
	floodPipe = 1 << 20
	// eofTime is how long the end of the output may take once all writers are gone.
	eofTime = time.Second
)

type chunk [chunkBytes]byte

// chunkPool keeps buffers between runs.
type chunkPool struct{ sync.Pool }

func (p *chunkPool) take() *chunk {
	if c, ok := p.Get().(*chunk); ok {
		return c
	}
	return new(chunk)
}

// output reads one output stream of a run.
type output struct {
	stream sandbox.Stream
	file   *os.File
	pool   *chunkPool

	// total counts the bytes that were read.
	total atomic.Int64
	// ended says that copy has returned.
	ended atomic.Bool
	// stuck may be read when copy has returned.
	stuck bool

	mu      sync.Mutex
	stopped bool
	dead    bool // all writers are gone
}

// newOutput makes the pipe of a stream and returns the writer's end, too.
func newOutput(stream sandbox.Stream, pool *chunkPool) (*output, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make an output pipe: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "output")
	// The job's end must block: it is another open file than ours.
	ours, err := pollable(fds[0], "output")
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return &output{stream: stream, file: ours, pool: pool}, theirs, nil
}

// copy hands the output to sink until it ends, is stopped, or sink refuses it;
// then stop is called. The first piece goes at once, what follows within joinTime
// is joined.
func (o *output) copy(sink sandbox.Sink, stop func()) {
	defer o.ended.Store(true)
	buf := o.pool.take()
	defer o.pool.Put(buf)
	n, flooded := 0, false
	var last time.Time
	flush := func() bool {
		if n == 0 {
			return true
		}
		if err := sink.Write(o.stream, buf[:n]); err != nil {
			stop()
			return false
		}
		n, last = 0, time.Now()
		return true
	}
	for {
		var joined time.Time
		if n > 0 {
			joined = last.Add(joinTime)
		}
		if !o.arm(joined) {
			return
		}
		m, err := o.file.Read(buf[n:])
		n += m
		o.total.Add(int64(m))
		if !flooded && m >= floodBytes {
			flooded = true
			o.enlarge()
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if n == 0 && o.writersDead() {
				o.stuck = true
				return
			}
		case err != nil:
			flush()
			return
		case n < len(buf) && time.Since(last) < joinTime:
			continue
		}
		if !flush() {
			return
		}
	}
}

// arm sets the next read's deadline: joined, if there is one; once all writers
// are gone, none waits longer than eofTime. It says whether to go on at all.
func (o *output) arm(joined time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped {
		return false
	}
	if joined.IsZero() && o.dead {
		joined = time.Now().Add(eofTime)
	}
	return o.file.SetReadDeadline(joined) == nil
}

func (o *output) writersDead() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dead
}

// writersGone tells that nothing more can be written.
func (o *output) writersGone() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dead = true
	if !o.stopped {
		o.interrupt(time.Now().Add(eofTime))
	}
}

// stop ends the reading for good. The pipe stays open, so that the writers block
// rather than die of SIGPIPE before the run is ended.
func (o *output) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	o.interrupt(time.Unix(1, 0))
}

// interrupt ends a waiting read at t. It cannot fail for a pipe in the poller,
// except when it is closed, and then no read waits.
func (o *output) interrupt(t time.Time) {
	_ = o.file.SetReadDeadline(t) //nolint:errcheck // see above
}

// enlarge makes the pipe larger, if the kernel lets us.
func (o *output) enlarge() {
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { //nolint:errcheck // a small pipe is no error
		_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, floodPipe) //nolint:errcheck // a small pipe is no error
	})
}

func (o *output) close() error { return o.file.Close() }
