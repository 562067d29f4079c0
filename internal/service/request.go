package service

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/sallyport/sallyport/internal/wire"
)

// The codes of service errors, after HTTP's.
const (
	CodeInvalid     = 400
	CodeNotFound    = 404
	CodeConflict    = 409
	CodeInternal    = 500
	CodeUnavailable = 503
	// CodeUnknown says that the request may have been carried out.
	CodeUnknown = 504
)

// Request is a request whose reply subject is allowed, or that has none; then what
// is answered goes nowhere.
type Request struct {
	s      *Service
	msg    *nats.Msg
	tenant string
}

// Subject is where the request was sent to.
func (r *Request) Subject() string { return r.msg.Subject }

// Tenant is the one that Endpoint.Tenant read; empty without.
func (r *Request) Tenant() string { return r.tenant }

// Reply is where answers go; empty where none is wanted.
func (r *Request) Reply() string { return r.msg.Reply }

// Data is the request's body.
func (r *Request) Data() []byte { return r.msg.Data }

// Headers are the request's; they are not changed.
func (r *Request) Headers() nats.Header { return r.msg.Header }

// Send answers with a message.
func (r *Request) Send(body []byte, headers map[string][]string) error {
	if r.msg.Reply == "" {
		return nil
	}
	msg := &nats.Msg{Subject: r.msg.Reply, Header: headers, Data: body}
	if err := r.s.nc.PublishMsg(msg); err != nil {
		return fmt.Errorf("send an answer: %w", err)
	}
	return nil
}

// Answer answers with v as JSON.
func (r *Request) Answer(v any) {
	body, err := json.Marshal(v)
	if err != nil {
		r.Fail(CodeInternal, err)
		return
	}
	r.note(r.Send(body, nil))
}

// Fail answers that the request could not be served now, counts that, and logs it.
func (r *Request) Fail(code int, err error) {
	r.s.failed.Add(1)
	r.s.log.Warn().Err(err).Str("subject", r.msg.Subject).Msg("request not served")
	r.Refuse(code, wire.Message("%v", err), nil, nil)
}

// Refuse answers with a service error, as a micro service's are.
func (r *Request) Refuse(code int, text string, body []byte, headers map[string][]string) {
	all := maps.Clone(headers)
	if all == nil {
		all = map[string][]string{}
	}
	all[micro.ErrorHeader] = []string{text}
	all[micro.ErrorCodeHeader] = []string{strconv.Itoa(code)}
	r.note(r.Send(body, all))
}

func (r *Request) note(err error) {
	if err != nil {
		r.s.log.Warn().Err(err).Msg("answer not sent")
	}
}
