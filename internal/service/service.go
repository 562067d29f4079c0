package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/wire"
)

// The defaults of a Config.
const (
	DefaultParallel       = 64
	DefaultRequestTimeout = 5 * time.Second
)

// workBytes bounds the bodies of all requests in work together, pendingBytes those
// that wait at one endpoint: a request may have 8 MiB, and its headers take many
// times their size once they are read. What does not fit is dropped, and its
// sender asks again.
const (
	workBytes    = 64 << 20
	pendingBytes = 32 << 20
	pendingCount = 16 << 10
)

// Config says what a service is. A zero field takes its default.
type Config struct {
	// Name is the service's name for `nats micro`; required.
	Name        string
	Description string
	// Version of the program; one that is no semantic version counts as 0.0.0.
	Version string
	// Group is the queue group of the endpoints; required where there is one that is
	// not for Everyone.
	Group string
	// Replies says which reply subjects are allowed.
	Replies wire.ReplyRule
	// Parallel is the number of requests in work at once, over all endpoints.
	Parallel int
	// RequestTimeout bounds the work on one request.
	RequestTimeout time.Duration
}

// Endpoint is one subject on which requests are taken.
type Endpoint struct {
	Name, Subject string
	// Tenant reads the tenant whose reply subjects are allowed off the subject of a
	// request; where it fails, the request is met with silence. Nil: only reply
	// subjects that belong to no tenant are allowed.
	Tenant func(subject string) (string, error)
	// Unanswered says that a request without a reply subject is served too.
	Unanswered bool
	// Everyone says that each instance answers, not one of them.
	Everyone bool
	// Serve does the work, under ctx, and answers once or more often.
	Serve func(ctx context.Context, r *Request)
}

// Stats counts what a service did since its start.
type Stats struct {
	// RepliesRefused is how many requests had a reply subject that is not allowed,
	// SubjectsRefused how many a subject without a tenant; both were met with silence.
	RepliesRefused, SubjectsRefused uint64
	// Failed requests could not be served.
	Failed uint64
}

// Service serves requests.
type Service struct {
	nc        *nats.Conn
	log       zerolog.Logger
	cfg       Config
	info      micro.Info
	started   time.Time
	endpoints []*endpoint
	room      *semaphore.Weighted // bounds the requests in work
	work      sync.WaitGroup
	subs      []*subscription

	repliesRefused, subjectsRefused, failed atomic.Uint64
}

type endpoint struct {
	Endpoint

	group    string
	requests atomic.Int64
}

type subscription struct {
	*nats.Subscription

	closed chan struct{}
}

// New makes a service on the connection that b has for services. All mistakes are
// reported at once.
func New(b *bus.Bus, log zerolog.Logger, cfg Config, endpoints ...Endpoint) (*Service, error) {
	if cfg.Parallel <= 0 {
		cfg.Parallel = DefaultParallel
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = DefaultRequestTimeout
	}
	s := &Service{nc: b.Services().Control(), log: log, cfg: cfg, room: semaphore.NewWeighted(workBytes), started: time.Now().UTC()}
	s.info = micro.Info{
		ServiceIdentity: micro.ServiceIdentity{
			Name: cfg.Name, ID: ulid.Make().String(), Version: semantic(cfg.Version), Metadata: map[string]string{},
		},
		Type: micro.InfoResponseType, Description: cfg.Description,
	}
	var faults []error
	if !wire.ValidToken(cfg.Name) {
		faults = append(faults, fmt.Errorf("service %q: the name is not a token", cfg.Name))
	}
	for _, e := range endpoints {
		group := cfg.Group
		if e.Everyone {
			group = ""
		} else if group == "" {
			faults = append(faults, fmt.Errorf("endpoint %s: there is no queue group for it", e.Name))
		}
		if e.Subject == "" || e.Serve == nil {
			faults = append(faults, fmt.Errorf("endpoint %s: needs a subject and a function", e.Name))
		}
		s.endpoints = append(s.endpoints, &endpoint{Endpoint: e, group: group})
		s.info.Endpoints = append(s.info.Endpoints, micro.EndpointInfo{Name: e.Name, Subject: e.Subject, QueueGroup: group})
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return s, nil
}

// semantic is v where micro takes it.
func semantic(v string) string {
	if strings.Count(v, ".") != 2 || v[0] < '0' || v[0] > '9' {
		return "0.0.0"
	}
	return v
}

// Stats returns the counters.
func (s *Service) Stats() Stats {
	return Stats{
		RepliesRefused: s.repliesRefused.Load(), SubjectsRefused: s.subjectsRefused.Load(), Failed: s.failed.Load(),
	}
}

// Run serves until ctx ends, then finishes the requests that it has taken.
func (s *Service) Run(ctx context.Context) error {
	// Requests in work are finished after ctx has ended, within their own bound.
	serving := context.WithoutCancel(ctx)
	if err := s.open(serving); err != nil {
		return fmt.Errorf("open the service %s: %w", s.cfg.Name, err)
	}
	<-ctx.Done()
	err := s.close(serving)
	s.work.Wait()
	if err != nil {
		return fmt.Errorf("close the service %s: %w", s.cfg.Name, err)
	}
	return nil
}

// open subscribes everything. Requests are worked on under ctx.
func (s *Service) open(ctx context.Context) error {
	var errs []error
	for _, e := range s.endpoints {
		errs = append(errs, s.subscribe(e.Subject, e.group, s.handler(ctx, e)))
	}
	for verb, answer := range map[micro.Verb]func() any{micro.PingVerb: s.ping, micro.InfoVerb: s.describe, micro.StatsVerb: s.stats} {
		for _, of := range [][2]string{{}, {s.info.Name}, {s.info.Name, s.info.ID}} {
			subject, err := micro.ControlSubject(verb, of[0], of[1])
			if err == nil {
				err = s.subscribe(subject, "", s.monitor(answer))
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, s.close(ctx))
	}
	return nil
}

// subscribe takes what comes on subject, with a bound for what waits.
func (s *Service) subscribe(subject, group string, handle nats.MsgHandler) error {
	sub, err := s.nc.QueueSubscribe(subject, group, handle)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	closed := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(closed) })
	s.subs = append(s.subs, &subscription{sub, closed})
	if err := sub.SetPendingLimits(pendingCount, pendingBytes); err != nil {
		return fmt.Errorf("bound what waits on %s: %w", subject, err)
	}
	return nil
}

// close takes nothing more and returns when what has arrived was handed out.
func (s *Service) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.cfg.RequestTimeout)
	defer cancel()
	var errs []error
	for _, sub := range s.subs {
		if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			errs = append(errs, fmt.Errorf("drain %s: %w", sub.Subject, err))
		}
	}
	for _, sub := range s.subs {
		select {
		case <-sub.closed:
			continue
		case <-ctx.Done():
		}
		// The server cannot be reached. Ending the subscription ends the handing out.
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			errs = append(errs, fmt.Errorf("unsubscribe from %s: %w", sub.Subject, err))
		}
	}
	return errors.Join(errs...)
}

// handler gives each request a goroutine while there are free ones, and blocks
// the endpoint while there are none.
func (s *Service) handler(ctx context.Context, e *endpoint) nats.MsgHandler {
	return func(m *nats.Msg) {
		e.requests.Add(1)
		share := min(max(int64(len(m.Data)), workBytes/int64(s.cfg.Parallel), 1), workBytes)
		if err := s.room.Acquire(ctx, share); err != nil {
			return // not while ctx never ends
		}
		s.work.Go(func() {
			defer s.room.Release(share)
			ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
			defer cancel()
			r := &Request{s: s, msg: m}
			if s.admit(e, r) {
				e.Serve(ctx, r)
			}
		})
	}
}

// admit says that the request may be answered where it asks for it, or wants no
// answer.
func (s *Service) admit(e *endpoint, r *Request) bool {
	if e.Tenant != nil {
		tenant, err := e.Tenant(r.msg.Subject)
		if err != nil {
			// Without a tenant no reply can be judged.
			s.subjectsRefused.Add(1)
			s.log.Debug().Err(err).Msg("subject refused, request not answered")
			return false
		}
		r.tenant = tenant
	}
	if r.msg.Reply == "" && e.Unanswered {
		return true
	}
	bad := s.cfg.Replies.CheckShared
	if e.Tenant != nil {
		bad = func(reply string) *wire.Invalid { return s.cfg.Replies.Check(r.tenant, reply) }
	}
	if bad := bad(r.msg.Reply); bad != nil {
		s.repliesRefused.Add(1)
		// Counted; a line for each would let anybody fill the log.
		s.log.Debug().Str("tenant", r.tenant).Str("reason", bad.Message).Msg("reply subject refused, request not answered")
		return false
	}
	return true
}

// monitor answers a question about the service itself.
func (s *Service) monitor(answer func() any) nats.MsgHandler {
	return func(m *nats.Msg) {
		if m.Reply == "" {
			return
		}
		if bad := s.cfg.Replies.CheckShared(m.Reply); bad != nil {
			s.repliesRefused.Add(1)
			return
		}
		(&Request{s: s, msg: m}).Answer(answer())
	}
}

func (s *Service) ping() any {
	return micro.Ping{ServiceIdentity: s.info.ServiceIdentity, Type: micro.PingResponseType}
}

func (s *Service) describe() any { return s.info }

func (s *Service) stats() any {
	stats := micro.Stats{ServiceIdentity: s.info.ServiceIdentity, Type: micro.StatsResponseType, Started: s.started}
	for _, e := range s.endpoints {
		stats.Endpoints = append(stats.Endpoints, &micro.EndpointStats{
			Name: e.Name, Subject: e.Subject, QueueGroup: e.group, NumRequests: int(e.requests.Load()),
		})
	}
	return stats
}
