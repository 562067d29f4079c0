package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"github.com/sallyport/sallyport/internal/bus"
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
	room  *semaphore.Weighted // bounds the requests in work
	work  sync.WaitGroup
	stats counters
}

type counters struct {
	submitted, refused, repliesRefused, failed atomic.Uint64
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
	if cfg.Parallel <= 0 {
		cfg.Parallel = 64
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = 5 * time.Second
	}
	b = b.Services()
	return &Gateway{bus: b, nc: b.Control(), log: log, cfg: cfg, room: semaphore.NewWeighted(workBytes)}, nil
}

// workBytes bounds the bodies of all requests in work together, pendingBytes those
// that wait at one endpoint: a request may have 8 MiB, and its headers take many
// times their size once they are read. What does not fit is dropped, and its
// sender asks again.
const (
	workBytes    = 64 << 20
	pendingBytes = 32 << 20
	pendingCount = 16 << 10
)

// Stats returns the counters.
func (g *Gateway) Stats() Stats {
	return Stats{
		Submitted: g.stats.submitted.Load(), Refused: g.stats.refused.Load(),
		RepliesRefused: g.stats.repliesRefused.Load(), Failed: g.stats.failed.Load(),
	}
}

// group is the queue group that all gateways share.
const group = "gateway"

// Run serves until ctx ends, then finishes the requests that it has taken.
func (g *Gateway) Run(ctx context.Context) error {
	// Requests in work are finished after ctx has ended, within their own bound.
	serving := context.WithoutCancel(ctx)
	s := g.bus.Subjects()
	service, err := g.open(serving, []*endpoint{
		{name: "submit", subject: s.AllSubmit(), serve: g.submit},
		{name: "cancel", subject: s.AllCancel(), serve: g.cancel},
		{name: "status", subject: s.AllStatus(), serve: g.status},
		{name: "read", subject: s.AllRead(), serve: g.read},
	})
	if err != nil {
		return fmt.Errorf("open the gateway service: %w", err)
	}
	<-ctx.Done()
	err = service.close(serving)
	g.work.Wait()
	if err != nil {
		return fmt.Errorf("close the gateway service: %w", err)
	}
	return nil
}

// serviceVersion is v where micro takes it (it wants a semantic version).
func serviceVersion(v string) string {
	parts := 0
	for _, c := range v {
		if c == '.' {
			parts++
		}
	}
	if parts != 2 || v[0] < '0' || v[0] > '9' {
		return "0.0.0"
	}
	return v
}

// handler gives each request a goroutine while there are free ones, and blocks
// the endpoint while there are none.
func (g *Gateway) handler(ctx context.Context, e *endpoint) nats.MsgHandler {
	return func(m *nats.Msg) {
		e.requests.Add(1)
		share := min(max(int64(len(m.Data)), workBytes/int64(g.cfg.Parallel), 1), workBytes)
		if err := g.room.Acquire(ctx, share); err != nil {
			return // not while ctx never ends
		}
		g.work.Go(func() {
			defer g.room.Release(share)
			ctx, cancel := context.WithTimeout(ctx, g.cfg.RequestTimeout)
			defer cancel()
			e.serve(ctx, call{g: g, req: request{m}})
		})
	}
}

// call is one request in work.
type call struct {
	g   *Gateway
	req request
}

// mayReply says that the tenant may be answered where the request asks for it.
func (c call) mayReply(tenant string) bool {
	if bad := c.g.cfg.Replies.Check(tenant, c.req.Reply()); bad != nil {
		c.g.stats.repliesRefused.Add(1)
		// Counted; a line for each would let anybody fill the log.
		c.g.log.Debug().Str("tenant", tenant).Str("reason", bad.Message).Msg("reply subject refused, request not answered")
		return false
	}
	return true
}

// fail answers that the request could not be served now.
func (c call) fail(code int, err error) {
	c.g.stats.failed.Add(1)
	c.g.log.Warn().Err(err).Str("subject", c.req.Subject()).Msg("request not served")
	if c.req.Reply() == "" {
		return
	}
	c.sendError(code, wire.Message("%v", err), nil, nil)
}

// send answers the request.
func (c call) send(body []byte, headers map[string][]string) {
	msg := &nats.Msg{Subject: c.req.Reply(), Header: headers, Data: body}
	if err := c.g.nc.PublishMsg(msg); err != nil {
		c.g.log.Warn().Err(err).Msg("answer not sent")
	}
}

// sendError answers with a service error, as a micro service's are.
func (c call) sendError(code int, text string, body []byte, headers map[string][]string) {
	all := maps.Clone(headers)
	if all == nil {
		all = map[string][]string{}
	}
	all[micro.ErrorHeader] = []string{text}
	all[micro.ErrorCodeHeader] = []string{strconv.Itoa(code)}
	c.send(body, all)
}

// answer sends v as JSON.
func (c call) answer(v any) {
	body, err := json.Marshal(v)
	if err != nil {
		c.fail(500, err)
		return
	}
	c.send(body, nil)
}

// The codes of service errors, after HTTP's.
const (
	codeInvalid     = 400
	codeConflict    = 409
	codeUnavailable = 503
	// codeUnknown says that the request may have been carried out.
	codeUnknown = 504
)

func (g *Gateway) hasQueue(queue string) bool { return slices.Contains(g.cfg.Queues, queue) }
