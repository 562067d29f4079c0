package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
)

// What the caller tells apart, for its exit code.
var (
	// ErrConnect means that no NATS server could be reached, or none that is fit.
	ErrConnect = errors.New("no connection to NATS")
	// ErrRefused means that the service does not start, because this host or the
	// streams are not as required.
	ErrRefused = errors.New("refusing to start")
)

// Build says what is running.
type Build struct {
	// Version without a leading v.
	Version string
	// Crash is where a worker or a reaper kills itself, for tests: point or
	// point:passage; empty means nowhere.
	Crash string
}

// Connect connects to the configured servers, or says what to do about it
// (ErrConnect).
func Connect(ctx context.Context, cfg *config.Config, log zerolog.Logger, name string) (*bus.Bus, error) {
	servers, opts, err := Dial(cfg.NATS)
	if err != nil {
		return nil, err
	}
	return connect(ctx, cfg, log, bus.Options{Servers: servers, Name: name, NATS: opts})
}

// connectInProcess connects to dev's own server without a socket.
func connectInProcess(ctx context.Context, cfg *config.Config, log zerolog.Logger, name string, server *Server) (*bus.Bus, error) {
	return connect(ctx, cfg, log, bus.Options{Servers: server.URL(), InProcess: server, Name: name})
}

func connect(ctx context.Context, cfg *config.Config, log zerolog.Logger, opts bus.Options) (*bus.Bus, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.NATS.Timeout)
	defer cancel()
	opts.SubjectPrefix, opts.StreamPrefix = cfg.SubjectPrefix, cfg.StreamPrefix
	opts.RequestTimeout, opts.ResultRetention, opts.Log = cfg.NATS.Timeout, cfg.ResultRetention, log
	b, err := bus.Connect(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	return b, nil
}

// closeBus ends the connections after everything that used them.
func closeBus(ctx context.Context, b *bus.Bus, log zerolog.Logger) {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		log.Error().Err(err).Msg("nats connections not closed cleanly")
	}
}

// Plan is the streams and consumers that the configuration asks for.
func Plan(cfg *config.Config) (*bus.Layout, error) {
	plan := bus.PlanConfig{
		SubjectPrefix: cfg.SubjectPrefix, StreamPrefix: cfg.StreamPrefix,
		FleetSlots: cfg.FleetSlots, Workers: cfg.FleetWorkers, Replicas: cfg.Replicas,
		AckWait: cfg.AckWait, OutputRetention: cfg.OutputRetention, ResultRetention: cfg.ResultRetention,
	}
	for _, q := range cfg.Queues {
		plan.Queues = append(plan.Queues, bus.QueuePlan{Name: q.Name, Concurrency: q.Concurrency})
	}
	return bus.Plan(plan)
}

// CheckStreams is nil when the server's streams are safe to work with; else it
// says all that is wrong and what to do (ErrRefused).
func CheckStreams(ctx context.Context, b *bus.Bus, cfg *config.Config) error {
	plan, err := Plan(cfg)
	if err != nil {
		return err
	}
	err = b.Check(ctx, plan)
	if _, ok := errors.AsType[*bus.CheckError](err); ok {
		return fmt.Errorf("%w: %w\ncreate or change them, with the same configuration: sallyport streams apply", ErrRefused, err)
	}
	if err != nil {
		return fmt.Errorf("check the streams: %w", err)
	}
	return nil
}
