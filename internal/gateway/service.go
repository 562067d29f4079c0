package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// service is the gateway as a NATS micro service: its endpoints, and the answers
// that `nats micro` asks for. The library's own service gives those on whatever
// subject the question names for them, which lends a service's rights to everybody
// who may ask; here that subject passes the reply rule first.
type service struct {
	g         *Gateway
	info      micro.Info
	started   time.Time
	endpoints []*endpoint
	subs      []*nats.Subscription
	closed    []<-chan struct{} // by subscription
}

// endpoint is one subject on which requests are taken.
type endpoint struct {
	name, subject string
	serve         func(context.Context, call)
	requests      atomic.Int64
}

// request is a message that asks for an answer.
type request struct{ msg *nats.Msg }

func (r request) Subject() string      { return r.msg.Subject }
func (r request) Reply() string        { return r.msg.Reply }
func (r request) Data() []byte         { return r.msg.Data }
func (r request) Headers() nats.Header { return r.msg.Header }

// open subscribes everything. Requests are worked on under ctx.
func (g *Gateway) open(ctx context.Context, endpoints []*endpoint) (*service, error) {
	s := &service{g: g, endpoints: endpoints, started: time.Now().UTC(), info: micro.Info{
		ServiceIdentity: micro.ServiceIdentity{
			Name: "sallyport-gateway", ID: newToken(), Version: serviceVersion(g.cfg.Worker.Version), Metadata: map[string]string{},
		},
		Type: micro.InfoResponseType, Description: "takes execution requests",
	}}
	var errs []error
	for _, e := range endpoints {
		s.info.Endpoints = append(s.info.Endpoints, micro.EndpointInfo{Name: e.name, Subject: e.subject, QueueGroup: group})
		errs = append(errs, s.subscribe(e.subject, group, g.handler(ctx, e)))
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
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

// subscribe takes what comes on subject, with a bound for what waits.
func (s *service) subscribe(subject, group string, handle nats.MsgHandler) error {
	sub, err := s.g.nc.QueueSubscribe(subject, group, handle)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	closed := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(closed) })
	s.subs, s.closed = append(s.subs, sub), append(s.closed, closed)
	if err := sub.SetPendingLimits(pendingCount, pendingBytes); err != nil {
		return fmt.Errorf("bound what waits on %s: %w", subject, err)
	}
	return nil
}

// close takes nothing more and returns when what has arrived was handed out.
func (s *service) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.g.cfg.RequestTimeout)
	defer cancel()
	var errs []error
	for _, sub := range s.subs {
		if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			errs = append(errs, fmt.Errorf("drain %s: %w", sub.Subject, err))
		}
	}
	for i, sub := range s.subs {
		select {
		case <-s.closed[i]:
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

// monitor answers a question about the service itself.
func (s *service) monitor(answer func() any) nats.MsgHandler {
	return func(m *nats.Msg) {
		if m.Reply == "" {
			return
		}
		if bad := s.g.cfg.Replies.CheckShared(m.Reply); bad != nil {
			s.g.stats.repliesRefused.Add(1)
			return
		}
		call{g: s.g, req: request{m}}.answer(answer())
	}
}

func (s *service) ping() any {
	return micro.Ping{ServiceIdentity: s.info.ServiceIdentity, Type: micro.PingResponseType}
}

func (s *service) describe() any { return s.info }

func (s *service) stats() any {
	stats := micro.Stats{ServiceIdentity: s.info.ServiceIdentity, Type: micro.StatsResponseType, Started: s.started}
	for _, e := range s.endpoints {
		stats.Endpoints = append(stats.Endpoints, &micro.EndpointStats{
			Name: e.name, Subject: e.subject, QueueGroup: group, NumRequests: int(e.requests.Load()),
		})
	}
	return stats
}
