package bus_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/wire"
)

// startCluster runs three servers that are one cluster.
func startCluster(t *testing.T) []*server.Server {
	t.Helper()
	const size = 3
	// The routes must be known before the first server starts; on an address where
	// nobody else takes a port meanwhile.
	host := fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(128), rand.IntN(256), 1+rand.IntN(250))
	var routes []*url.URL
	var ports []int
	for range size {
		l, err := net.Listen("tcp", host+":0")
		require.NoError(t, err)
		addr, ok := l.Addr().(*net.TCPAddr)
		require.True(t, ok)
		require.NoError(t, l.Close())
		ports = append(ports, addr.Port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: addr.String()})
	}
	servers := make([]*server.Server, size)
	for i := range servers {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
			NoSigs: true, NoLog: true, DisableJetStreamBanner: true, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 64 << 20,
			Cluster: server.ClusterOpts{Name: "test", Host: host, Port: ports[i]}, Routes: routes,
		})
		require.NoError(t, err)
		servers[i] = s
		s.Start()
		t.Cleanup(func() { stopServer(s) })
	}
	for _, s := range servers {
		require.True(t, s.ReadyForConnections(bustest.Patience))
	}
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(servers, func(s *server.Server) bool { return !s.JetStreamIsCurrent() })
	}, bustest.Patience, 20*time.Millisecond)
	return servers
}

// TestLedgerOnACluster: with replicas a compare-and-set meets writes that are not
// decided yet, whose refusal proves nothing. The books balance all the same, over
// changes of the leader.
func TestLedgerOnACluster(t *testing.T) {
	// Not beside others: three servers that elect leaders need the processors in time.
	servers := startCluster(t)
	soon := func(o *bus.Options) { o.RequestTimeout = 500 * time.Millisecond } // between two leaders nobody answers
	b, other := bustest.Connect(t, servers[0].ClientURL(), soon), bustest.Connect(t, servers[1].ClientURL(), soon)
	cfg := small()
	cfg.Replicas = 3
	plan, err := bus.Plan(cfg)
	require.NoError(t, err)
	ctx := bustest.Context(t)
	require.Eventually(t, func() bool {
		_, err := b.Apply(ctx, plan)
		return err == nil
	}, bustest.Patience, 50*time.Millisecond)
	const leases = 30
	type outcome struct{ use, mine, theirs error }
	outcomes := make([]outcome, leases)
	var wg sync.WaitGroup
	for i := range leases {
		rec := intent(fmt.Sprint("l", i))
		seq, err := b.Ledger().Intend(ctx, rec)
		require.NoError(t, err)
		entry := bus.StoredLease{Record: rec, Seq: seq}
		stood := make(chan struct{})
		wg.Go(func() {
			outcomes[i].mine = b.Ledger().Quarantine(ctx, entry, doubted(rec))
			close(stood)
		})
		wg.Go(func() { outcomes[i].theirs = other.Ledger().Quarantine(ctx, entry, doubted(rec)) })
		wg.Go(func() {
			if i%2 == 0 { // it would nearly always be the first
				<-stood
			}
			_, outcomes[i].use = other.Ledger().Update(ctx, ready(rec), seq)
		})
		if i%10 == 9 {
			require.NoError(t, b.Control().Publish("$JS.API.STREAM.LEADER.STEPDOWN."+b.Streams().Ledger, nil))
		}
	}
	wg.Wait()
	for i, got := range outcomes {
		lease := fmt.Sprint("l", i)
		entry, err := b.Ledger().Get(ctx, "remote", lease)
		require.NoError(t, err)
		_, record := b.Quarantines().Get(ctx, "remote", "account1", lease)
		if got.use == nil {
			require.ErrorIs(t, got.mine, bus.ErrConflict)
			require.ErrorIs(t, got.theirs, bus.ErrConflict)
			require.Equal(t, wire.LeaseReady, entry.Record.State)
			require.ErrorIs(t, record, bus.ErrNoRecord)
			continue
		}
		require.ErrorIs(t, got.use, bus.ErrConflict)
		require.NoError(t, got.mine)
		require.NoError(t, got.theirs)
		require.Equal(t, wire.LeaseQuarantined, entry.Record.State)
		require.NoError(t, record)
	}
}
