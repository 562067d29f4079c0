package simulation_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

// blind is a provider that cannot say what became of a sandbox, and whose inventory
// shows nothing.
type blind struct{ *fake.Provider }

func (blind) Destroy(context.Context, sandbox.Handle) (sandbox.Proof, error) {
	return sandbox.Proof{}, nil
}

func (blind) Inventory(context.Context) ([]sandbox.Handle, error) { return nil, nil }

// TestNoProofIsNoEnd: that a sandbox is not to be seen does not replace the proof
// that it is gone. (In a story the second look nearly always finds it.)
func TestNoProofIsNoEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t, 1)
		s.setCalm()
		p := newProcess(s, "r.1")
		d := p.desk()
		require.NoError(t, d.Put(t.Context(), wire.Quarantine{
			V: wire.Version, State: wire.InQuarantine, Lease: "l", Provider: remoteName, Host: account, Worker: "w",
			Reason: wire.QuarantineUnproven, FirstSeen: time.Now().UTC(),
		}))
		boxes := map[string]sandbox.Provider{remoteName: blind{newProvider(p, remoteName, 0).Provider}}
		r := newReaper(p, boxes, nil)
		over := make(chan error, 1)
		go func() { over <- r.Run(p.ctx) }()
		time.Sleep(10 * time.Minute)
		stored, err := d.Quarantined(t.Context(), remoteName, account, "l")
		require.NoError(t, err)
		require.Equal(t, wire.InQuarantine, stored.Record.State)
		require.Greater(t, r.Stats().Attempts, uint64(10))
		p.end()
		require.NoError(t, <-over)
	})
}
