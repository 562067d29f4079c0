package reaper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// looker takes looks at a provider's inventory, each for all that wait for one:
// while one look runs, those who ask wait for the next, because the running one
// may have begun before the destroy that they want to see confirmed.
type looker struct {
	provider sandbox.Provider
	timeout  time.Duration

	mu            sync.Mutex
	running, next *look
}

type look struct {
	done   chan struct{}
	leases map[string]bool
	err    error
}

// look returns the leases that a look finds which begins after the call. base
// bounds the look itself, which serves others too, and ctx the caller's wait.
func (l *looker) look(base, ctx context.Context) (map[string]bool, error) {
	l.mu.Lock()
	n, mine := l.next, false
	before := l.running
	if n == nil {
		n, mine = &look{done: make(chan struct{})}, true
		l.next = n
	}
	l.mu.Unlock()
	if mine {
		l.take(base, n, before)
	}
	select {
	case <-n.done:
		return n.leases, n.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the inventory: %w", context.Cause(ctx))
	}
}

// take waits for the look that runs, and then is the one that runs.
func (l *looker) take(base context.Context, n, before *look) {
	if before != nil {
		<-before.done
	}
	l.mu.Lock()
	l.running, l.next = n, nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(base, l.timeout)
	defer cancel()
	handles, err := l.provider.Inventory(ctx)
	if err != nil {
		n.err = fmt.Errorf("second look: %w", err)
	}
	n.leases = make(map[string]bool, len(handles))
	for _, h := range handles {
		n.leases[h.Lease] = true
	}
	l.mu.Lock()
	if l.running == n {
		l.running = nil
	}
	l.mu.Unlock()
	close(n.done)
}
