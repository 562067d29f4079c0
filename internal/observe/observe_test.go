package observe_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type detail struct {
	Level string `json:"level"`
}

func (d detail) String() string { return "level: " + d.Level + "\n" }

func TestServer(t *testing.T) {
	set, err := observe.NewSet("1.2.3")
	require.NoError(t, err)
	var slots atomic.Int64
	require.NoError(t, set.Add(
		observe.Metric{Name: "slots", Help: "Slots.", Kind: observe.Gauge, Read: func() map[string]float64 { return observe.One(float64(slots.Load())) }},
		observe.Metric{Name: "redeliveries_total", Help: "R.", Kind: observe.Counter, Label: "queue", Read: func() map[string]float64 {
			return map[string]float64{"a": 1, "b": 2}
		}},
	))
	var reason atomic.Pointer[string]
	say := func(text string) { reason.Store(&text) }
	say("not connected to NATS")
	server, err := observe.Listen(t.Context(), "127.0.0.1:0", set, observe.Health{Detail: detail{Level: "high"}, Ready: func() error {
		if text := *reason.Load(); text != "" {
			return errors.New(text)
		}
		return nil
	}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	accept := ""
	get := func(path string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Address()+path, nil)
		require.NoError(t, err)
		request.Header.Set("Accept", accept)
		resp, err := client.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		return resp.StatusCode, string(body)
	}

	code, body := get("/healthz")
	require.Equal(t, 200, code)
	require.Equal(t, "ok\n", body)
	code, body = get("/readyz")
	require.Equal(t, 503, code)
	require.Equal(t, "not connected to NATS\n", body)
	code, body = get("/readyz?verbose")
	require.Equal(t, 503, code)
	require.Equal(t, "not connected to NATS\nlevel: high\n", body)
	accept = "application/json"
	code, body = get("/readyz")
	require.Equal(t, 503, code)
	require.JSONEq(t, `{"ready": false, "reason": "not connected to NATS", "detail": {"level": "high"}}`, body)
	say("")
	code, body = get("/readyz")
	require.Equal(t, 200, code)
	require.JSONEq(t, `{"ready": true, "detail": {"level": "high"}}`, body)
	accept = ""
	code, body = get("/readyz")
	require.Equal(t, 200, code)
	require.Equal(t, "ok\n", body)
	slots.Store(7)
	_, body = get("/metrics")
	require.Contains(t, body, "sallyport_slots 7\n")
	require.Contains(t, body, `sallyport_redeliveries_total{queue="b"} 2`)
	require.Contains(t, body, `sallyport_build_info{version="1.2.3"} 1`)
	code, _ = get("/secret")
	require.Equal(t, 404, code)

	stop()
	require.NoError(t, <-done)
	var d net.Dialer
	_, err = d.DialContext(t.Context(), "tcp", server.Address())
	require.Error(t, err)
}

func TestAddressTaken(t *testing.T) {
	set, err := observe.NewSet("x")
	require.NoError(t, err)
	first, err := observe.Listen(t.Context(), "127.0.0.1:0", set, observe.Health{Ready: func() error { return nil }})
	require.NoError(t, err)
	_, err = observe.Listen(t.Context(), first.Address(), set, observe.Health{Ready: func() error { return nil }})
	require.ErrorContains(t, err, "health and metrics address")
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
}

func TestMetricNameTwice(t *testing.T) {
	set, err := observe.NewSet("x")
	require.NoError(t, err)
	m := observe.Metric{Name: "slots", Help: "s", Kind: observe.Gauge, Read: func() map[string]float64 { return observe.One(1) }}
	require.NoError(t, set.Add(m))
	require.Error(t, set.Add(m))
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := observe.Logger(&out, "warn", false)
	require.NoError(t, err)
	log.Info().Msg("quiet")
	log.Warn().Str(observe.KeyLease, "l1").Msg("loud")
	require.NotContains(t, out.String(), "quiet")
	require.Contains(t, out.String(), `"lease":"l1"`)
	for _, level := range []string{"", "loud"} {
		_, err = observe.Logger(&out, level, false)
		require.Error(t, err)
	}
}
