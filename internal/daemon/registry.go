package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// WorkerEntry is what a worker says of itself in the registry: a hint for people
// and schedulers, never a proof of life or of death.
type WorkerEntry struct {
	Worker  string `json:"worker"`
	Host    string `json:"host"`
	Version string `json:"version"`
	// Since is when it started, At when it wrote this.
	Since time.Time `json:"since"`
	At    time.Time `json:"at"`
	// Slots is how many jobs it runs at once, Running how many it runs now.
	Slots   int `json:"slots"`
	Running int `json:"running"`
	// NotReady is why it takes no jobs; empty while it does.
	NotReady string   `json:"not_ready,omitempty"`
	Queues   []string `json:"queues"`
	Profiles []string `json:"profiles"`
	// Isolation is the level of its local sandboxes, Report what its probe found at
	// the start. Where no profile has them, Report is absent, and Isolation the level
	// of its first profile's.
	Isolation string        `json:"isolation"`
	Report    *local.Report `json:"report,omitempty"`
}

// registryInterval is how often a worker writes its entry: two writes may be lost
// before it vanishes (bus.WorkerTTL).
const registryInterval = 10 * time.Second

// notReadyInterval is how often a worker that is not ready does.
const notReadyInterval = time.Second

// registry keeps a worker's entry.
type registry struct {
	bus   *bus.Bus
	log   zerolog.Logger
	entry WorkerEntry
	// load completes the entry with what changes.
	load func(*WorkerEntry)
}

func newRegistry(w *worker, cfg *config.Config, inst *Instance, build Build, log zerolog.Logger) *registry {
	r := &registry{bus: w.bus, log: log, entry: WorkerEntry{
		Worker: inst.Worker, Host: inst.Host, Version: build.Version, Since: time.Now().UTC().Truncate(time.Millisecond),
		Profiles: slices.Sorted(maps.Keys(cfg.Profiles)), Report: w.sandboxes.report,
	}}
	if r.entry.Report != nil {
		r.entry.Isolation = r.entry.Report.Level
	} else {
		first := cfg.Profiles[r.entry.Profiles[0]]
		r.entry.Isolation = w.sandboxes.providers[first.Provider].Capabilities().Isolation.Level
	}
	for _, q := range cfg.Queues {
		r.entry.Queues = append(r.entry.Queues, q.Name)
	}
	r.load = func(e *WorkerEntry) {
		s := w.consumer.Stats()
		e.Slots, e.Running, e.NotReady = s.Slots, s.Running, ""
		if err := w.ready(); err != nil {
			e.NotReady = err.Error()
		}
	}
	return r
}

// run writes the entry until ctx ends, then takes it away. A registry that cannot
// be written harms no job, so it only says so.
func (r *registry) run(ctx context.Context) error {
	tick := time.NewTicker(registryInterval)
	defer tick.Stop()
	// An entry that says why a worker is not ready is soon followed by another.
	soon := time.NewTimer(notReadyInterval)
	defer soon.Stop()
	for broken := false; ; {
		err := r.write(ctx)
		if err != nil && ctx.Err() == nil && !broken {
			r.log.Warn().Err(err).Msg("cannot write this worker's entry in the registry")
		}
		broken = err != nil
		if r.entry.NotReady != "" {
			soon.Reset(notReadyInterval)
		}
		select {
		case <-tick.C:
		case <-soon.C:
		case <-ctx.Done():
			return r.remove(ctx)
		}
	}
}

func (r *registry) write(ctx context.Context) error {
	r.load(&r.entry)
	r.entry.At = time.Now().UTC().Truncate(time.Millisecond)
	doc, err := json.Marshal(r.entry)
	if err != nil {
		return fmt.Errorf("worker's entry: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.bus.RequestTimeout())
	defer cancel()
	kv, err := workersBucket(ctx, r.bus)
	if err != nil {
		return err
	}
	if _, err := kv.Put(ctx, r.entry.Worker, doc); err != nil {
		return fmt.Errorf("write the worker's entry: %w", err)
	}
	return nil
}

// remove takes the entry away, so that nobody looks for a worker that stopped in
// order. Where that fails, the entry's own age does it.
func (r *registry) remove(ctx context.Context) error {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	kv, err := workersBucket(ctx, r.bus)
	if err == nil {
		err = kv.Delete(ctx, r.entry.Worker)
	}
	if err != nil {
		r.log.Debug().Err(err).Msg("this worker's entry stays in the registry until it is too old")
	}
	return nil
}

func workersBucket(ctx context.Context, b *bus.Bus) (jetstream.KeyValue, error) {
	kv, err := b.JS().KeyValue(ctx, b.Streams().Workers)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("there is no bucket %s: sallyport streams apply", b.Streams().Workers)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", b.Streams().Workers, err)
	}
	return kv, nil
}

// readers is how many entries of the registry are read at once.
const readers = 16

// Workers lists the registry in the order of names. An entry that cannot be read
// is left out and named in the error; the others are returned all the same. It makes
// no consumer, so that who may only read can list the workers.
func Workers(ctx context.Context, b *bus.Bus) ([]WorkerEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, b.RequestTimeout())
	defer cancel()
	kv, err := workersBucket(ctx, b)
	if err != nil {
		return nil, err
	}
	keys, err := workerKeys(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("list the workers: %w", err)
	}
	found := make([]*WorkerEntry, len(keys))
	faults := make([]error, len(keys))
	var group errgroup.Group
	group.SetLimit(readers)
	for i, key := range keys {
		group.Go(func() error {
			found[i], faults[i] = readWorker(ctx, kv, key)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var list []WorkerEntry
	for _, e := range found {
		if e != nil {
			list = append(list, *e)
		}
	}
	return list, errors.Join(faults...)
}

// workerKeys are the registry's keys in order, of entries that were taken away too.
func workerKeys(ctx context.Context, b *bus.Bus) ([]string, error) {
	bucket := b.Streams().Workers
	stream, err := b.JS().Stream(ctx, "KV_"+bucket)
	if err != nil {
		return nil, err
	}
	prefix := "$KV." + bucket + "."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, err
	}
	var keys []string
	for subject := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, prefix))
	}
	slices.Sort(keys)
	return keys, nil
}

// readWorker reads one entry; nil where it was taken away.
func readWorker(ctx context.Context, kv jetstream.KeyValue, key string) (*WorkerEntry, error) {
	entry, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil //nolint:nilnil // nobody there is an answer, not an error
	}
	if err != nil {
		return nil, fmt.Errorf("entry %s: %w", key, err)
	}
	var e WorkerEntry
	if err := json.Unmarshal(entry.Value(), &e); err != nil {
		return nil, fmt.Errorf("entry %s: %w", key, err)
	}
	return &e, nil
}
