package executor

import (
	"context"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// follower waits for a run's end in its own goroutine and notices on the way
// that the leader has ended while something else of the tree, or its output, is
// still there.
type follower struct {
	ended chan struct{} // closed when the leader's end is known
	done  chan struct{} // closed when the tree is proven gone, or surely lost
	err   error         // set before done is closed
	end   sandbox.End   // set before done is closed

	mu   sync.Mutex
	seen sandbox.End
}

// A run without an end is asked about this often; the answer comes at once when
// there is news, so that the interval only bounds how late a leader's end is
// noticed while its tree lives on.
const lookEvery = 500 * time.Millisecond

// watch returns when the run is over or ctx ends.
func (f *follower) watch(ctx context.Context, process sandbox.Run) {
	for ctx.Err() == nil {
		look, cancel := context.WithTimeout(ctx, lookEvery)
		end, err := process.Wait(look)
		over := look.Err() == nil
		cancel()
		f.note(end)
		if over || (err != nil && sandbox.KindOf(err) == sandbox.Gone) {
			f.end, f.err = end, err
			close(f.done)
			return
		}
	}
}

func (f *follower) note(end sandbox.End) {
	f.mu.Lock()
	first := f.seen.Exit == nil && end.Exit != nil
	f.seen = end
	f.mu.Unlock()
	if first {
		close(f.ended)
	}
}

// last is what was known at the last look.
func (f *follower) last() sandbox.End {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

func (f *follower) proven() bool { return f.last().Proof.Proven }
