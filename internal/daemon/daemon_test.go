package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	_ "github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is far above what a loaded machine needs, so that only a hang meets it.
const patience = 60 * time.Second

// fakeConfig is a configuration whose jobs run in memory.
func fakeConfig(t *testing.T, flags map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("profiles: {default: {provider: fake}}\nslots: 2\n"), 0o600))
	all := map[string]string{"state_dir": filepath.Join(dir, "state"), "listen": "127.0.0.1:0"}
	maps.Copy(all, flags)
	cfg, err := config.Load(config.Sources{File: file, Flags: all, Dev: true, CPUs: 2})
	require.NoError(t, err)
	return cfg
}

// background runs a service and returns how to stop it and to read its end.
func background(t *testing.T, run func(ctx, hurry context.Context) error) (stop, hurry func(), ended <-chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	second, hurry := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, second) }()
	t.Cleanup(func() { stop(); hurry() })
	return stop, hurry, done
}

func wait[T any](t *testing.T, from <-chan T, ended <-chan error) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case err := <-ended:
		require.FailNow(t, "the service ended", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
	}
	panic("unreachable")
}

func dial(t *testing.T, url string) *client.Client {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	c, err := client.New(nc, client.Config{})
	require.NoError(t, err)
	return c
}

func runJob(t *testing.T, c *client.Client, argv ...string) (*client.Result, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	job, err := c.Submit(ctx, &client.Request{V: wire.Version, Argv: argv}, "")
	require.NoError(t, err)
	defer func() { require.NoError(t, job.Close()) }()
	var out bytes.Buffer
	result, err := job.Copy(ctx, &out, nil)
	require.NoError(t, err)
	return result, out.String()
}

func TestDevStartsServesAndStops(t *testing.T) {
	cfg := fakeConfig(t, nil)
	for range 2 { // the second start finds the first one's streams
		ready := make(chan daemon.DevInfo, 1)
		stop, _, ended := background(t, func(ctx, hurry context.Context) error {
			return daemon.RunDev(ctx, hurry, cfg, zerolog.Nop(), daemon.Build{Version: "1.2.3"}, func(d daemon.DevInfo) error {
				ready <- d
				return nil
			})
		})
		info := wait(t, ready, ended)
		require.Equal(t, "none", info.Isolation)
		result, out := runJob(t, dial(t, info.URL), "fake", "print:hi", "exit:3")
		require.Equal(t, "hi\n", out)
		require.Equal(t, wire.Exited, result.Outcome)
		require.Equal(t, 3, *result.ExitCode)
		require.Equal(t, "1.2.3", result.Worker.Version)
		stop()
		require.NoError(t, wait(t, ended, nil))
	}
}

func TestDevThatCannotAnnounceStops(t *testing.T) {
	_, _, ended := background(t, func(ctx, hurry context.Context) error {
		return daemon.RunDev(ctx, hurry, fakeConfig(t, nil), zerolog.Nop(), daemon.Build{}, func(daemon.DevInfo) error { return io.ErrClosedPipe })
	})
	require.ErrorIs(t, wait(t, ended, nil), io.ErrClosedPipe)
}

func TestServerAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	for name, c := range map[string]struct{ address, want string }{
		"taken":        {taken.Addr().String(), "is taken"},
		"not loopback": {"0.0.0.0:0", "not on loopback"},
		"no host":      {":4222", "not on loopback"},
		"no port":      {"127.0.0.1", "missing port"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := daemon.StartServer(t.Context(), c.address, t.TempDir(), zerolog.Nop())
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestServicesWithoutServerSayWhatToDo(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	cfg := fakeConfig(t, map[string]string{"server": "nats://" + free.Addr().String()})
	for name, run := range services() {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), cfg)
			require.ErrorIs(t, err, daemon.ErrConnect)
			require.ErrorContains(t, err, "--server")
			require.ErrorContains(t, err, free.Addr().String())
		})
	}
}

func TestServicesWithoutStreamsSayWhatToDo(t *testing.T) {
	server, err := daemon.StartServer(t.Context(), "127.0.0.1:0", t.TempDir(), zerolog.Nop())
	require.NoError(t, err)
	defer server.Close()
	cfg := fakeConfig(t, map[string]string{"server": server.URL()})
	for name, run := range services() {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), cfg)
			require.ErrorIs(t, err, daemon.ErrRefused)
			require.ErrorContains(t, err, "EXEC_JOBS")
			require.ErrorContains(t, err, "sallyport streams apply")
		})
	}
}

// Who is told to stop while it starts has stopped in order.
func TestServicesStoppedBeforeTheyServe(t *testing.T) {
	server, err := daemon.StartServer(t.Context(), "127.0.0.1:0", t.TempDir(), zerolog.Nop())
	require.NoError(t, err)
	defer server.Close()
	cfg := fakeConfig(t, map[string]string{"server": server.URL()})
	for name, run := range services() {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			stop()
			require.NoError(t, run(ctx, cfg))
		})
	}
}

func services() map[string]func(context.Context, *config.Config) error {
	return map[string]func(context.Context, *config.Config) error{
		"worker": func(ctx context.Context, cfg *config.Config) error {
			return daemon.RunWorker(ctx, ctx, cfg, zerolog.Nop(), daemon.Build{}, true)
		},
		"gateway": func(ctx context.Context, cfg *config.Config) error {
			return daemon.RunGateway(ctx, cfg, zerolog.Nop(), daemon.Build{})
		},
		"reaper": func(ctx context.Context, cfg *config.Config) error {
			return daemon.RunReaper(ctx, cfg, zerolog.Nop(), daemon.Build{})
		},
	}
}

// planned is a server with the streams of cfg.
func planned(t *testing.T, cfg *config.Config) *daemon.Server {
	t.Helper()
	server, err := daemon.StartServer(t.Context(), "127.0.0.1:0", t.TempDir(), zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(server.Close)
	cfg.NATS.Server = server.URL()
	b, err := daemon.Connect(t.Context(), cfg, zerolog.Nop(), "operator")
	require.NoError(t, err)
	plan, err := daemon.Plan(cfg)
	require.NoError(t, err)
	changes, err := b.Apply(t.Context(), plan)
	require.NoError(t, err)
	require.NotEmpty(t, changes)
	require.NoError(t, daemon.CheckStreams(t.Context(), b, cfg))
	require.NoError(t, b.Close(t.Context()))
	return server
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	return resp.StatusCode, string(body)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 10*time.Millisecond, what)
}

func TestWorkerAndGatewayApart(t *testing.T) {
	cfg := fakeConfig(t, map[string]string{"http": freeAddress(t), "drain": "1m"})
	server := planned(t, cfg)
	stop, hurry, ended := background(t, func(ctx, hurry context.Context) error {
		return daemon.RunWorker(ctx, hurry, cfg, zerolog.Nop(), daemon.Build{Version: "1.2.3"}, false)
	})
	own := *cfg
	own.HTTP = freeAddress(t)
	stopGateway, _, gatewayEnded := background(t, func(ctx, _ context.Context) error {
		return daemon.RunGateway(ctx, &own, zerolog.Nop(), daemon.Build{Version: "1.2.3"})
	})
	for _, address := range []string{cfg.HTTP, own.HTTP} {
		eventually(t, "ready", func() bool { code, _ := get(t, "http://"+address+"/readyz"); return code == 200 })
	}
	c := dial(t, server.URL())
	result, out := runJob(t, c, "fake", "print:hi")
	require.Equal(t, "hi\n", out)
	require.Equal(t, wire.Exited, result.Outcome)
	_, metrics := get(t, "http://"+cfg.HTTP+"/metrics")
	require.Contains(t, metrics, `sallyport_attempts_total{outcome="exited",queue="default",reason=""} 1`)
	require.Contains(t, metrics, "sallyport_ready 1")
	require.Contains(t, metrics, `sallyport_phase_seconds_count{phase="run",queue="default"} 1`)
	_, metrics = get(t, "http://"+own.HTTP+"/metrics")
	require.Contains(t, metrics, "sallyport_gateway_submitted_total 1")

	// A job that would run for ever is drained, until the second signal.
	job, err := c.Submit(t.Context(), &client.Request{V: wire.Version, Argv: []string{"fake", "print:up", "forever"}}, "")
	require.NoError(t, err)
	defer func() { require.NoError(t, job.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		ev, err := job.Next(ctx)
		require.NoError(t, err)
		if ev.Type == wire.EventStdout {
			break
		}
	}
	stop()
	eventually(t, "draining", func() bool {
		code, body := get(t, "http://"+cfg.HTTP+"/readyz")
		return code == 503 && len(body) > 0
	})
	select {
	case err := <-ended:
		require.FailNow(t, "the worker did not wait for its job", "%v", err)
	default:
	}
	hurry()
	require.NoError(t, wait(t, ended, nil))
	final, err := job.Copy(ctx, nil, nil)
	require.NoError(t, err)
	require.Equal(t, wire.Lost, final.Outcome)
	require.Equal(t, wire.ReasonShutdown, final.Reason)
	stopGateway()
	require.NoError(t, wait(t, gatewayEnded, nil))
}

func TestHTTPAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	cfg := fakeConfig(t, map[string]string{"http": taken.Addr().String()})
	planned(t, cfg)
	err = daemon.RunWorker(t.Context(), t.Context(), cfg, zerolog.Nop(), daemon.Build{}, false)
	require.ErrorContains(t, err, "health and metrics address")
}

func TestCheckStreamsNamesEveryDifference(t *testing.T) {
	cfg := fakeConfig(t, nil)
	planned(t, cfg)
	cfg.AckWait *= 2
	cfg.Queues = append(cfg.Queues, config.Queue{Name: "extra", Weight: 1})
	b, err := daemon.Connect(t.Context(), cfg, zerolog.Nop(), "operator")
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close(t.Context())) }()
	err = daemon.CheckStreams(t.Context(), b, cfg)
	require.ErrorIs(t, err, daemon.ErrRefused)
	var check *bus.CheckError
	require.ErrorAs(t, err, &check)
	require.ErrorContains(t, err, "w-extra")
	require.ErrorContains(t, err, "ack_wait")
}
