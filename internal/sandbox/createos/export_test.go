package createos

import (
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// What the tests of the pure parts need.

// RetryAfter reads a header.
func RetryAfter(text string, now time.Time) time.Duration { return retryAfter(text, now) }

// Effect is what a call does.
type Effect = effect

// The effects.
const (
	Looks   = looks
	Changes = changes
	Founds  = founds
)

// Kind is the kind of a call's error, and whether the call may be made again.
func Kind(e Effect, status int, sent, malformed bool) (kind sandbox.Kind, passes bool) {
	err := &callError{effect: e, status: status, sent: sent, malformed: malformed}
	return err.kind(), err.passes()
}

// Frame is a decoded line, in words.
type Frame struct {
	Kind    int
	Seq     uint64
	Stream  sandbox.Stream
	Data    []byte
	Exit    *sandbox.Exit
	Evicted bool
}

// DecodeFrame decodes a line.
func DecodeFrame(line []byte, cursor uint64) (Frame, error) {
	f, err := decodeFrame(line, cursor)
	return Frame{Kind: int(f.kind), Seq: f.seq, Stream: f.stream, Data: f.data, Exit: f.exit, Evicted: f.evicted}, err
}

// The kinds of frames.
const (
	FrameData      = int(frameData)
	FrameSeen      = int(frameSeen)
	FrameExit      = int(frameExit)
	FrameHeartbeat = int(frameHeartbeat)
	FrameError     = int(frameError)
)

// Marks tells a program's output from what was before it.
func Marks(nonce string) func(stream sandbox.Stream, p []byte) ([]byte, []string) {
	m := &marks{nonce: nonce}
	return m.take
}

// WalkOrder compares two paths.
func WalkOrder(a, b string) int { return walkOrder(a, b) }

// Rest makes a sandbox look as if it had not been used for so long.
func Rest(s sandbox.Sandbox, d time.Duration) {
	b, ok := s.(*box)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rested = time.Now().Add(-d)
}
