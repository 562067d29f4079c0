package createos

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// OfficialOrigin is the public service. A key from the environment is sent nowhere else.
const OfficialOrigin = "https://api.sb.createos.sh"

// Secret is a text that prints as stars.
type Secret string

// String hides the secret, wherever it is printed.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "****"
}

// GoString hides it from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides it from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Config is how sandboxes are made. Zero values take the defaults that the fields name;
// the words in parentheses are the keys under which mistakes are reported.
type Config struct {
	// Name is the provider's token (name); default "createos".
	Name string
	// APIURL is the service's origin (api_url); default OfficialOrigin. HTTPS, or HTTP on
	// this host's loopback. Its path may be /v1.
	APIURL string
	// APIKey (api_key) is used before APIKeyFile (api_key_file), a file of at most 4 KiB
	// that holds nothing else, and that before EnvAPIKey, the value of CREATEOS_API_KEY,
	// which is sent to OfficialOrigin alone.
	APIKey     Secret
	APIKeyFile string
	EnvAPIKey  Secret
	// Account is the operator's word for the owner of the key (account), by which
	// sandboxes are told from those of other accounts; default "default". It must change
	// with the owner, and must not when a key is replaced.
	Account string
	// NamePrefix is our mark on sandboxes (name_prefix); default "sallyport-". Two
	// installations that share an account need two: each destroys what carries its mark
	// and nobody owns.
	NamePrefix string
	// Shape is the size of the sandboxes (shape). Required.
	Shape string
	// Rootfs is the image or template (rootfs), Region where they are made (region);
	// empty leaves the choice to the service. A profile's root goes before Rootfs.
	Rootfs, Region string
	// DiskBytes is the size of a sandbox's disk (disk_bytes), in whole MiB; 0 leaves the
	// choice to the service.
	DiskBytes int64
	// Egress is what sandboxes may reach (egress): domain names and CIDRs, at most 64, or
	// "*" for everything. Empty means nothing.
	Egress []string
	// Reuse says that sandboxes may be reset and used again (reuse); see the package
	// comment for what a reset is.
	Reuse bool
	// AutoPause is the idle time after which the service pauses a sandbox that may be
	// used again (auto_pause), 1 min to 24 h in whole seconds; default 10 min.
	AutoPause time.Duration
	// PauseIdle pauses a sandbox after each reset (pause_idle) instead of leaving it
	// warm for AutoPause. It costs the time to resume it.
	PauseIdle bool
	// Timeout bounds the making of a sandbox, from the call to the workspace (timeout),
	// and the resuming of one; 1 ms to 24 h in whole milliseconds, default 5 min.
	Timeout time.Duration
	// RequestTimeout bounds one call with its body (request_timeout); default 1 min.
	RequestTimeout time.Duration
	// CleanupTimeout bounds the end of what failed (cleanup_timeout), on its own clock;
	// default 30 s.
	CleanupTimeout time.Duration
	// Pace is the least time between the starts of two calls to the origin (pace);
	// default 300 ms, which stays below the service's 300 a minute.
	Pace time.Duration
	// Pacer is shared by all providers of one origin in the process; nil makes one.
	Pacer *Pacer
	// Poll is the time between two looks at what changes (poll); default 250 ms.
	Poll time.Duration
	// SecondLook is how much later a second look must find nothing, too, before a
	// sandbox whose id is not known is believed gone (second_look); default 2 s.
	SecondLook time.Duration
	// Reconnects is how often in a row, without progress, an output stream is connected
	// again (reconnects), at most 100; default 3. ReconnectDelay is the time before
	// (reconnect_delay); default 250 ms. All together there are at most 100 a run.
	Reconnects     int
	ReconnectDelay time.Duration
	// IdleTimeout is how long an output stream may be silent, heartbeats included, before
	// the process is looked at (idle_timeout); default 30 s.
	IdleTimeout time.Duration
	// GateTimeout is how long a process waits for its gate (gate_timeout), 1 s or more;
	// default 5 min.
	GateTimeout time.Duration
	// Workspace is the directory of a run (workspace); default "/workspace".
	Workspace string
	// Temporary are the directories that a reset empties, too (temporary); default
	// /tmp, /var/tmp and /dev/shm. The first one holds what is ours.
	Temporary []string
	// Log gets what happens, without secrets, input or output.
	Log zerolog.Logger
}

const (
	minAutoPause = time.Minute
	maxAutoPause = 24 * time.Hour
	maxTimeout   = 24 * time.Hour
	maxKeyBytes  = 4 << 10
	maxEgress    = 64
	maxDiskBytes = 1 << 50
)

// Validate returns all mistakes at once, each with its key.
func (c Config) Validate() error {
	_, _, err := c.resolve()
	return err
}

// resolve fills the defaults in, checks everything and reads the key.
func (c Config) resolve() (Config, Secret, error) {
	c = c.withDefaults()
	var bad mistakes
	c.checkNames(&bad)
	c.checkTimes(&bad)
	c.checkPlaces(&bad)
	origin, err := parseOrigin(c.APIURL)
	bad.add("api_url", err)
	c.APIURL = origin
	key, err := c.key()
	bad.add("api_key", err)
	return c, key, errors.Join(bad...)
}

func (c Config) withDefaults() Config {
	orDefault(&c.Name, "createos")
	orDefault(&c.APIURL, OfficialOrigin)
	orDefault(&c.Account, "default")
	orDefault(&c.NamePrefix, "sallyport-")
	orDefault(&c.AutoPause, 10*time.Minute)
	orDefault(&c.Timeout, 5*time.Minute)
	orDefault(&c.RequestTimeout, time.Minute)
	orDefault(&c.CleanupTimeout, 30*time.Second)
	orDefault(&c.Pace, 300*time.Millisecond)
	orDefault(&c.Poll, 250*time.Millisecond)
	orDefault(&c.SecondLook, 2*time.Second)
	orDefault(&c.Reconnects, 3)
	orDefault(&c.ReconnectDelay, 250*time.Millisecond)
	orDefault(&c.IdleTimeout, 30*time.Second)
	orDefault(&c.GateTimeout, 5*time.Minute)
	orDefault(&c.Workspace, "/workspace")
	if len(c.Temporary) == 0 {
		c.Temporary = []string{"/tmp", "/var/tmp", "/dev/shm"}
	}
	return c
}

func orDefault[T comparable](v *T, byDefault T) {
	var zero T
	if *v == zero {
		*v = byDefault
	}
}

func (c Config) checkNames(bad *mistakes) {
	bad.check(token(c.Name, 64), "name", "must be a token of letters, digits, - and _, at most 64")
	bad.check(token(c.NamePrefix, 32), "name_prefix", "must be a token of letters, digits, - and _, at most 32")
	bad.text("account", c.Account)
	if c.Shape == "" {
		bad.check(false, "shape", "is required: the size of the sandboxes")
	} else {
		bad.text("shape", c.Shape)
	}
	if c.Rootfs != "" {
		bad.text("rootfs", c.Rootfs)
	}
	if c.Region != "" {
		bad.text("region", c.Region)
	}
	bad.check(len(c.Egress) <= maxEgress, "egress", "has %d entries, more than %d", len(c.Egress), maxEgress)
	for i, entry := range c.Egress {
		bad.text(fmt.Sprintf("egress[%d]", i), entry)
		bad.check(!slices.Contains(c.Egress[:i], entry), fmt.Sprintf("egress[%d]", i), "stands there twice")
		bad.check(entry != "*" || len(c.Egress) == 1, fmt.Sprintf("egress[%d]", i), "* allows everything: leave the others out, or it")
	}
	bad.check(c.DiskBytes >= 0 && c.DiskBytes <= maxDiskBytes && c.DiskBytes%(1<<20) == 0, "disk_bytes", "must be whole MiB, at most 1 PiB")
}

func (c Config) checkTimes(bad *mistakes) {
	bad.check(c.Timeout >= time.Millisecond && c.Timeout <= maxTimeout && c.Timeout%time.Millisecond == 0,
		"timeout", "must be whole milliseconds, 1 ms to 24 h")
	bad.check(c.AutoPause >= minAutoPause && c.AutoPause <= maxAutoPause && c.AutoPause%time.Second == 0,
		"auto_pause", "must be whole seconds, 1 min to 24 h")
	bad.check(!c.PauseIdle || c.Reuse, "pause_idle", "needs reuse: nothing else is idle after a job")
	for _, d := range []struct {
		key string
		is  time.Duration
	}{
		{"request_timeout", c.RequestTimeout},
		{"cleanup_timeout", c.CleanupTimeout},
		{"pace", c.Pace},
		{"poll", c.Poll},
		{"second_look", c.SecondLook},
		{"reconnect_delay", c.ReconnectDelay},
		{"idle_timeout", c.IdleTimeout},
	} {
		bad.check(d.is > 0 && d.is <= maxTimeout, d.key, "must be above 0 and at most 24 h")
	}
	bad.check(c.GateTimeout >= time.Second && c.GateTimeout <= maxTimeout, "gate_timeout", "must be 1 s to 24 h")
	bad.check(c.Reconnects > 0 && c.Reconnects <= maxReconnects, "reconnects", "must be 1 to %d", maxReconnects)
}

func (c Config) checkPlaces(bad *mistakes) {
	place := func(key, p string) {
		bad.check(path.IsAbs(p) && path.Clean(p) == p && p != "/" && plain(p), key, "must be a clean absolute path that is not /")
	}
	place("workspace", c.Workspace)
	for i, p := range c.Temporary {
		key := fmt.Sprintf("temporary[%d]", i)
		place(key, p)
		bad.check(!strings.HasPrefix(c.Workspace+"/", p+"/") && !strings.HasPrefix(p+"/", c.Workspace+"/"), key, "and the workspace must not lie in each other")
	}
}

// parseOrigin checks an API address and reduces it to its origin.
func parseOrigin(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", errors.New("is no URL") // the parser's words would repeat a password in it
	case u.User != nil:
		return "", errors.New("must not hold a user or password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return "", errors.New("must not have a query or a fragment")
	case u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		return "", errors.New("has no host")
	case !slices.Contains([]string{"", "/", "/v1", "/v1/"}, u.EscapedPath()):
		return "", errors.New("must be an origin: its path may be /v1 and nothing else")
	case u.Scheme == "https":
	case u.Scheme == "http" && slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname()):
	default:
		return "", errors.New("must be HTTPS, or HTTP on localhost, 127.0.0.1 or [::1]")
	}
	return u.Scheme + "://" + strings.ToLower(u.Host), nil
}

// key is the key to use; it depends on where it would be sent.
func (c Config) key() (Secret, error) {
	key := c.APIKey
	if key == "" && c.APIKeyFile != "" {
		text, err := readKey(c.APIKeyFile)
		if err != nil {
			return "", err
		}
		key = text
	}
	if key == "" && c.EnvAPIKey != "" {
		if c.APIURL != OfficialOrigin {
			return "", errors.New("the key from the environment is sent to " + OfficialOrigin + " alone; give api_key or api_key_file for another api_url")
		}
		key = c.EnvAPIKey
	}
	switch {
	case key == "":
		return "", errors.New("is required: api_key, api_key_file, or CREATEOS_API_KEY in the environment")
	case len(key) > maxKeyBytes || strings.ContainsFunc(string(key), func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", errors.New("must be printable ASCII without spaces, at most 4 KiB")
	}
	return key, nil
}

// readKey reads a key file. The file's content stands in no error.
func readKey(name string) (Secret, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("api_key_file: %w", err)
	}
	data := make([]byte, maxKeyBytes+2)
	n, err := readFull(file, data)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("api_key_file: %w", err)
	}
	key := strings.TrimRight(string(data[:n]), "\r\n")
	if key == "" {
		return "", errors.New("api_key_file: is empty")
	}
	return Secret(key), nil
}

// mistakes collects what is wrong with a configuration.
type mistakes []error

func (m *mistakes) check(ok bool, key, format string, args ...any) {
	if !ok {
		*m = append(*m, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
}

func (m *mistakes) add(key string, err error) {
	if err != nil {
		*m = append(*m, fmt.Errorf("%s: %w", key, err))
	}
}

func (m *mistakes) text(key, value string) {
	m.check(value != "" && strings.TrimSpace(value) == value && plain(value) && len(value) <= 256,
		key, "must be a text without spaces around it or control characters, 1 to 256 bytes")
}

func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' })
}

// token says that s can stand in a path, a name or a subject.
func token(s string, most int) bool {
	return s != "" && len(s) <= most && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}
