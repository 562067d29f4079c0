package config

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// createOSKeyVariable is the variable of the service's own tools. The provider sends
// what it holds to the official service alone.
const createOSKeyVariable = "CREATEOS_API_KEY"

// EnvPrefix begins the name of every environment variable that is ours.
const EnvPrefix = "SALLYPORT_"

// Config is the effective configuration of one process, validated.
type Config struct {
	NATS NATS

	// SubjectPrefix begins every subject, StreamPrefix every stream name.
	SubjectPrefix, StreamPrefix string

	// Queues is what the streams are planned for and what a worker pulls from; at
	// least one.
	Queues []Queue
	// FleetSlots is the number of jobs that all workers together may run, 1 to
	// 100,000. It bounds the unacknowledged messages of each queue.
	FleetSlots int
	// FleetWorkers is the number of workers that may wait for jobs at once, 1 to
	// 10,000.
	FleetWorkers int
	// Replicas of each stream: 1, 3 or 5.
	Replicas int
	// AckWait is how long the queue waits for a sign of life of a running job
	// before it delivers the job again.
	AckWait time.Duration
	// ResultRetention is how long a finished job's record and result are kept,
	// OutputRetention the same for stored output.
	ResultRetention, OutputRetention time.Duration
	// ReplyAllow lists the reply subjects that a job may name; {tenant} stands for
	// the job's tenant, a last token > for one or more tokens.
	ReplyAllow []string

	// Slots is the number of jobs that this worker runs at once, 1 to 1024.
	Slots int
	// Drain is how long a stopping worker lets its jobs run on.
	Drain time.Duration
	// StateDir holds what must survive this process: leases, the instance's lock,
	// and for dev the streams.
	StateDir string
	// HTTP is the address of /healthz, /readyz and /metrics; empty means none.
	HTTP string
	// Listen is the NATS address of dev's own server.
	Listen string
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// Require lists what this host must be able to isolate or limit; see
	// Requirements.
	Require []string
	// EpochBound is within which a worker renews its sign of life in the ledger,
	// where it has sandboxes that outlive it: others end them twice as long after
	// the last one.
	EpochBound time.Duration
	// CreateDeadline is how long after it was asked for a sandbox may still appear:
	// until then a reaper takes "not found" for no proof that there is none.
	CreateDeadline time.Duration
	// SweepInterval is the time between two looks of a reaper for sandboxes without
	// an owner.
	SweepInterval time.Duration
	// FakeWorld is a directory in which the fake provider's sandboxes live on when
	// their worker dies; empty means that they are in the worker's memory.
	FakeWorld string
	// CreateOS is the service behind profiles of the provider createos.
	CreateOS CreateOS
	// Profiles by name; never empty.
	Profiles map[string]Profile
}

// CreateOS is how to reach the CreateOS API and what sandboxes are like there. A zero
// value takes the provider's default, which checks all of it where a profile needs it.
type CreateOS struct {
	URL                   string
	Key, KeyFile, EnvKey  string
	Account, NamePrefix   string
	Shape, Rootfs, Region string
	Egress, Temporary     []string
	Workspace             string
	DiskBytes             int64
	PauseIdle             bool
	AutoPause, Pace       time.Duration
	Timeout               time.Duration
	// Bounds of single calls and waits, as the provider's page says.
	RequestTimeout, CleanupTimeout time.Duration
	GateTimeout, IdleTimeout       time.Duration
	Poll, SecondLook               time.Duration
	Reconnects                     int
	ReconnectDelay                 time.Duration
	// Scripted has dev stand in for the service with a server of its own.
	Scripted bool
}

// NATS is how to connect, under the names of the nats tool.
type NATS struct {
	Server, Context        string
	User, Password, Token  string
	Creds, NKey            string
	TLSCert, TLSKey, TLSCA string
	TLSFirst               bool
	InboxPrefix            string
	// Timeout bounds the first connection and each request.
	Timeout time.Duration
}

// Queue is one queue of jobs.
type Queue struct {
	Name string
	// Weight is the queue's share of a worker's pulls beside its other queues, 1 to
	// 100.
	Weight int
	// Concurrency is the number of this queue's jobs that one worker runs at once,
	// at most 100,000; 0 means no bound but its slots.
	Concurrency int
}

// Sources are where a configuration comes from.
type Sources struct {
	// File is a path; empty means what SALLYPORT_CONFIG says, or no file.
	File string
	// Environ is the process's environment, "NAME=value".
	Environ []string
	// Flags has the text of each flag that was given, by key.
	Flags map[string]string
	// Dev takes the defaults of the dev command: a state directory of its own,
	// namespaces as the only requirement, and a profile named fake.
	Dev bool
	// WithCreateOS adds to dev's a stand-in for the CreateOS service, and a profile
	// named createos.
	WithCreateOS bool
	// Root says that the process may write to /var/lib; CPUs is how many it has.
	Root bool
	CPUs int
}

// Load merges the sources and checks the whole. The error is of type MistakesError,
// except where the file cannot be read.
func Load(src Sources) (*Config, error) {
	l := &loader{cfg: defaults(src), settings: settings()}
	if err := l.file(src); err != nil {
		return nil, err
	}
	l.environ(src.Environ)
	l.cfg.CreateOS.EnvKey = envOf(src.Environ, createOSKeyVariable)
	l.flags(src.Flags)
	l.profiles()
	l.check()
	if len(l.mistakes) > 0 {
		return nil, l.mistakes
	}
	return l.cfg, nil
}

// loader collects the values and the mistakes of all sources.
type loader struct {
	cfg      *Config
	settings []setting
	given    map[string]*givenProfile
	mistakes MistakesError
}

func (l *loader) mistake(where, key, message string) {
	l.mistakes = append(l.mistakes, Mistake{Where: where, Key: key, Message: message})
}

func (l *loader) setting(key string) *setting {
	for i := range l.settings {
		if l.settings[i].key == key {
			return &l.settings[i]
		}
	}
	return nil
}

// set gives the words of one source to a setting.
func (l *loader) set(where string, s *setting, words []string) {
	err := s.set(l.cfg, words)
	if err == nil {
		return
	}
	value := quote(strings.Join(words, ","))
	if s.secret {
		value = "the value"
	}
	l.mistake(where, s.key, value+" "+err.Error())
}

func (l *loader) environ(environ []string) {
	sort.Strings(environ)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours || name == EnvPrefix+"CONFIG" {
			continue
		}
		key := strings.ToLower(rest)
		if s := l.setting(key); s != nil && name == s.env() {
			l.set("environment "+name, s, s.split(value))
			continue
		}
		if key == keyProfiles {
			l.mistake("environment "+name, "", "profiles stand in the file only")
			continue
		}
		var names []string
		for _, s := range l.settings {
			names = append(names, s.env())
		}
		l.mistake("environment", "", "unknown variable "+name+suggest(name, append(names, EnvPrefix+"CONFIG")))
	}
}

func (l *loader) flags(flags map[string]string) {
	for _, s := range l.settings {
		if text, ok := flags[s.key]; ok {
			l.set("flag "+s.flag(), &s, s.split(text))
		}
	}
}

// defaults is the configuration that an empty file means.
func defaults(src Sources) *Config {
	cfg := &Config{
		NATS:            NATS{Timeout: 5 * time.Second},
		SubjectPrefix:   "exec",
		StreamPrefix:    "EXEC",
		Queues:          []Queue{{Name: "default", Weight: 1}},
		FleetSlots:      256,
		FleetWorkers:    64,
		Replicas:        1,
		AckWait:         60 * time.Second,
		ResultRetention: 3 * 24 * time.Hour,
		OutputRetention: 24 * time.Hour,
		ReplyAllow:      []string{"_INBOX.>", "reply.{tenant}.>"},
		Slots:           max(2, src.CPUs),
		Drain:           30 * time.Second,
		StateDir:        stateDir(src),
		Listen:          "127.0.0.1:4222",
		LogLevel:        "info",
		EpochBound:      time.Minute,
		CreateDeadline:  10 * time.Minute,
		SweepInterval:   time.Minute,
		CreateOS:        CreateOS{Egress: []string{}, Temporary: []string{}},
		Require:         []string{RequireNamespaces, RequireMemory, RequireCPU, RequirePids},
	}
	if src.Dev {
		cfg.Require = []string{RequireNamespaces}
	}
	cfg.Profiles = map[string]Profile{"default": builtin("default", "local")}
	if src.Dev {
		cfg.Profiles["fake"] = builtin("fake", "fake")
	}
	if src.WithCreateOS {
		p := builtin("createos", "local")
		p.become("createos")
		cfg.Profiles[p.Name] = p
		cfg.CreateOS.Scripted, cfg.CreateOS.Shape, cfg.CreateOS.Pace = true, "s-1vcpu-256mb", time.Millisecond
	}
	return cfg
}

// stateDir is /var/lib/sallyport for root, and below the user's state directory
// (XDG Base Directory Specification) for anyone else and for dev.
func stateDir(src Sources) string {
	if src.Root && !src.Dev {
		return "/var/lib/sallyport"
	}
	base := envOf(src.Environ, "XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		base = filepath.Join(envOf(src.Environ, "HOME"), ".local", "state")
	}
	if src.Dev {
		return filepath.Join(base, "sallyport", "dev")
	}
	return filepath.Join(base, "sallyport")
}

func envOf(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func readFile(path string) ([]byte, error) {
	const most = 1 << 20 // a configuration beyond 1 MiB is a wrong path
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() || info.Size() > most {
		return nil, &os.PathError{Op: "read", Path: path, Err: errNotConfig}
	}
	return os.ReadFile(path)
}
