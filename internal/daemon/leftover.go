package daemon

import (
	"context"
	"time"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

// handOver puts into quarantine what a dead worker left on this host and the start
// could not prove gone: it may have died before its own record was durable, and then
// nobody knows of it. A record that is there already stays as it is.
func (w *worker) handOver(ctx context.Context) error {
	if w.sandboxes.local != nil {
		for _, h := range w.sandboxes.local.Leftovers() {
			w.doubtful(ctx, h)
		}
	}
	<-ctx.Done()
	return nil
}

// doubtful makes the record of a leftover durable, however often it takes.
func (w *worker) doubtful(ctx context.Context, h sandbox.Handle) {
	const again = time.Second
	log := w.log.With().Str("lease", h.Lease).Str("provider", h.Provider).Logger()
	first := time.Now()
	for {
		err := w.doubt.Quarantine(ctx, leasepool.Record{
			Handle: h, Reason: leasepool.QuarantineOwnerGone, FirstSeen: first,
			Message: "its worker is gone, and it could not be proven gone when the next one started",
		})
		if err == nil {
			log.Warn().Msg("what a dead worker left is in quarantine")
			return
		}
		log.Error().Err(err).Msg("the quarantine record of a leftover is not durable yet")
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
