package bus_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestConnectWithoutServer(t *testing.T) {
	t.Parallel()
	for _, retry := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := bus.Connect(ctx, bus.Options{Servers: "nats://me:secret@127.0.0.1:1", RetryOnFailedConnect: retry, Log: zerolog.Nop()})
		require.ErrorContains(t, err, "127.0.0.1:1")
		require.ErrorContains(t, err, "check that a nats-server")
		require.NotContains(t, err.Error(), "secret")
		require.Less(t, time.Since(began), 5*time.Second)
		if retry {
			require.GreaterOrEqual(t, time.Since(began), 250*time.Millisecond, "it tries again")
		}
	}
	_, err := bus.Connect(t.Context(), bus.Options{})
	require.ErrorContains(t, err, "--server")
	_, err = bus.Connect(t.Context(), bus.Options{Servers: "nats://127.0.0.1:1", SubjectPrefix: "a b"})
	require.ErrorContains(t, err, "prefix")
	_, err = bus.Connect(t.Context(), bus.Options{Servers: "nats://127.0.0.1:1", ResultRetention: time.Millisecond})
	require.ErrorContains(t, err, "result retention")
}

// TestConnectSilentServer: something listens and says nothing.
func TestConnectSilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err = bus.Connect(ctx, bus.Options{Servers: "nats://" + l.Addr().String(), RetryOnFailedConnect: true, Log: zerolog.Nop()})
	require.ErrorContains(t, err, l.Addr().String())
	require.Less(t, time.Since(began), 5*time.Second)
}

func TestConnectWaitsForTheServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	url, again := s.ClientURL(), restartable(t, s)
	stopServer(s)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { again() })
	b := connect(t, url, func(o *bus.Options) { o.RetryOnFailedConnect = true })
	require.True(t, b.Connected())
}

func TestConnectRefusals(t *testing.T) {
	t.Parallel()
	t.Run("no JetStream", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, func(o *server.Options) { o.JetStream = false })
		_, err := bus.Connect(deadline(t), bus.Options{Servers: s.ClientURL(), Log: zerolog.Nop()})
		require.ErrorContains(t, err, "JetStream")
		require.ErrorContains(t, err, "-js")
	})
	t.Run("no JetStream in the account", func(t *testing.T) {
		t.Parallel()
		account := server.NewAccount("APP")
		s := startServer(t, func(o *server.Options) {
			o.Accounts = []*server.Account{account}
			o.Users = []*server.User{{Username: "u", Password: "p", Account: account}}
		})
		_, err := bus.Connect(deadline(t), bus.Options{Servers: s.ClientURL(), NATS: []nats.Option{nats.UserInfo("u", "p")}, Log: zerolog.Nop()})
		require.ErrorContains(t, err, "JetStream")
		require.ErrorContains(t, err, "account")
	})
	t.Run("wrong password", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, func(o *server.Options) { o.Username, o.Password = "u", "p" })
		began := time.Now()
		_, err := bus.Connect(deadline(t), bus.Options{Servers: s.ClientURL(), NATS: []nats.Option{nats.UserInfo("u", "wrong")}, RetryOnFailedConnect: true, Log: zerolog.Nop()})
		require.ErrorContains(t, err, "check the user, password")
		require.Less(t, time.Since(began), patience/2, "trying again would not help")
	})
	t.Run("no credentials file", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, nil)
		_, err := bus.Connect(deadline(t), bus.Options{Servers: s.ClientURL(), NATS: []nats.Option{nats.UserCredentials("/no/such.creds")}, Log: zerolog.Nop()})
		require.ErrorContains(t, err, "/no/such.creds")
		require.ErrorContains(t, err, "--creds")
		require.NotContains(t, err.Error(), "listens there")
	})
	t.Run("old version", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer func() { require.NoError(t, l.Close()) }()
		wg.Go(func() { oldServer(l) })
		_, err = bus.Connect(deadline(t), bus.Options{Servers: "nats://" + l.Addr().String(), Log: zerolog.Nop()})
		require.ErrorContains(t, err, `version "2.11.9", Sallyport needs 2.12 or later`)
	})
}

// oldServer greets like nats-server 2.11.9 and answers pings.
func oldServer(l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer shut(c)
			if _, err := c.Write([]byte(`INFO {"server_id":"X","version":"2.11.9","max_payload":1048576,"headers":true,"proto":1}` + "\r\n")); err != nil {
				return
			}
			buf := make([]byte, 4096)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if strings.Contains(string(buf[:n]), "PING") {
					if _, err := c.Write([]byte("PONG\r\n")); err != nil {
						return
					}
				}
			}
		})
	}
}

func TestInProcess(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.DontListen = true })
	b, err := bus.Connect(deadline(t), bus.Options{InProcess: s, Log: zerolog.Nop()})
	require.NoError(t, err)
	apply(t, b, small())
	_, err = b.Runs().Create(deadline(t), "acme", "j", claimed("t"))
	require.NoError(t, err)
	require.NoError(t, b.Close(deadline(t)))
	require.NoError(t, b.Close(deadline(t)), "twice")
	require.False(t, b.Connected())
	began := time.Now()
	_, err = b.Runs().Create(deadline(t), "acme", "j2", claimed("t"))
	require.ErrorContains(t, err, "closed")
	require.Less(t, time.Since(began), patience/2, "what is closed does not come back")
}

func TestPrefixes(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), func(o *bus.Options) { o.SubjectPrefix, o.StreamPrefix, o.InboxPrefix = "ci.exec", "CI", "_INBOX_w1" })
	cfg := small()
	cfg.SubjectPrefix, cfg.StreamPrefix = "ci.exec", "CI"
	plan := apply(t, b, cfg)
	require.NoError(t, b.Check(deadline(t), plan))
	require.Equal(t, "CI_RUNS", b.Streams().Runs)
	require.True(t, strings.HasPrefix(b.Control().NewInbox(), "_INBOX_w1."))
	_, err := b.Runs().Create(deadline(t), "acme", "j", claimed("t"))
	require.NoError(t, err)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	require.NoError(t, o.Final(deadline(t), []byte(result), 1))
	require.Equal(t, []string{`1 result "{\"v\":1,\"outcome\":\"exited\"}"`}, stored(t, b, "j").types())
}

// TestPermissionErrors: the server refuses silently, the bus counts and tells.
func TestPermissionErrors(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "w", Password: "p", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Deny: []string{"forbidden.>", "exec.run.>"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
		}
	})
	admin := connect(t, s.ClientURL(), func(o *bus.Options) { o.NATS = []nats.Option{nats.UserInfo("admin", "p")} })
	apply(t, admin, small())
	denied := make(chan string, 10)
	b := connect(t, s.ClientURL(), func(o *bus.Options) {
		o.NATS = []nats.Option{nats.UserInfo("w", "p")}
		o.RequestTimeout = 200 * time.Millisecond
		o.OnPermissionError = func(subject string) { denied <- subject }
	})
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputReply, Reply: "forbidden.reply"})
	require.NoError(t, o.Final(deadline(t), []byte(result), 1), "core NATS does not tell")
	require.Equal(t, "forbidden.reply", <-denied)
	require.Positive(t, b.PermissionErrors())

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := b.Runs().Create(ctx, "acme", "j", claimed("t"))
	require.ErrorIs(t, err, bus.ErrUnknown, "silence is not success")
}

// TestControlFailsAtOnceWhileDisconnected: nothing is buffered to be sent later.
func TestControlFailsAtOnceWhileDisconnected(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	again := restartable(t, s)
	stopServer(s)
	require.Eventually(t, func() bool { return !b.Connected() }, patience, 5*time.Millisecond)
	require.ErrorIs(t, b.Control().Publish("x", nil), nats.ErrReconnectBufExceeded)
	require.ErrorContains(t, b.Enqueue(deadline(t), job("acme", "default", "j"), nil, nil), "not connected")
	_, err := b.EnsureReaper(deadline(t), "local", "h", 0)
	require.ErrorContains(t, err, "not connected")
	again()
	require.Eventually(t, b.Connected, patience, 5*time.Millisecond)
	require.GreaterOrEqual(t, b.Reconnects(), uint64(2))
	_, err = b.QueuedMessage(deadline(t), "acme", "j")
	require.ErrorIs(t, err, bus.ErrNotQueued)
	require.NoError(t, b.Enqueue(deadline(t), job("acme", "default", "j"), nil, nil))
}

// TestRunsOverRestart: a create that meets a restarting server ends well.
func TestRunsOverRestart(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	again := restartable(t, s)
	stopServer(s)
	var wg sync.WaitGroup
	var seq uint64
	var err error
	wg.Go(func() { seq, err = b.Runs().Create(deadline(t), "acme", "j", claimed("t")) })
	again()
	wg.Wait()
	require.NoError(t, err)
	got, err := b.Runs().Get(deadline(t), "acme", "j")
	require.NoError(t, err)
	require.Equal(t, seq, got.Seq)
}

// TestCloseDeliversWhatIsLeft: a job's last words go out before the connection
// closes.
func TestCloseDeliversWhatIsLeft(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	other := connect(t, s.ClientURL(), nil)
	o := other.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	for i := range 50 {
		require.NoError(t, o.Emit(deadline(t), stdout(uint64(i+1), int64(i), "x")))
	}
	require.NoError(t, other.Close(deadline(t)))
	require.Len(t, stored(t, b, "j").types(), 50)
	require.ErrorIs(t, o.Emit(deadline(t), stdout(51, 50, "x")), bus.ErrClosed)
}

func TestSlowConsumersAreCounted(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	told := make(chan string, 1)
	slow := connect(t, b.Control().ConnectedUrl(), func(o *bus.Options) {
		o.OnSlowConsumer = func(subject string) { told <- subject }
	})
	sub, err := slow.Control().SubscribeSync("busy")
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(1, 1<<20))
	for range 5 {
		require.NoError(t, slow.Control().Publish("busy", nil))
	}
	require.NoError(t, slow.Control().FlushTimeout(patience))
	require.Equal(t, "busy", <-told)
	require.Positive(t, slow.SlowConsumers())
}

// TestCloseSaysWhatIsLeft: output that nobody confirms does not hold up a
// shutdown, and is not passed over in silence.
func TestCloseSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b, err := bus.Connect(deadline(t), bus.Options{Servers: s.ClientURL(), Log: zerolog.Nop()})
	require.NoError(t, err)
	o := b.NewOutput(bus.OutputConfig{Job: job("acme", "default", "j"), Attempt: 1, Mode: wire.OutputStored})
	require.NoError(t, o.Emit(deadline(t), stdout(1, 0, "no stream takes it")))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err = b.Close(ctx)
	require.ErrorIs(t, err, bus.ErrNotDelivered)
	require.ErrorContains(t, err, "output of 1 jobs")
	require.Equal(t, []wire.LostRange{{From: 1, To: 1}}, o.Lost())
	require.True(t, b.Control().IsClosed() && b.Output().IsClosed())
}

// TestServicesHaveTheirOwnConnection: what others send to a service, and the end
// of its connection, do not touch the connection that jobs need.
func TestServicesHaveTheirOwnConnection(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	services := b.Services()
	require.Same(t, services, services.Services())
	require.NotSame(t, b.Control(), services.Control())
	_, err := services.Runs().Create(deadline(t), "t", "j", claimed("a"))
	require.NoError(t, err, "it is a whole bus")
	reconnects := b.Control().Stats().Reconnects
	require.NoError(t, services.Control().ForceReconnect())
	require.True(t, b.Connected())
	_, err = b.Runs().Get(deadline(t), "t", "j")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return b.Reconnects() == 1 }, patience, 5*time.Millisecond)
	require.Equal(t, reconnects, b.Control().Stats().Reconnects)
	require.NoError(t, b.Close(deadline(t)))
	require.True(t, services.Control().IsClosed())
}
