package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// followEvery is how soon a worker learns that a reaper elsewhere has ended one of
// its leases, and has the room again.
const followEvery = 2 * time.Second

// follow looks after those of the pool's leases in quarantine that reapers elsewhere
// end: remote ones. Their number is bounded by the pool's capacity.
func (w *worker) follow(ctx context.Context) error {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, lease := range w.pool.Leases() {
			provider := w.sandboxes.providers[lease.Provider].Capabilities()
			if lease.State == sandbox.LeaseQuarantined && provider.OutlivesWorker {
				w.lookAfter(ctx, lease, provider.Host)
			}
		}
	}
}

// lookAfter tells the pool where a lease's record says that it is gone. One that
// cannot be read now is looked at again.
func (w *worker) lookAfter(ctx context.Context, lease leasepool.Info, host string) {
	ctx, cancel := context.WithTimeout(ctx, w.bus.RequestTimeout())
	defer cancel()
	found, err := w.bus.Quarantines().Get(ctx, lease.Provider, host, lease.ID)
	if errors.Is(err, bus.ErrNoRecord) {
		// It stood there once, so it has ended and expired while this worker slept or was
		// cut off. What it said is lost: a reaper has to look again.
		err = w.bus.Quarantines().Put(ctx, wire.Quarantine{
			V: wire.Version, State: wire.InQuarantine, Lease: lease.ID, Provider: lease.Provider, Host: host, Worker: w.id, Tenant: lease.Tenant,
			Reason: wire.QuarantineUnproven, Message: "its record is gone, and its worker has not learned its end", FirstSeen: time.Now().UTC(),
		})
	}
	if err != nil {
		w.log.Debug().Err(err).Str("lease", lease.ID).Msg("quarantine record cannot be read now")
		return
	}
	if found != nil && found.Record.State == wire.Gone {
		w.pool.Gone(lease.ID, reaper.Proof(found.Record))
	}
}
