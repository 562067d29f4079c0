package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/service"
	"github.com/sallyport/sallyport/internal/wire"
)

// Config says what the gateway takes.
type Config struct {
	// Queues that exist; a request for another one is refused.
	Queues []string
	// Profiles that the workers offer, for refusing early; nil leaves the check
	// to the workers.
	Profiles map[string]wire.Profile
	// DefaultProfile is the profile of a request that names none.
	DefaultProfile string
	// Replies says which reply subjects are allowed.
	Replies wire.ReplyRule
	// Parallel is the number of requests in work at once, over all endpoints;
	// default 64.
	Parallel int
	// RequestTimeout bounds the work on one request; default 5 s.
	RequestTimeout time.Duration
	// Worker names this instance in the results that it decides itself.
	Worker wire.WorkerRef
}

// Gateway serves publishers.
type Gateway struct {
	bus   *bus.Bus
	nc    *nats.Conn
	log   zerolog.Logger
	cfg   Config
	stats counters
	// service takes the requests.
	service *service.Service
}

type counters struct {
	submitted, refused atomic.Uint64
}

// Stats counts what the gateway did since its start.
type Stats struct {
	// Submitted requests were stored in the queue.
	Submitted uint64
	// Refused requests were answered with what is wrong with them.
	Refused uint64
	// RepliesRefused is how many requests had a reply subject that is not
	// allowed, and were met with silence.
	RepliesRefused uint64
	// Failed requests could not be served.
	Failed uint64
}

// New makes a gateway on b.
func New(b *bus.Bus, log zerolog.Logger, cfg Config) (*Gateway, error) {
	if len(cfg.Queues) == 0 {
		return nil, errors.New("gateway: no queues are configured")
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = service.DefaultRequestTimeout
	}
	b = b.Services()
	g := &Gateway{bus: b, nc: b.Control(), log: log, cfg: cfg}
	var err error
	g.service, err = service.New(b, log, service.Config{
		Name: "sallyport-gateway", Description: "takes execution requests", Version: cfg.Worker.Version, Group: "gateway",
		Replies: cfg.Replies, Parallel: cfg.Parallel, RequestTimeout: cfg.RequestTimeout,
	}, g.endpoints()...)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return g, nil
}

// Stats returns the counters.
func (g *Gateway) Stats() Stats {
	s := g.service.Stats()
	return Stats{
		Submitted: g.stats.submitted.Load(), Refused: g.stats.refused.Load() + s.SubjectsRefused,
		RepliesRefused: s.RepliesRefused, Failed: s.Failed,
	}
}

// Run serves until ctx ends, then finishes the requests that it has taken.
func (g *Gateway) Run(ctx context.Context) error { return g.service.Run(ctx) }

// endpoints are the services for publishers.
func (g *Gateway) endpoints() []service.Endpoint {
	s := g.bus.Subjects()
	tenantOfPair := func(subject string) (string, error) {
		tenant, _, err := s.ParsePair(subject)
		return tenant, err
	}
	tenantOfSubmit := func(subject string) (string, error) {
		tenant, _, err := s.ParseSubmit(subject)
		return tenant, err
	}
	serve := func(f func(context.Context, call)) func(context.Context, *service.Request) {
		return func(ctx context.Context, r *service.Request) { f(ctx, call{g: g, req: r}) }
	}
	return []service.Endpoint{
		{Name: "submit", Subject: s.AllSubmit(), Tenant: tenantOfSubmit, Unanswered: true, Serve: serve(g.submit)},
		{Name: "cancel", Subject: s.AllCancel(), Tenant: tenantOfPair, Serve: serve(g.cancel)},
		{Name: "status", Subject: s.AllStatus(), Tenant: tenantOfPair, Serve: serve(g.status)},
		{Name: "read", Subject: s.AllRead(), Tenant: tenantOfPair, Serve: serve(g.read)},
	}
}

// call is one request in work.
type call struct {
	g   *Gateway
	req *service.Request
}

// fail answers that the request could not be served now.
func (c call) fail(code int, err error) { c.req.Fail(code, err) }

// send answers the request.
func (c call) send(body []byte, headers map[string][]string) {
	if err := c.req.Send(body, headers); err != nil {
		c.g.log.Warn().Err(err).Msg("answer not sent")
	}
}

// answer sends v as JSON.
func (c call) answer(v any) { c.req.Answer(v) }

func (g *Gateway) hasQueue(queue string) bool { return slices.Contains(g.cfg.Queues, queue) }
