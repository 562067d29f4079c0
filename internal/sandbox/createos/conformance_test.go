package createos_test

import (
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
)

const testKey = "test-key"

// serve starts a scripted server.
func serve(t *testing.T, change ...func(*createostest.Config)) *createostest.Server {
	t.Helper()
	config := createostest.Config{APIKey: testKey, HoldBack: true, StrictParents: true}
	for _, c := range change {
		c(&config)
	}
	server, err := createostest.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	require.NoError(t, server.Start(t.Context()))
	return server
}

// quick is a configuration for a server that is near.
func quick(t *testing.T, url string) createos.Config {
	return createos.Config{
		APIURL: url, APIKey: testKey, Shape: "s-1vcpu-256mb", Reuse: true,
		Pace: time.Microsecond, Poll: 2 * time.Millisecond, SecondLook: 100 * time.Millisecond, ReconnectDelay: 5 * time.Millisecond,
		Log: zerolog.New(zerolog.NewTestWriter(t)),
	}
}

func provide(t *testing.T, config createos.Config) *createos.Provider {
	t.Helper()
	p, err := createos.New(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestConformance(t *testing.T) {
	t.Parallel()
	// Without reuse, sandboxes differ in how they begin and end, not in how they run.
	groups := map[string][]string{"Reuse": nil, "Never": {"Life", "Start", "Reset", "Race"}}
	if os.Getenv("SALLYPORT_SOAK") != "" {
		groups["Never"] = nil
	}
	for name := range groups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t)
			sandboxtest.Run(t, sandboxtest.Harness{
				New: func(t *testing.T) sandbox.Provider {
					config := quick(t, server.URL())
					config.Reuse = name == "Reuse"
					return provide(t, config)
				},
				Groups:  groups[name],
				Command: sandboxtest.Shell,
				Env:     []string{"PATH=/usr/bin:/bin"},
				Spec:    sandbox.Spec{Profile: "test"},
				Cwd:     "/tmp",
				StartErrors: map[sandbox.StartReason]sandbox.Process{
					sandbox.StartNotFound:      {Argv: []string{"/no/such/program"}},
					sandbox.StartNotExecutable: {Argv: []string{"/etc/passwd"}},
					sandbox.StartBadCwd:        {Argv: []string{"true"}, Cwd: "/no/such/dir"},
				},
				Break: func(t *testing.T, box sandbox.Sandbox) {
					require.NoError(t, server.Vanish(box.Handle().Detail["id"]))
				},
			})
			for _, box := range server.Sandboxes() {
				require.False(t, box.Live(), "%+v", box)
			}
			require.Empty(t, server.LiveProcesses())
		})
	}
}
