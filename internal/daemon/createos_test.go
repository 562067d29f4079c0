package daemon_test

import (
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

const remoteProfile = "profiles: {cloud: {provider: createos}}\n"

// The doctor makes a remote sandbox where a profile would have one, and says what the
// service answers where it cannot.
func TestExamineRemoteProfiles(t *testing.T) {
	server, err := createostest.New(createostest.Config{APIKey: "right"})
	require.NoError(t, err)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	examine := func(key string) daemon.Check {
		cfg := localConfig(t, remoteProfile+"createos_shape: s-1vcpu-256mb\ncreateos_pace: 1ms\ncreateos_api_url: "+server.URL()+
			"\ncreateos_api_key: "+key+"\n", map[string]string{"require": "namespaces"})
		checks, err := daemon.Examine(t.Context(), cfg, zerolog.Nop())
		require.NoError(t, err)
		for _, c := range checks {
			if c.Name == "createos" {
				return c
			}
		}
		require.Fail(t, "the doctor did not look at the service")
		return daemon.Check{}
	}
	require.True(t, examine("right").OK)
	for _, box := range server.Sandboxes() {
		require.NotEqual(t, "running", box.Status)
	}
	wrong := examine("wrong")
	require.False(t, wrong.OK)
	require.True(t, wrong.Needed)
	require.Contains(t, wrong.Detail, "401")
}

// What is wrong with the service's settings is named as the configuration names it,
// all at once, before anything is sent.
func TestMistakesOfRemoteProfiles(t *testing.T) {
	cfg := localConfig(t, remoteProfile+"createos_api_url: http://example.org\n", map[string]string{"require": "namespaces"})
	planned(t, cfg)
	err := daemon.RunWorker(t.Context(), t.Context(), cfg, zerolog.Nop(), daemon.Build{}, false)
	var mistakes config.MistakesError
	require.ErrorAs(t, err, &mistakes)
	require.ErrorContains(t, err, "createos_shape")
	require.ErrorContains(t, err, "createos_api_url")
	require.ErrorContains(t, err, "createos_api_key")
}
