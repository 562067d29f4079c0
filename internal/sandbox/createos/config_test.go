package createos_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos"
)

func good() createos.Config {
	return createos.Config{APIKey: "k", Shape: "s-1vcpu-256mb"}
}

func TestConfigAddresses(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"": true, "https://api.sb.createos.sh": true, "https://api.sb.createos.sh/": true, "https://api.sb.createos.sh/v1": true,
		"https://api.sb.createos.sh/v1/": true, "https://example.com:8443/v1/": true, "http://localhost:1": true,
		"http://127.0.0.1:80/v1": true, "http://[::1]:80": true,
		"https://user@example.com": false, "https://user:secret@example.com": false, "https://example.com?a=b": false,
		"https://example.com?": false, "https://example.com#x": false, "https://example.com#": false,
		"http://example.com": false, "http://127.0.0.2": false, "http://localhost.example.com": false, "file:///etc/passwd": false,
		"https://example.com/v2": false, "https://example.com/v1/x": false, "https://": false, "example.com": false, "https:example.com": false,
		"https://example.com/%761": false, "ftp://example.com": false, "://": false,
	} {
		config := good()
		config.APIURL = address
		err := config.Validate()
		if ok {
			require.NoError(t, err, address)
			continue
		}
		require.ErrorContains(t, err, "api_url: ", address)
		require.NotContains(t, err.Error(), "secret")
	}
}

// The key from the environment is for the official service alone; one that was configured
// goes where the configuration says.
func TestConfigKeyGoesOnlyWhereItMay(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"": true, "https://api.sb.createos.sh/v1": true, "https://API.sb.createos.sh": true,
		"https://api.sb.createos.sh:8443": false, "https://api.sb.createos.sh.example.com": false, "https://api-sb.createos.sh": false,
		"http://127.0.0.1:1234": false, "https://example.com": false,
	} {
		config := createos.Config{Shape: "s", APIURL: address, EnvAPIKey: "from-env"}
		if ok {
			require.NoError(t, config.Validate(), address)
		} else {
			require.ErrorContains(t, config.Validate(), "api_key: the key from the environment", address)
		}
		_, err := createos.New(t.Context(), config)
		require.Equal(t, ok, err == nil, address)
		config.APIKey = "configured"
		require.NoError(t, config.Validate(), address)
	}
	require.ErrorContains(t, createos.Config{Shape: "s"}.Validate(), "api_key: is required")
	for _, key := range []createos.Secret{"a\nb", "a\rb", "a\x00b", "a b", "é", createos.Secret(strings.Repeat("x", 5000))} {
		require.ErrorContains(t, createos.Config{Shape: "s", APIKey: key}.Validate(), "api_key: must be")
	}
}

func TestConfigKeyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	require.NoError(t, createos.Config{Shape: "s", APIKeyFile: write("good", "key\n")}.Validate())
	for _, name := range []string{write("empty", "\n"), write("two", "a\nsecret"), write("long", strings.Repeat("x", 1<<16)), filepath.Join(dir, "absent")} {
		err := createos.Config{Shape: "s", APIKeyFile: name, EnvAPIKey: "k"}.Validate()
		require.ErrorContains(t, err, "api_key: ", name)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestConfigTimes(t *testing.T) {
	t.Parallel()
	for d, ok := range map[time.Duration]bool{
		0: true, time.Millisecond: true, 24 * time.Hour: true,
		-1: false, -time.Millisecond: false, 1500 * time.Microsecond: false, 24*time.Hour + time.Millisecond: false, time.Microsecond: false,
	} {
		config := good()
		config.Timeout = d
		require.Equal(t, ok, config.Validate() == nil, d)
	}
	for d, ok := range map[time.Duration]bool{
		0: true, time.Minute: true, 24 * time.Hour: true,
		59 * time.Second: false, 24*time.Hour + time.Second: false, time.Minute + time.Millisecond: false, -time.Minute: false,
	} {
		config := good()
		config.AutoPause = d
		require.Equal(t, ok, config.Validate() == nil, d)
	}
}

func TestConfigNamesAllMistakes(t *testing.T) {
	t.Parallel()
	err := createos.Config{
		Name: "a b", APIURL: "ftp://x", Account: " x", NamePrefix: "no.dots", Rootfs: "a\x00", Region: " ", DiskBytes: 5,
		Egress: []string{"a", "a", "*", ""}, PauseIdle: true, Timeout: -1, RequestTimeout: -1, CleanupTimeout: -1, Pace: -1, Poll: -1,
		SecondLook: -1, Reconnects: 101, ReconnectDelay: -1, IdleTimeout: -1, GateTimeout: time.Millisecond, AutoPause: 1,
		Workspace: "work", Temporary: []string{"/", "/tmp/../x"},
	}.Validate()
	require.Error(t, err)
	for _, key := range []string{
		"name", "api_url", "api_key", "account", "name_prefix", "shape", "rootfs", "region", "disk_bytes", "egress[1]", "egress[2]", "egress[3]",
		"pause_idle", "timeout", "request_timeout", "cleanup_timeout", "pace", "poll", "second_look", "reconnects", "reconnect_delay",
		"idle_timeout", "gate_timeout", "auto_pause", "workspace", "temporary[0]", "temporary[1]",
	} {
		require.Contains(t, "\n"+err.Error(), "\n"+key+": ", key)
	}
	config := good()
	config.Workspace = "/tmp/work"
	require.ErrorContains(t, config.Validate(), "temporary[0]: and the workspace")
	config = good()
	config.Egress = make([]string, 65)
	require.ErrorContains(t, config.Validate(), "egress: has 65")
}

func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	config := good()
	config.APIKey, config.EnvAPIKey = "hush", "hush"
	data, err := json.Marshal(struct{ Key createos.Secret }{config.APIKey})
	require.NoError(t, err)
	for _, text := range []string{fmt.Sprint(config), fmt.Sprintf("%+v", config), fmt.Sprintf("%#v", config), fmt.Sprintf("%s %q %v", config.APIKey, config.APIKey, config.APIKey), string(data)} {
		require.NotContains(t, text, "hush")
	}
	require.Empty(t, createos.Secret("").String())
}

func TestCapabilitiesSayTheTruth(t *testing.T) {
	t.Parallel()
	host := func(change func(c *createos.Config)) string {
		config := good()
		change(&config)
		p := provide(t, config)
		caps := p.Capabilities()
		require.Equal(t, "provider", caps.Scope)
		require.True(t, caps.OutlivesWorker)
		require.True(t, caps.Files)
		require.Equal(t, config.Reuse, caps.Reset)
		require.Len(t, caps.Unenforced, 7)
		require.NotContains(t, fmt.Sprint(caps), string(config.APIKey)+"ey")
		return caps.Host
	}
	same := host(func(*createos.Config) {})
	require.Equal(t, same, host(func(c *createos.Config) { c.APIKey = "key-after-rotation"; c.Reuse = true }), "a new key is the same account")
	require.Equal(t, same, host(func(c *createos.Config) { c.APIURL = "https://api.sb.createos.sh/v1/" }))
	for _, change := range []func(c *createos.Config){
		func(c *createos.Config) { c.Account = "other" },
		func(c *createos.Config) { c.APIURL = "https://example.com" },
		func(c *createos.Config) { c.NamePrefix = "other-" },
	} {
		require.NotEqual(t, same, host(change))
	}
	config := good()
	config.Egress = []string{"*"}
	require.Contains(t, fmt.Sprint(provide(t, config).Capabilities().Isolation.Missing), "everything is reachable")
}
