package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/observe"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/sandbox"
)

// RunGateway serves publishers until ctx ends.
func RunGateway(ctx context.Context, cfg *config.Config, log zerolog.Logger, build Build) (err error) {
	inst, err := TakeInstance(cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	log = log.With().Str(observe.KeyWorker, inst.Worker).Logger()
	b, err := Connect(ctx, cfg, log, "sallyport gateway "+inst.Worker)
	if err != nil {
		return unlessStopped(ctx, log, err)
	}
	defer closeBus(ctx, b, log)
	if err := CheckStreams(ctx, b, cfg); err != nil {
		return unlessStopped(ctx, log, err)
	}
	metrics, err := observe.NewSet(build.Version)
	if err != nil {
		return err
	}
	gw, err := newGateway(b, metrics, log, cfg, inst.Worker, build)
	if err != nil {
		return err
	}
	if err := measureBus(metrics, b); err != nil {
		return err
	}
	return serve(ctx, cfg, log, metrics, observe.Health{Ready: func() error { return connected(b) }}, append([]part{gw}, orphans(nil)...))
}

// RunReaper destroys what is in quarantine on this host until ctx ends. It takes
// no jobs, so it asks nothing of the host's limits.
func RunReaper(ctx context.Context, cfg *config.Config, log zerolog.Logger, build Build) (err error) {
	inst, err := TakeInstance(cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	log = log.With().Str(observe.KeyWorker, inst.Worker).Logger()
	b, err := Connect(ctx, cfg, log, "sallyport reaper "+inst.Worker)
	if err != nil {
		return unlessStopped(ctx, log, err)
	}
	defer closeBus(ctx, b, log)
	if err := CheckStreams(ctx, b, cfg); err != nil {
		return unlessStopped(ctx, log, err)
	}
	boxes, err := openSandboxes(ctx, cfg, inst, build, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, boxes.close()) }()
	metrics, err := observe.NewSet(build.Version)
	if err != nil {
		return err
	}
	r, err := newReaper(cfg, b, boxes.providers, log, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(measureBus(metrics, b), measureReaper(metrics, r)); err != nil {
		return err
	}
	desk, err := newDesk(cfg, b, build, log)
	if err != nil {
		return err
	}
	ready := func() error { return errors.Join(connected(b), r.Ready()) }
	return serve(ctx, cfg, log, metrics, observe.Health{Ready: ready}, append([]part{desk, {"reaper", r.Run}}, orphans(boxes)...))
}

// newReaper is a reaper for providers, which sweeps for those whose sandboxes
// outlive their worker.
func newReaper(cfg *config.Config, b *bus.Bus, providers map[string]sandbox.Provider, log zerolog.Logger, gone func(string, sandbox.Proof)) (*reaper.Reaper, error) {
	return reaper.New(reaper.OnBus(b, min(cfg.AckWait, bus.DefaultReaperAckWait)), providers, log, reaper.Config{
		OnGone: gone, Sweep: true, SweepInterval: cfg.SweepInterval, CreateDeadline: cfg.CreateDeadline,
	})
}

// DevInfo is what a person needs to know of a running dev stack.
type DevInfo struct {
	// URL is the embedded server's.
	URL string
	// Isolation is the level that jobs of the default profile get, Missing what
	// this host cannot enforce, one sentence each.
	Isolation string
	Missing   []string
}

// RunDev runs an embedded NATS server with the streams, a worker, a gateway and a
// reaper until ctx ends. announce is called once when all of it serves; its
// error ends the stack.
func RunDev(ctx, hurry context.Context, cfg *config.Config, log zerolog.Logger, build Build, announce func(DevInfo) error) (err error) {
	inst, err := TakeInstance(cfg.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	log = log.With().Str(observe.KeyWorker, inst.Worker).Logger()
	server, err := StartServer(ctx, cfg.Listen, inst.Dir, log)
	if err != nil {
		return err
	}
	defer server.Close()
	if cfg.CreateOS.Scripted {
		service, err := startCreateOS(ctx, cfg, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, service.Close()) }()
	}
	b, err := connectInProcess(ctx, cfg, log, "sallyport dev "+inst.Worker, server)
	if err != nil {
		return err
	}
	defer closeBus(ctx, b, log)
	plan, err := Plan(cfg)
	if err != nil {
		return err
	}
	if _, err := b.Apply(ctx, plan); err != nil {
		return err
	}
	w, err := newWorker(ctx, cfg, log, build, inst, b, everywhere)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.sandboxes.close()) }()
	gw, err := newGateway(b, w.metrics, log, cfg, inst.Worker, build)
	if err != nil {
		return err
	}
	desk, err := newDesk(cfg, b, build, log)
	if err != nil {
		return err
	}
	info := DevInfo{URL: server.URL()}
	info.Isolation, info.Missing = isolation(w.sandboxes.providers[cfg.Profiles["default"].Provider].Capabilities())
	announcement := part{"announcement", func(ctx context.Context) error {
		if !w.whenReady(ctx) {
			return nil
		}
		if err := announce(info); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}}
	return serve(ctx, cfg, log, w.metrics, w.health(), w.parts(hurry, gw, desk, announcement))
}

// isolation says in words what jobs get and what they do not: a limit with the
// reason, anything else by its name.
func isolation(caps sandbox.Capabilities) (level string, missing []string) {
	for _, what := range caps.Isolation.Missing {
		if _, explained := caps.Unenforced[strings.TrimSuffix(what, " limit")]; !explained {
			missing = append(missing, what)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(caps.Unenforced)) {
		missing = append(missing, field+": "+caps.Unenforced[field])
	}
	return caps.Isolation.Level, missing
}
