package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load writes text to a file named sallyport.yaml and loads it.
func load(t *testing.T, text string, change ...func(*config.Sources)) (*config.Config, error) {
	t.Helper()
	src := config.Sources{Environ: []string{"HOME=/home/ada"}, CPUs: 4}
	if text != "" {
		src.File = filepath.Join(t.TempDir(), "sallyport.yaml")
		require.NoError(t, os.WriteFile(src.File, []byte(text), 0o600))
	}
	for _, c := range change {
		c(&src)
	}
	return config.Load(src)
}

func TestDefaults(t *testing.T) {
	c, err := load(t, "")
	require.NoError(t, err)
	require.Equal(t, []config.Queue{{Name: "default", Weight: 1}}, c.Queues)
	require.Equal(t, 4, c.Slots)
	require.Equal(t, "/home/ada/.local/state/sallyport", c.StateDir)
	require.Equal(t, []string{"namespaces", "memory", "cpu", "pids"}, c.Require)
	require.Equal(t, time.Minute, c.AckWait)
	p := c.Profiles["default"]
	require.Equal(t, "local", p.Provider)
	require.Equal(t, "tenant", p.Reuse)
	require.Equal(t, time.Minute, p.Default.Wall)
	require.Equal(t, int64(16<<20), p.Default.OutputBytes)
	require.Equal(t, int64(4<<30), p.Max.MemoryBytes)
	require.NotContains(t, c.Profiles, "fake")
}

func TestDevDefaults(t *testing.T) {
	c, err := load(t, "", func(s *config.Sources) { s.Dev = true; s.Root = true })
	require.NoError(t, err)
	require.Equal(t, []string{"namespaces"}, c.Require)
	require.Equal(t, "fake", c.Profiles["fake"].Provider)
	require.Equal(t, "/home/ada/.local/state/sallyport/dev", c.StateDir)
}

func TestStateDirectory(t *testing.T) {
	c, err := load(t, "", func(s *config.Sources) { s.Root = true })
	require.NoError(t, err)
	require.Equal(t, "/var/lib/sallyport", c.StateDir)
	c, err = load(t, "", func(s *config.Sources) { s.Environ = []string{"HOME=/h", "XDG_STATE_HOME=/x"} })
	require.NoError(t, err)
	require.Equal(t, "/x/sallyport", c.StateDir)
}

func TestPrecedence(t *testing.T) {
	text := "slots: 3\ndrain: 3s\nack_wait: 3s\n"
	c, err := load(t, text, func(s *config.Sources) {
		s.Environ = append(s.Environ, "SALLYPORT_DRAIN=4s", "SALLYPORT_ACK_WAIT=4s")
		s.Flags = map[string]string{"ack_wait": "5s"}
	})
	require.NoError(t, err)
	require.Equal(t, 3, c.Slots)
	require.Equal(t, 4*time.Second, c.Drain)
	require.Equal(t, 5*time.Second, c.AckWait)
}

func TestFileFromEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte("slots: 7"), 0o600))
	c, err := config.Load(config.Sources{Environ: []string{"SALLYPORT_CONFIG=" + path}})
	require.NoError(t, err)
	require.Equal(t, 7, c.Slots)

	_, err = config.Load(config.Sources{File: path + ".missing"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFullFile(t *testing.T) {
	c, err := load(t, `
server: nats://a:4222,nats://b:4222
creds: /etc/x.creds
queues:
  - name: fast
    weight: 3
    concurrency: 2
  - slow:1:4
  - {name: bulk}
fleet_slots: 64
replicas: 3
result_retention: 7d
reply_allow: ["_INBOX.{tenant}.>", answers]
require: [memory]
profiles:
  default:
    limits:
      max: {memory: 256MiB, pids: 64}
  py:
    root: /srv/py
    reuse: never
    warm: 4
    max_age: 10m
    limits:
      default: {wall: 10s, cpu: 5s}
`)
	require.NoError(t, err)
	require.Equal(t, []config.Queue{{"fast", 3, 2}, {"slow", 1, 4}, {"bulk", 1, 0}}, c.Queues)
	require.Equal(t, 7*24*time.Hour, c.ResultRetention)
	require.Equal(t, []string{"_INBOX.{tenant}.>", "answers"}, c.ReplyAllow)
	require.Equal(t, []string{"namespaces", "memory"}, c.Require, "namespaces are always required")
	d := c.Profiles["default"]
	require.Equal(t, int64(256<<20), d.Max.MemoryBytes)
	require.Equal(t, int64(256<<20), d.Default.MemoryBytes, "the built-in default follows a lower maximum")
	require.Equal(t, int64(64), d.Default.Pids)
	py := c.Profiles["py"]
	require.Equal(t, "py", py.Name)
	require.Equal(t, "local", py.Provider)
	require.Equal(t, "never", py.Reuse)
	require.Equal(t, 4, py.Warm)
	require.Equal(t, 10*time.Minute, py.MaxAge)
	require.Equal(t, 10*time.Second, py.Default.Wall)
	require.Equal(t, 5*time.Second, py.Default.CPU)
	require.Equal(t, 4*time.Hour, py.Max.CPU)
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, err := load(t, `ack_wiat: 60s
drain: 10
slots: 0
http: 9310
password: hunter2
tlsfirst: perhaps
queues:
  - {name: a b, wieght: 2}
  - default
  - default
require: [memory, gpu]
reply_allow: ["*.>"]
profiles:
  py:
    provider: docker
    warmth: 1
    limits:
      max: {wall_ms: 3, memory: 64M}
      defaults: {wall: 1s}
      default: {wall: 2h, pids: 0}
`, func(s *config.Sources) {
		s.Environ = append(s.Environ, "SALLYPORT_SLOT=4", "SALLYPORT_TIMEOUT=soon", "SALLYPORT_PROFILES=x")
		s.Flags = map[string]string{"log_level": "wran"}
	})
	require.EqualError(t, err, strings.TrimSpace(`
configuration: 22 mistakes
  sallyport.yaml:1: unknown key ack_wiat; did you mean ack_wait?
  sallyport.yaml:2: drain: "10" is not a duration: write a number with a unit, like 500ms, 10s, 5m, 1h or 7d
  sallyport.yaml:3: slots: "0" is not a whole number from 1 to 1024
  sallyport.yaml:4: http: "9310" is not an address: write host:port, like 127.0.0.1:9310
  sallyport.yaml:6: tlsfirst: "perhaps" is neither true nor false
  sallyport.yaml:8: queues[0].name: "a b" is not a name: 1 to 64 of the characters A-Z a-z 0-9 _ -
  sallyport.yaml:8: unknown key queues[0].wieght; did you mean weight?
  sallyport.yaml:11: require: "memory,gpu" has "gpu", which is not one of namespaces, memory, cpu, pids, disk, cgroup-proof, uids; did you mean cpu?
  sallyport.yaml:12: reply_allow: "*.>" is not a reply subject: tokens separated by dots, no * and no spaces, like _INBOX.{tenant}.>
  sallyport.yaml:16: unknown key profiles.py.warmth; did you mean warm?
  sallyport.yaml:18: unknown key profiles.py.limits.max.wall_ms; did you mean wall?
  sallyport.yaml:19: unknown key profiles.py.limits.defaults; did you mean default?
  environment SALLYPORT_PROFILES: profiles stand in the file only
  environment: unknown variable SALLYPORT_SLOT; did you mean SALLYPORT_SLOTS?
  environment SALLYPORT_TIMEOUT: timeout: "soon" is not a duration: write a number with a unit, like 500ms, 10s, 5m, 1h or 7d
  flag --log-level: log_level: "wran" is not one of debug, info, warn, error; did you mean warn?
  sallyport.yaml:15: profiles.py.provider: "docker" is not one of local, createos, fake
  sallyport.yaml:18: profiles.py.limits.max.memory: "64M" is not a size: write bytes or a number with KiB, MiB or GiB, like 64MiB
  sallyport.yaml:20: profiles.py.limits.default.pids: "0" is zero; no job is unlimited, so leave the key out to take the built-in limit
  sallyport.yaml:20: profiles.py.limits.default.wall: "2h" is above the maximum 1h
  queues: "default" stands there twice
  password: is set without user
`))
}

func TestOneMistake(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"not yaml":       {"a: [", "sallyport.yaml: is not YAML"},
		"twice":          {"slots: 1\nslots: 2", "already defined"},
		"not a mapping":  {"- slots", "keys with values are expected here"},
		"two documents":  {"slots: 1\n---\nslots: 2", "more than one document"},
		"no value":       {"slots:", "sallyport.yaml:1: slots: has no value"},
		"list for one":   {"slots: [1, 2]", `"1,2" is a list; one value is expected`},
		"map for one":    {"slots: {a: 1}", "one value is expected here"},
		"alias":          {"server: &a x\nuser: *a", "without anchors, aliases or tags"},
		"no queues":      {"queues: []", "at least one queue is needed"},
		"queues text":    {"queues: default", "a list is expected"},
		"nameless queue": {"queues: [{weight: 2}]", "queues[0]: has no name"},
		"two logins":     {"user: a\ncreds: b", "creds: is set beside user"},
		"half a pair":    {"tlscert: a", "belong together"},
		"no replies":     {"reply_allow: []", "no caller can be answered"},
		"slots":          {"slots: 9\nfleet_slots: 8", "above fleet_slots"},
		"replicas":       {"replicas: 2", `"2" is not 1, 3 or 5`},
		"relative":       {"state_dir: x", "is not a path"},
		"range":          {"ack_wait: 1s", "is out of range: from 2s to 1h"},
		"fine wall":      {"profiles: {a: {limits: {max: {wall: 10us}}}}", "finer than a millisecond"},
		"profile name":   {"profiles: {a.b: {}}", `profiles: "a.b" is not a name`},
		"scalar profile": {"profiles: {a: 1}", "profiles.a: keys with values are expected here"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, c.text)
			var mistakes config.MistakesError
			require.ErrorAs(t, err, &mistakes)
			require.Contains(t, err.Error(), c.want)
		})
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	c, err := load(t, "user: ada\npassword: hunter2\n")
	require.NoError(t, err)
	text, err := c.YAML()
	require.NoError(t, err)
	require.NotContains(t, string(text), "hunter2")
	require.Contains(t, string(text), config.Masked)

	_, err = load(t, "user: ada\npassword: [hunter2, hunter3]\n")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter")
}

func TestPrintedConfigurationLoadsAgain(t *testing.T) {
	want, err := load(t, "queues: [a:2:3]\nreply_allow: ['_INBOX.{tenant}.>', '_R.>']\nprofiles: {py: {root: /srv, limits: {max: {wall: 90s}}}}", func(s *config.Sources) { s.Dev = true })
	require.NoError(t, err)
	text, err := want.YAML()
	require.NoError(t, err)
	got, err := load(t, string(text), func(s *config.Sources) { s.CPUs = 1 })
	require.NoError(t, err, "%s", text)
	require.Equal(t, want, got)

	text, err = want.JSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"fleet_slots": 256`)
}

func TestParseSizeAndDuration(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "1B": 1, "64KiB": 65536, "64 MiB": 64 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40} {
		n, err := config.ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "MiB", "1.5GiB", "64MB", "-1", "-1KiB", "9999999TiB", "9223372036854775807KiB"} {
		_, err := config.ParseSize(text)
		require.Error(t, err, text)
	}
	for text, want := range map[string]time.Duration{"0s": 0, "10s": 10 * time.Second, "7d": 168 * time.Hour, "1h30m": 90 * time.Minute} {
		d, err := config.ParseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d, text)
		again, err := config.ParseDuration(config.FormatDuration(d))
		require.NoError(t, err)
		require.Equal(t, d, again)
	}
	for _, text := range []string{"", "10", "-1s", "d", "99999999999d", "1w"} {
		_, err := config.ParseDuration(text)
		require.Error(t, err, text)
	}
}

func TestRootViews(t *testing.T) {
	for root, mistake := range map[string]string{
		"/srv/py": "", "overlay:/srv/py": "", "overlay:/srv/a:b": "",
		"srv/py": "is not an absolute path", "overlay:srv": "is not an absolute path", "overlay:": "is not an absolute path",
		"overlay:overlay:/srv": "is not an absolute path", "/srv/../etc": "which is /etc", "/srv/": "which is /srv",
		"/": "is the host's own root", "overlay:/": "is the host's own root",
	} {
		c, err := load(t, "profiles: {py: {root: '"+root+"'}}")
		if mistake != "" {
			require.ErrorContains(t, err, "profiles.py.root: \""+root+"\" ", root)
			require.ErrorContains(t, err, mistake)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, root, c.Profiles["py"].Root)
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	keys := append(config.Keys(), "profiles", "provider", "root", "shape", "reuse", "warm", "max_uses", "max_age", "idle_ttl", "limits",
		"wall", "grace", "cpu", "memory", "output", "disk", "inodes", "pids", "open_files", "cpu_share")
	for _, key := range keys {
		require.Contains(t, string(page), "`"+key+"`")
	}
}

// A profile of a remote provider has its own defaults and words; its key stands in no
// print.
func TestRemoteProfiles(t *testing.T) {
	c, err := load(t, `createos_shape: s-1vcpu-1gb
createos_api_key: hush
createos_egress: [example.org]
profiles:
  cloud: {root: python, shape: s-2vcpu-4gb, provider: createos}
  kept: {provider: createos, reuse: tenant, warm: 1}
`, func(s *config.Sources) {
		s.Environ = append(s.Environ, "CREATEOS_API_KEY=env", "SALLYPORT_CREATEOS_PACE=50ms")
	})
	require.NoError(t, err)
	require.Equal(t, config.CreateOS{
		Shape: "s-1vcpu-1gb", Key: "hush", EnvKey: "env", Egress: []string{"example.org"}, Temporary: []string{}, Pace: 50 * time.Millisecond,
	}, c.CreateOS)
	cloud := c.Profiles["cloud"]
	require.Equal(t, []any{"python", "s-2vcpu-4gb", "never", 0}, []any{cloud.Root, cloud.Shape, cloud.Reuse, cloud.Warm})
	kept := c.Profiles["kept"]
	require.Equal(t, []any{"tenant", 1}, []any{kept.Reuse, kept.Warm})
	text, err := c.YAML()
	require.NoError(t, err)
	require.NotContains(t, string(text), "hush")
	require.Contains(t, string(text), "createos_pace: 50ms")
	require.NotContains(t, string(text), "createos_poll", "the provider's default")

	_, err = load(t, "profiles:\n  default: {shape: big, root: python}\n")
	require.ErrorContains(t, err, "profiles.default.shape")
	require.ErrorContains(t, err, "profiles.default.root")
}
