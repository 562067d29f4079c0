package bus

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

// The defaults of a plan. The bytes together (about 3.2 GiB) fit a small
// embedded server, whose storage limit the server reserves them from.
const (
	DefaultAckWait         = 60 * time.Second
	DefaultOutputRetention = 24 * time.Hour
	DefaultDeadRetention   = 30 * 24 * time.Hour
	// WorkerTTL is how long a worker's entry in the registry lives.
	WorkerTTL = 30 * time.Second

	DefaultJobsBytes    = 512 << 20
	DefaultJobsMessages = 1 << 20 // about 340 bytes of the server's memory each
	DefaultOutputBytes  = 1 << 30
	DefaultRunsBytes    = 512 << 20
	DefaultLedgerBytes  = 64 << 20
	DefaultDeadBytes    = 64 << 20
	DefaultWorkersBytes = 8 << 20
	DefaultFilesBytes   = 1 << 30
	// filesMargin is how much longer than a result its files are kept: they are
	// stored before it.
	filesMargin = time.Hour
	// DefaultMessageBytes is nats-server's own default max_payload.
	DefaultMessageBytes = 1 << 20
	// DefaultRequestBytes is the greatest max_payload that NATS advises; the
	// server's own bounds a request further.
	DefaultRequestBytes = 8 << 20
	// DefaultOutputEvents bounds the stored events of one job: at a chunk of
	// 256 KiB far beyond any output limit, at one byte a chunk still a bound.
	DefaultOutputEvents = 100_000

	minMaxWaiting     = 512 // nats-server's default
	minMaxAckPending  = 128
	maxRequestBatch   = 256
	maxRequestExpires = 30 * time.Second
)

// QueuePlan is one queue.
type QueuePlan struct {
	Name string
	// Concurrency is how many of this queue's jobs one worker runs at a time; 0
	// means as many as it has slots.
	Concurrency int
}

// PlanConfig is what the operator's configuration says about the streams. A zero
// field takes its default.
type PlanConfig struct {
	SubjectPrefix, StreamPrefix string
	// Queues must name at least one.
	Queues []QueuePlan
	// FleetSlots is the number of slots of all workers together, at least 1;
	// default 64.
	FleetSlots int
	// Workers is the number of workers of the fleet; default 16.
	Workers int
	// Replicas of every stream, 1 to 5; default 1.
	Replicas int
	// AckWait is T of the redelivery rules; at least 1 s.
	AckWait                                                                 time.Duration
	OutputRetention, DeadRetention                                          time.Duration
	JobsBytes, OutputBytes, RunsBytes, LedgerBytes, DeadBytes, WorkersBytes int64
	// ResultRetention is how long results are kept, and the files that they name.
	ResultRetention time.Duration
	FilesBytes      int64
	JobsMessages    int64
	// MessageBytes bounds one message of every stream but the jobs', RequestBytes
	// one of the jobs'.
	MessageBytes, RequestBytes int32
	OutputEvents               int64
}

// Layout is the planned streams with their consumers.
type Layout struct {
	Streams []StreamPlan `json:"streams"`
}

// StreamPlan is one stream and its consumers.
type StreamPlan struct {
	Config    jetstream.StreamConfig     `json:"config"`
	Consumers []jetstream.ConsumerConfig `json:"consumers,omitempty"`
}

// Document is the plan as indented JSON, in the format of the nats tools'
// stream and consumer configuration.
func (l *Layout) Document() ([]byte, error) {
	doc, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return append(doc, '\n'), nil
}

// Plan says which streams and consumers there must be, and with which settings.
// All mistakes in cfg are reported at once.
func Plan(cfg PlanConfig) (*Layout, error) {
	cfg.setDefaults()
	subjects, err := wire.NewSubjects(cfg.SubjectPrefix)
	if err := errors.Join(err, cfg.validate()); err != nil {
		return nil, fmt.Errorf("streams: %w", err)
	}
	names := NewStreamNames(cfg.StreamPrefix)
	plan := &Layout{Streams: []StreamPlan{
		{Config: cfg.jobs(names, subjects), Consumers: cfg.consumers(subjects)},
		{Config: cfg.out(names, subjects)},
		{Config: cfg.runs(names, subjects)},
		{Config: cfg.ledger(names, subjects)},
		{Config: cfg.dead(names, subjects)},
		{Config: cfg.workers(names)},
		{Config: cfg.files(names)},
	}}
	return plan, nil
}

func (c *PlanConfig) setDefaults() {
	setDefault(&c.SubjectPrefix, "exec")
	setDefault(&c.FleetSlots, 64)
	setDefault(&c.Workers, 16)
	setDefault(&c.Replicas, 1)
	setDefault(&c.AckWait, DefaultAckWait)
	setDefault(&c.OutputRetention, DefaultOutputRetention)
	setDefault(&c.DeadRetention, DefaultDeadRetention)
	setDefault(&c.JobsBytes, DefaultJobsBytes)
	setDefault(&c.JobsMessages, DefaultJobsMessages)
	setDefault(&c.OutputBytes, DefaultOutputBytes)
	setDefault(&c.OutputEvents, DefaultOutputEvents)
	setDefault(&c.RunsBytes, DefaultRunsBytes)
	setDefault(&c.LedgerBytes, DefaultLedgerBytes)
	setDefault(&c.DeadBytes, DefaultDeadBytes)
	setDefault(&c.WorkersBytes, DefaultWorkersBytes)
	setDefault(&c.ResultRetention, DefaultResultRetention)
	setDefault(&c.FilesBytes, DefaultFilesBytes)
	setDefault(&c.MessageBytes, DefaultMessageBytes)
	setDefault(&c.RequestBytes, DefaultRequestBytes)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *PlanConfig) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(len(c.Queues) == 0, "queues: at least one is needed")
	seen := map[string]bool{}
	for _, q := range c.Queues {
		fault(!wire.ValidToken(q.Name), "queue %q: a name is 1 to 64 of A-Z, a-z, 0-9, '_' and '-'", q.Name)
		fault(seen[q.Name], "queue %q: named twice", q.Name)
		fault(q.Concurrency < 0, "queue %q: concurrency %d is negative", q.Name, q.Concurrency)
		seen[q.Name] = true
	}
	fault(c.FleetSlots < 1 || c.FleetSlots > 1<<20, "fleet_slots: %d is not in 1 to %d", c.FleetSlots, 1<<20)
	fault(c.Workers < 1 || c.Workers > 1<<16, "workers: %d is not in 1 to %d", c.Workers, 1<<16)
	fault(c.Replicas < 1 || c.Replicas > 5, "replicas: %d is not in 1 to 5", c.Replicas)
	fault(c.AckWait < time.Second, "ack_wait: %s is below 1s", c.AckWait)
	fault(c.OutputRetention < time.Second, "output_retention: %s is below 1s", c.OutputRetention)
	fault(c.ResultRetention < time.Second, "result_retention: %s is below 1s", c.ResultRetention)
	fault(c.DeadRetention < time.Second, "dead_retention: %s is below 1s", c.DeadRetention)
	for name, n := range map[string]int64{
		"jobs_bytes": c.JobsBytes, "output_bytes": c.OutputBytes, "runs_bytes": c.RunsBytes, "ledger_bytes": c.LedgerBytes,
		"dead_bytes": c.DeadBytes, "workers_bytes": c.WorkersBytes, "files_bytes": c.FilesBytes,
	} {
		fault(n < int64(c.MessageBytes), "%s: %d is below one message (%d)", name, n, c.MessageBytes)
	}
	fault(c.JobsMessages < 1, "jobs_messages: %d is below 1", c.JobsMessages)
	fault(c.OutputEvents < 1, "output_events: %d is below 1", c.OutputEvents)
	fault(c.MessageBytes < 64<<10, "message_bytes: %d is below 64 KiB", c.MessageBytes)
	fault(c.RequestBytes < 64<<10, "request_bytes: %d is below 64 KiB", c.RequestBytes)
	fault(c.JobsBytes < int64(c.RequestBytes), "jobs_bytes: %d is below one request (%d)", c.JobsBytes, c.RequestBytes)
	return errors.Join(faults...)
}

// base is what all streams share: files, a byte bound, discard new, no
// de-duplication by Nats-Msg-Id (its window is as short as the server allows;
// the subject and the record are the protection).
func (c *PlanConfig) base(name, about string, bytes int64, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: about, Subjects: subjects,
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		Replicas: c.Replicas, MaxBytes: bytes, MaxMsgs: -1, MaxMsgsPerSubject: -1, MaxConsumers: -1,
		MaxMsgSize: c.MessageBytes, Duplicates: time.Second,
	}
}

func (c *PlanConfig) jobs(n StreamNames, s wire.Subjects) jetstream.StreamConfig {
	cfg := c.base(n.Jobs, "Sallyport: queued jobs", c.JobsBytes, s.AllJobs())
	cfg.Retention = jetstream.WorkQueuePolicy
	cfg.MaxMsgs, cfg.MaxMsgSize = c.JobsMessages, c.RequestBytes
	cfg.MaxMsgsPerSubject, cfg.DiscardNewPerSubject = 1, true
	return cfg
}

func (c *PlanConfig) out(n StreamNames, s wire.Subjects) jetstream.StreamConfig {
	cfg := c.base(n.Out, "Sallyport: stored output", c.OutputBytes, s.AllOut())
	cfg.Discard = jetstream.DiscardOld
	cfg.MaxAge = c.OutputRetention
	cfg.MaxMsgsPerSubject = c.OutputEvents
	cfg.AllowDirect = true
	cfg.Compression = jetstream.S2Compression
	cfg.RePublish = &jetstream.RePublish{Source: s.Prefix() + ".out.>", Destination: s.Prefix() + ".live.>"}
	return cfg
}

func (c *PlanConfig) runs(n StreamNames, s wire.Subjects) jetstream.StreamConfig {
	cfg := c.base(n.Runs, "Sallyport: run records", c.RunsBytes, s.AllRuns())
	cfg.MaxMsgsPerSubject = 1
	cfg.AllowMsgTTL = true
	return cfg
}

func (c *PlanConfig) ledger(n StreamNames, s wire.Subjects) jetstream.StreamConfig {
	cfg := c.base(n.Ledger, "Sallyport: leases and quarantine", c.LedgerBytes, s.AllLeases(), s.AllQuarantine())
	cfg.MaxMsgsPerSubject = 1
	cfg.DenyDelete, cfg.DenyPurge = true, true
	cfg.AllowMsgTTL, cfg.AllowAtomicPublish = true, true
	return cfg
}

func (c *PlanConfig) dead(n StreamNames, s wire.Subjects) jetstream.StreamConfig {
	cfg := c.base(n.Dead, "Sallyport: job messages that could not be run", c.DeadBytes, s.AllDead())
	cfg.MaxMsgsPerSubject = 1
	cfg.MaxAge = c.DeadRetention
	return cfg
}

// workers is a key-value bucket, as nats.go makes one.
func (c *PlanConfig) workers(n StreamNames) jetstream.StreamConfig {
	cfg := c.base("KV_"+n.Workers, "Sallyport: which workers there are", c.WorkersBytes, "$KV."+n.Workers+".>")
	cfg.MaxMsgsPerSubject = 1
	cfg.MaxAge, cfg.Duplicates = WorkerTTL, WorkerTTL
	cfg.AllowRollup, cfg.DenyDelete, cfg.AllowDirect = true, true, true
	return cfg
}

// files is an object store, as nats.go makes one.
func (c *PlanConfig) files(n StreamNames) jetstream.StreamConfig {
	cfg := c.base("OBJ_"+n.Files, "Sallyport: files in and out", c.FilesBytes, "$O."+n.Files+".C.>", "$O."+n.Files+".M.>")
	cfg.MaxAge = c.ResultRetention + filesMargin
	cfg.AllowRollup, cfg.AllowDirect = true, true
	return cfg
}

func (c *PlanConfig) consumers(s wire.Subjects) []jetstream.ConsumerConfig {
	list := make([]jetstream.ConsumerConfig, 0, len(c.Queues))
	for _, q := range c.Queues {
		// Delayed naks count in it too: messages that only newer workers understand,
		// or that wait for room elsewhere. However many there are, they must not
		// keep the others from being delivered; workers bound themselves what runs.
		pending := max(minMaxAckPending, 2*c.FleetSlots, 2*c.Workers*q.Concurrency, int(c.JobsMessages))
		list = append(list, jetstream.ConsumerConfig{
			Name: ConsumerName(q.Name), Durable: ConsumerName(q.Name), Description: "Sallyport: workers of queue " + q.Name,
			DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
			FilterSubject: s.QueueJobs(q.Name), AckWait: c.AckWait, MaxDeliver: -1,
			MaxAckPending: pending, MaxWaiting: max(minMaxWaiting, 4*c.Workers),
			MaxRequestBatch: maxRequestBatch, MaxRequestExpires: maxRequestExpires,
		})
	}
	return list
}
