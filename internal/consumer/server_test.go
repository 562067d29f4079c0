package consumer_test

import (
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus/bustest"
)

func TestMain(m *testing.M) {
	bustest.Main(m)
}

// broker is an embedded server that can be stopped and started again on the same
// port and store.
type broker struct {
	t    *testing.T
	dir  string
	port int
	*server.Server
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	b := &broker{t: t, dir: t.TempDir(), port: -1}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	b.Server = bustest.Server(b.t, func(o *server.Options) { o.Port, o.StoreDir = b.port, b.dir })
	addr, ok := b.Addr().(*net.TCPAddr)
	require.True(b.t, ok)
	b.port = addr.Port
}

func (b *broker) stop() {
	b.Shutdown()
	b.WaitForShutdown()
}

func (b *broker) connect() *nats.Conn {
	b.t.Helper()
	nc, err := nats.Connect(b.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1))
	require.NoError(b.t, err)
	b.t.Cleanup(nc.Close)
	return nc
}

// eventually polls until ok holds.
func eventually(t *testing.T, bound time.Duration, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, bound, 5*time.Millisecond, what)
}
