package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sallyport/sallyport/internal/wire"
)

// The types that travel. See docs/wire.md for each field.
type (
	// Request is what to run.
	Request = wire.Request
	// Result is the one final decision about a job.
	Result = wire.Result
	// Event is one message of a job's output.
	Event = wire.Event
)

// Config says where jobs go.
type Config struct {
	// Prefix of all subjects; default "exec".
	Prefix string
	// StreamPrefix begins the object store's name; default "EXEC".
	StreamPrefix string
	// Tenant and Queue default to "default".
	Tenant, Queue string
	// AcceptTimeout bounds the wait for the gateway's first answer; default 10 s.
	AcceptTimeout time.Duration
}

// Client submits and follows jobs. It is safe for concurrent use.
type Client struct {
	nc       *nats.Conn
	subjects wire.Subjects
	cfg      Config
}

var (
	// ErrNoGateway means that no gateway listens on the subject: nothing was
	// submitted.
	ErrNoGateway = errors.New("no gateway answers (is `sallyport gateway` or `sallyport dev` running, with this subject prefix?)")
	// ErrMaybeAccepted means that the gateway's answer did not come in time: the
	// job may be queued. Ask Status with the same id. Submitting the same request
	// again under the same id never runs it twice; while the first one stands in
	// the queue it is refused with reason id_conflict, and can be followed by its
	// id.
	ErrMaybeAccepted = errors.New("no answer in time: the job may have been accepted")
	// ErrUnknownJob means that nothing is known of the job.
	ErrUnknownJob = errors.New("unknown job")
	// ErrCutOff means that the stream of events ended without a result.
	ErrCutOff = errors.New("the job's events stopped without a result")
)

// RefusedError is a request that the gateway or a worker did not take. Nothing runs.
type RefusedError struct {
	Result Result
}

// Error names the field and what to do.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s (%s): %s", e.Result.Outcome, e.Result.Reason, e.Result.Message)
}

// New makes a client on nc.
func New(nc *nats.Conn, cfg Config) (*Client, error) {
	orDefault(&cfg.Prefix, "exec")
	orDefault(&cfg.StreamPrefix, "EXEC")
	orDefault(&cfg.Tenant, "default")
	orDefault(&cfg.Queue, "default")
	if cfg.AcceptTimeout <= 0 {
		cfg.AcceptTimeout = 10 * time.Second
	}
	subjects, err := wire.NewSubjects(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	for name, v := range map[string]string{"tenant": cfg.Tenant, "queue": cfg.Queue} {
		if !wire.ValidToken(v) {
			return nil, fmt.Errorf("%s %q: must be 1 to 64 of A-Z a-z 0-9 _ -", name, v)
		}
	}
	return &Client{nc: nc, subjects: subjects, cfg: cfg}, nil
}

func orDefault(v *string, d string) {
	if *v == "" {
		*v = d
	}
}

// Submit hands r to the gateway and returns once it is accepted, that is stored
// in the queue. An empty id lets the gateway choose one. The job's events arrive
// on the returned Job, which must be closed.
//
// Errors: ErrNoGateway, *RefusedError (nothing runs), ErrMaybeAccepted.
func (c *Client) Submit(ctx context.Context, r *Request, id string) (*Job, error) {
	body, err := wire.EncodeRequest(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("subscribe to the reply inbox: %w", err)
	}
	// A slow reader is told of a hole by the sequence numbers; until then this
	// much may wait here.
	if err := sub.SetPendingLimits(1<<20, 256<<20); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	mode := r.Mode(true)
	job := &Job{
		Tenant: c.cfg.Tenant, Queue: c.cfg.Queue, ID: id, sub: sub, nc: c.nc,
		output: mode == wire.OutputReply || mode == wire.OutputBoth,
	}
	msg := nats.NewMsg(c.subjects.Submit(c.cfg.Tenant, c.cfg.Queue))
	msg.Reply, msg.Data = inbox, body
	if id != "" {
		msg.Header.Set(wire.HeaderID, id)
	}
	if err := c.nc.PublishMsg(msg); err != nil {
		return nil, errors.Join(fmt.Errorf("submit: %w", err), sub.Unsubscribe())
	}
	if err := job.accepted(ctx, c.cfg.AcceptTimeout); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	return job, nil
}

// State is what is known of a job.
type State struct {
	wire.JobStatus
}

// Final decodes the state's result; nil while there is none.
func (s *State) Final() (*Result, error) {
	if len(s.Result) == 0 {
		return nil, nil //nolint:nilnil // no result yet is an answer, not an error
	}
	return wire.DecodeResult(s.Result)
}

// Status says where the job with the id stands. An unknown job is a State, not
// an error.
func (c *Client) Status(ctx context.Context, id string) (*State, error) {
	return c.ask(ctx, c.subjects.Status(c.cfg.Tenant, id), id)
}

// Cancel asks for the end of a queued or running job. It returns at once with
// what the job's state is now; a running job's result follows when its tree is
// gone. Cancelling twice, or after the end, is no error.
func (c *Client) Cancel(ctx context.Context, id string) (*State, error) {
	return c.ask(ctx, c.subjects.Cancel(c.cfg.Tenant, id), id)
}

func (c *Client) ask(ctx context.Context, subject, id string) (*State, error) {
	if !wire.ValidToken(id) {
		return nil, fmt.Errorf("id %q: must be 1 to 64 of A-Z a-z 0-9 _ -", id)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AcceptTimeout)
	defer cancel()
	msg, err := c.nc.RequestWithContext(ctx, subject, nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, ErrNoGateway
	}
	if err != nil {
		return nil, fmt.Errorf("ask the gateway: %w", err)
	}
	if err := serviceError(msg); err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(msg.Data, &s); err != nil {
		return nil, fmt.Errorf("gateway's answer: %w", err)
	}
	return &s, nil
}

// codeMaybe is the service error that says "it may have been carried out".
const codeMaybe = 504

// serviceError is the error that a NATS micro service put into its headers.
func serviceError(msg *nats.Msg) error {
	text := msg.Header.Get("Nats-Service-Error")
	if text == "" {
		return nil
	}
	code, err := strconv.Atoi(msg.Header.Get("Nats-Service-Error-Code"))
	if err != nil {
		code = 0
	}
	if code == codeMaybe {
		return fmt.Errorf("gateway: %s (%d): %w", text, code, ErrMaybeAccepted)
	}
	return fmt.Errorf("gateway: %s (%d)", text, code)
}
