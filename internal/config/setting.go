package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The requirements that --require may name.
const (
	RequireNamespaces = "namespaces"   // process, mount, network, user isolation, the filter and the proof; always required
	RequireMemory     = "memory"       // a cap on the memory of a whole tree
	RequireCPU        = "cpu"          // caps on the processor share and the processor time of a whole tree
	RequirePids       = "pids"         // a cap on the number of tasks
	RequireDisk       = "disk"         // caps on the workspace's bytes and files
	RequireProof      = "cgroup-proof" // a control group of each job that is seen empty at its end
	RequireUIDs       = "uids"         // uids of its own for each lease
)

// Requirements are the words that Require may hold.
func Requirements() []string {
	return []string{RequireNamespaces, RequireMemory, RequireCPU, RequirePids, RequireDisk, RequireProof, RequireUIDs}
}

// Keys are the keys of all settings that may be a flag.
func Keys() []string {
	var keys []string
	for _, s := range settings() {
		keys = append(keys, s.key)
	}
	return keys
}

const keyQueues, keyProfiles = "queues", "profiles"

// setting is one key outside profiles: how its words become a value and back.
type setting struct {
	key    string
	secret bool
	// list says that it takes any number of words: a sequence in the file,
	// separated by commas elsewhere.
	list bool
	// elsewhere says that a zero is the provider's default, and does not print.
	elsewhere bool
	// set's error reads on after the value: "is not a duration: …".
	set func(*Config, []string) error
	get func(*Config) []string
}

func (s setting) flag() string { return "--" + strings.ReplaceAll(s.key, "_", "-") }

func (s setting) env() string { return EnvPrefix + strings.ToUpper(s.key) }

// split makes words of a flag's or a variable's text.
func (s setting) split(text string) []string {
	if !s.list {
		return []string{text}
	}
	var words []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}

// settings are all keys outside profiles, in the order in which they print.
func settings() []setting {
	return slices.Concat(natsSettings(), ownSettings(), createOSSettings())
}

func ownSettings() []setting {
	return []setting{
		oneWord("subject_prefix", func(c *Config) *string { return &c.SubjectPrefix }, checkToken),
		oneWord("stream_prefix", func(c *Config) *string { return &c.StreamPrefix }, checkToken),
		queueSetting(),
		count("fleet_slots", func(c *Config) *int { return &c.FleetSlots }, 100_000),
		count("fleet_workers", func(c *Config) *int { return &c.FleetWorkers }, 10_000),
		replicaSetting(),
		duration("ack_wait", func(c *Config) *time.Duration { return &c.AckWait }, 2*time.Second, time.Hour),
		duration("result_retention", func(c *Config) *time.Duration { return &c.ResultRetention }, time.Minute, 365*24*time.Hour),
		duration("output_retention", func(c *Config) *time.Duration { return &c.OutputRetention }, time.Minute, 365*24*time.Hour),
		words("reply_allow", func(c *Config) *[]string { return &c.ReplyAllow }, checkReply),
		count("slots", func(c *Config) *int { return &c.Slots }, 1024),
		duration("drain", func(c *Config) *time.Duration { return &c.Drain }, 0, time.Hour),
		oneWord("state_dir", func(c *Config) *string { return &c.StateDir }, checkPath),
		oneWord("http", func(c *Config) *string { return &c.HTTP }, checkAddress),
		oneWord("listen", func(c *Config) *string { return &c.Listen }, checkAddress),
		oneWord("log_level", func(c *Config) *string { return &c.LogLevel }, among("debug", "info", "warn", "error")),
		words("require", func(c *Config) *[]string { return &c.Require }, among(Requirements()...)),
		duration("epoch_bound", func(c *Config) *time.Duration { return &c.EpochBound }, 2*time.Second, time.Hour),
		duration("create_deadline", func(c *Config) *time.Duration { return &c.CreateDeadline }, 2*time.Second, time.Hour),
		duration("sweep_interval", func(c *Config) *time.Duration { return &c.SweepInterval }, time.Second, time.Hour),
		oneWord("fake_world", func(c *Config) *string { return &c.FakeWorld }, optional(checkPath)),
	}
}

// createOSSettings are checked by the provider, which knows what fits together.
func createOSSettings() []setting {
	free := func(string) error { return nil }
	text := func(key string, at func(*CreateOS) *string) setting {
		return oneWord("createos_"+key, func(c *Config) *string { return at(&c.CreateOS) }, free)
	}
	span := func(key string, at func(*CreateOS) *time.Duration) setting {
		return duration("createos_"+key, func(c *Config) *time.Duration { return at(&c.CreateOS) }, 0, 24*time.Hour)
	}
	key := text("api_key", func(c *CreateOS) *string { return &c.Key })
	key.secret = true
	all := []setting{
		text("api_url", func(c *CreateOS) *string { return &c.URL }),
		key,
		text("api_key_file", func(c *CreateOS) *string { return &c.KeyFile }),
		text("account", func(c *CreateOS) *string { return &c.Account }),
		text("name_prefix", func(c *CreateOS) *string { return &c.NamePrefix }),
		text("shape", func(c *CreateOS) *string { return &c.Shape }),
		text("rootfs", func(c *CreateOS) *string { return &c.Rootfs }),
		text("region", func(c *CreateOS) *string { return &c.Region }),
		words("createos_egress", func(c *Config) *[]string { return &c.CreateOS.Egress }, free),
		size("createos_disk_bytes", func(c *Config) *int64 { return &c.CreateOS.DiskBytes }),
		text("workspace", func(c *CreateOS) *string { return &c.Workspace }),
		words("createos_temporary", func(c *Config) *[]string { return &c.CreateOS.Temporary }, free),
		boolean("createos_pause_idle", func(c *Config) *bool { return &c.CreateOS.PauseIdle }),
		span("auto_pause", func(c *CreateOS) *time.Duration { return &c.AutoPause }),
		span("pace", func(c *CreateOS) *time.Duration { return &c.Pace }),
		span("timeout", func(c *CreateOS) *time.Duration { return &c.Timeout }),
		span("request_timeout", func(c *CreateOS) *time.Duration { return &c.RequestTimeout }),
		span("cleanup_timeout", func(c *CreateOS) *time.Duration { return &c.CleanupTimeout }),
		span("gate_timeout", func(c *CreateOS) *time.Duration { return &c.GateTimeout }),
		span("idle_timeout", func(c *CreateOS) *time.Duration { return &c.IdleTimeout }),
		span("poll", func(c *CreateOS) *time.Duration { return &c.Poll }),
		span("second_look", func(c *CreateOS) *time.Duration { return &c.SecondLook }),
		countFrom(0, "createos_reconnects", func(c *Config) *int { return &c.CreateOS.Reconnects }, 100),
		span("reconnect_delay", func(c *CreateOS) *time.Duration { return &c.ReconnectDelay }),
	}
	for i := range all {
		all[i].elsewhere = true
	}
	return all
}

func natsSettings() []setting {
	free := func(string) error { return nil }
	hidden := func(s setting) setting { s.secret = true; return s }
	return []setting{
		oneWord("server", func(c *Config) *string { return &c.NATS.Server }, free),
		oneWord("context", func(c *Config) *string { return &c.NATS.Context }, free),
		oneWord("user", func(c *Config) *string { return &c.NATS.User }, free),
		hidden(oneWord("password", func(c *Config) *string { return &c.NATS.Password }, free)),
		hidden(oneWord("token", func(c *Config) *string { return &c.NATS.Token }, free)),
		oneWord("creds", func(c *Config) *string { return &c.NATS.Creds }, free),
		oneWord("nkey", func(c *Config) *string { return &c.NATS.NKey }, free),
		oneWord("tlscert", func(c *Config) *string { return &c.NATS.TLSCert }, free),
		oneWord("tlskey", func(c *Config) *string { return &c.NATS.TLSKey }, free),
		oneWord("tlsca", func(c *Config) *string { return &c.NATS.TLSCA }, free),
		boolean("tlsfirst", func(c *Config) *bool { return &c.NATS.TLSFirst }),
		oneWord("inbox_prefix", func(c *Config) *string { return &c.NATS.InboxPrefix }, free),
		duration("timeout", func(c *Config) *time.Duration { return &c.NATS.Timeout }, 100*time.Millisecond, 5*time.Minute),
	}
}

// single makes a setting that takes exactly one word.
func single(key string, set func(*Config, string) error, get func(*Config) string) setting {
	return setting{
		key: key,
		set: func(c *Config, words []string) error {
			if len(words) != 1 {
				return errors.New("is a list; one value is expected")
			}
			return set(c, words[0])
		},
		get: func(c *Config) []string { return []string{get(c)} },
	}
}

func oneWord(key string, at func(*Config) *string, check func(string) error) setting {
	return single(key, func(c *Config, word string) error {
		if err := check(word); err != nil {
			return err
		}
		*at(c) = word
		return nil
	}, func(c *Config) string { return *at(c) })
}

func boolean(key string, at func(*Config) *bool) setting {
	return single(key, func(c *Config, word string) error {
		value, err := strconv.ParseBool(word)
		if err != nil {
			return errors.New("is neither true nor false")
		}
		*at(c) = value
		return nil
	}, func(c *Config) string { return strconv.FormatBool(*at(c)) })
}

func count(key string, at func(*Config) *int, most int64) setting { return countFrom(1, key, at, most) }

func countFrom(least int64, key string, at func(*Config) *int, most int64) setting {
	return single(key, func(c *Config, word string) error {
		n, err := parseCount(word, least, most)
		if err != nil {
			return err
		}
		*at(c) = int(n)
		return nil
	}, func(c *Config) string { return strconv.Itoa(*at(c)) })
}

func duration(key string, at func(*Config) *time.Duration, least, most time.Duration) setting {
	return single(key, func(c *Config, word string) error {
		d, err := ParseDuration(word)
		if err != nil {
			return err
		}
		if d < least || d > most {
			return fmt.Errorf("is out of range: from %s to %s", FormatDuration(least), FormatDuration(most))
		}
		*at(c) = d
		return nil
	}, func(c *Config) string { return FormatDuration(*at(c)) })
}

func size(key string, at func(*Config) *int64) setting {
	return single(key, func(c *Config, word string) (err error) {
		*at(c), err = ParseSize(word)
		return err
	}, func(c *Config) string { return FormatSize(*at(c)) })
}

func words(key string, at func(*Config) *[]string, check func(string) error) setting {
	return setting{
		key: key, list: true,
		set: func(c *Config, words []string) error {
			for _, word := range words {
				if err := check(word); err != nil {
					if len(words) > 1 {
						return fmt.Errorf("has %s, which %w", quote(word), err)
					}
					return err
				}
			}
			*at(c) = slices.Clone(words)
			return nil
		},
		get: func(c *Config) []string { return *at(c) },
	}
}

// replicaSetting takes odd numbers only: an even number of replicas survives no
// more failures than the odd one below it.
func replicaSetting() setting {
	s := count("replicas", func(c *Config) *int { return &c.Replicas }, 5)
	within := s.set
	s.set = func(c *Config, words []string) error {
		if len(words) == 1 && (words[0] == "2" || words[0] == "4") {
			return errors.New("is not 1, 3 or 5")
		}
		return within(c, words)
	}
	return s
}

// queueSetting takes queues as name[:weight[:concurrency]].
func queueSetting() setting {
	return setting{
		key: keyQueues, list: true,
		set: func(c *Config, words []string) error {
			var queues []Queue
			for _, word := range words {
				q, err := parseQueue(word)
				if err != nil {
					return fmt.Errorf("has %s, which %w", quote(word), err)
				}
				queues = append(queues, q)
			}
			c.Queues = queues
			return nil
		},
		get: func(c *Config) []string {
			var words []string
			for _, q := range c.Queues {
				words = append(words, fmt.Sprintf("%s:%d:%d", q.Name, q.Weight, q.Concurrency))
			}
			return words
		},
	}
}

func parseQueue(word string) (Queue, error) {
	parts := strings.Split(word, ":")
	q := Queue{Name: parts[0], Weight: 1}
	if len(parts) > 3 {
		return q, errors.New("is not name[:weight[:concurrency]]")
	}
	if err := checkToken(q.Name); err != nil {
		return q, err
	}
	for i, part := range parts[1:] {
		set := q.setWeight
		if i == 1 {
			set = q.setConcurrency
		}
		if err := set(part); err != nil {
			return q, err
		}
	}
	return q, nil
}

func (q *Queue) setWeight(word string) error {
	n, err := parseCount(word, 1, 100)
	q.Weight = int(n)
	return err
}

func (q *Queue) setConcurrency(word string) error {
	n, err := parseCount(word, 0, 100_000)
	q.Concurrency = int(n)
	return err
}

func among(allowed ...string) func(string) error {
	return func(word string) error {
		if !slices.Contains(allowed, word) {
			return errors.New("is not one of " + strings.Join(allowed, ", ") + suggest(word, allowed))
		}
		return nil
	}
}

func checkPath(word string) error {
	if !filepath.IsAbs(word) && !strings.HasPrefix(word, "./") && !strings.HasPrefix(word, "../") {
		return errors.New("is not a path: begin with / or ./")
	}
	return nil
}

// optional takes an empty word for none.
func optional(check func(string) error) func(string) error {
	return func(word string) error {
		if word == "" {
			return nil
		}
		return check(word)
	}
}

// checkAddress takes host:port; empty switches the listener off.
func checkAddress(word string) error {
	if word == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(word)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || host == "" {
		return errors.New("is not an address: write host:port, like 127.0.0.1:9310")
	}
	return nil
}

// checkReply takes what can be a prefix of allowed reply subjects; the rule
// itself (never our own subjects, never $…) is the wire's.
func checkReply(word string) error {
	if word == "" || len(word) > 256 || strings.ContainsAny(word, " \t\r\n*") {
		return errors.New("is not a reply subject: tokens separated by dots, no * and no spaces, like _INBOX.{tenant}.>")
	}
	tokens := strings.Split(word, ".")
	for i, token := range tokens {
		last := i == len(tokens)-1
		if token == "" || (strings.Contains(token, ">") && (!last || token != ">")) || word == ">" {
			return errors.New("is not a reply subject: > may only be the last token, and no token may be empty")
		}
	}
	return nil
}
