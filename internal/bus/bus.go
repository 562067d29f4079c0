package bus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/wire"
)

const (
	// DefaultConnectTimeout bounds Connect when its context has no deadline.
	DefaultConnectTimeout = 20 * time.Second
	// DefaultRequestTimeout bounds one request to the server. nats.go's own
	// default for JetStream.
	DefaultRequestTimeout = 5 * time.Second
	// DefaultResultRetention is how long a terminal record is kept.
	DefaultResultRetention = 7 * 24 * time.Hour

	// dialTimeout bounds one attempt to reach one server, so that a dead one in
	// the list does not use up the whole start.
	dialTimeout    = 2 * time.Second
	minDialTimeout = 250 * time.Millisecond
	// pingInterval notices a dead link in 20 s (two pings); nats.go's default
	// would take 4 minutes, longer than the ack wait.
	pingInterval = 10 * time.Second
	// reconnectWait and reconnectJitter spread a fleet's reconnects over a
	// second.
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 750 * time.Millisecond
	// writeTimeout bounds one write to the socket, during which a connection can
	// do nothing else; nats.go's default is a minute, the whole ack wait.
	writeTimeout = 10 * time.Second
	// drainTimeout bounds the drain of one connection where Close's context has
	// no deadline.
	drainTimeout = 10 * time.Second
)

// Options say how to connect. Servers or InProcess is required.
type Options struct {
	// Servers is a comma-separated list of URLs.
	Servers string
	// Name is the connections' name in the server's monitoring; " output" is
	// added to the second one's.
	Name string
	// NATS are further options (credentials, TLS, …). The bus's own options for
	// reconnecting, pings, buffers and handlers come after them and win.
	NATS []nats.Option
	// SubjectPrefix and StreamPrefix default to exec and EXEC.
	SubjectPrefix string
	StreamPrefix  string
	// InboxPrefix replaces _INBOX, for users whose permissions say so.
	InboxPrefix string
	// APIPrefix replaces $JS.API, for a JetStream domain ($JS.<domain>.API).
	APIPrefix string
	// InProcess connects to a server in this process; Servers is then only a
	// name for messages.
	InProcess nats.InProcessConnProvider
	// RetryOnFailedConnect keeps trying until Connect's context ends. Otherwise
	// the first round through the servers decides.
	RetryOnFailedConnect bool
	// RequestTimeout bounds one request; 0 means DefaultRequestTimeout.
	RequestTimeout time.Duration
	// ResultRetention is the Nats-TTL of terminal records, at least 1 s; 0 means
	// DefaultResultRetention.
	ResultRetention time.Duration
	Log             zerolog.Logger
	// OnPermissionError is told each subject that the server refused; it must not
	// block.
	OnPermissionError func(subject string)
	// OnSlowConsumer is told when the client dropped messages because a
	// subscription did not keep up; it must not block.
	OnSlowConsumer func(subject string)
}

// Bus is the connections to one server: for control, for output, and for serving
// others. Make it with Connect, end it with Close.
type Bus struct {
	log       zerolog.Logger
	opts      Options
	control   *nats.Conn
	output    *nats.Conn
	js        jetstream.JetStream
	subjects  wire.Subjects
	streams   StreamNames
	api       string
	timeout   time.Duration
	retention time.Duration
	pump      *pump
	services  *Bus                 // nil in the services' own view
	handled   atomic.Pointer[pump] // the same, for the connections' handlers
	pumping   sync.WaitGroup
	stopPump  context.CancelFunc
	closed    atomic.Bool

	permissionErrors atomic.Uint64
	slowConsumers    atomic.Uint64
}

// StreamNames are the names of the streams, from the stream prefix.
type StreamNames struct {
	Jobs, Out, Runs, Ledger, Dead string
	// Workers is the bucket's name; its stream is "KV_" + Workers.
	Workers string
	// Files is the object store's name; its stream is "OBJ_" + Files.
	Files string
}

// NewStreamNames names the streams; an empty prefix means EXEC.
func NewStreamNames(prefix string) StreamNames {
	if prefix == "" {
		prefix = "EXEC"
	}
	return StreamNames{
		Jobs: prefix + "_JOBS", Out: prefix + "_OUT", Runs: prefix + "_RUNS",
		Ledger: prefix + "_LEDGER", Dead: prefix + "_DEAD", Workers: prefix + "_WORKERS",
		Files: prefix + "_FILES",
	}
}

// ConsumerName is the durable name of a queue's consumer.
func ConsumerName(queue string) string { return "w-" + queue }

// Connect makes all connections and checks that the server speaks what
// Sallyport needs: version 2.12 or later, headers, JetStream. It returns within
// ctx's deadline (without one, DefaultConnectTimeout) and at most one attempt's
// 2 s a server, with an error that names the server and says what to do.
func Connect(ctx context.Context, opts Options) (*Bus, error) {
	b, err := newBus(opts)
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultConnectTimeout)
		defer cancel()
	}
	// A connection keeps its time limit for every later reconnect: it is taken
	// once, not from what is left at the last try.
	limit := dialTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, max(minDialTimeout, time.Until(deadline)))
	}
	if b.control, err = b.dial(ctx, b.opts.Name, limit); err != nil {
		return nil, err
	}
	if b.output, err = b.dial(ctx, b.opts.Name+" output", limit); err != nil {
		b.control.Close()
		return nil, err
	}
	serving, err := b.dial(ctx, b.opts.Name+" services", limit)
	if err == nil {
		err = b.start(ctx, serving)
	}
	if err != nil {
		for _, nc := range []*nats.Conn{serving, b.output, b.control} {
			if nc != nil {
				nc.Close()
			}
		}
		return nil, err
	}
	return b, nil
}

func newBus(opts Options) (*Bus, error) {
	if opts.Servers == "" && opts.InProcess == nil {
		return nil, errors.New("no NATS server is configured: set --server, for instance nats://127.0.0.1:4222")
	}
	if opts.Servers == "" {
		opts.Servers = "nats://in-process"
	}
	if opts.Name == "" {
		opts.Name = "sallyport"
	}
	if opts.SubjectPrefix == "" {
		opts.SubjectPrefix = "exec"
	}
	subjects, err := wire.NewSubjects(opts.SubjectPrefix)
	if err != nil {
		return nil, fmt.Errorf("subject prefix: %w", err)
	}
	b := &Bus{
		log: opts.Log, opts: opts, subjects: subjects, streams: NewStreamNames(opts.StreamPrefix),
		api: strings.TrimSuffix(opts.APIPrefix, "."), timeout: opts.RequestTimeout, retention: opts.ResultRetention,
	}
	if b.api == "" {
		b.api = "$JS.API"
	}
	if b.timeout <= 0 {
		b.timeout = DefaultRequestTimeout
	}
	if b.retention <= 0 {
		b.retention = DefaultResultRetention
	}
	if b.retention < time.Second {
		return nil, fmt.Errorf("result retention %s: the server's shortest time to live is 1s", b.retention)
	}
	return b, nil
}

// start checks the server and starts the output's pump.
func (b *Bus) start(ctx context.Context, serving *nats.Conn) error {
	if err := checkServer(ctx, b.control, b.api, b.serverName(b.control)); err != nil {
		return err
	}
	var err error
	if b.js, err = jetstream.NewWithAPIPrefix(b.control, b.api, jetstream.WithDefaultTimeout(b.timeout)); err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	js, err := jetstream.NewWithAPIPrefix(serving, b.api, jetstream.WithDefaultTimeout(b.timeout))
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	if b.pump, err = newPump(b.output, b.log, 2*b.timeout); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	b.services = &Bus{
		log: b.log, opts: b.opts, control: serving, output: b.output, js: js, subjects: b.subjects, streams: b.streams,
		api: b.api, timeout: b.timeout, retention: b.retention, pump: b.pump,
	}
	b.handled.Store(b.pump)
	// The pump outlives Connect's context on purpose: Close ends it and waits.
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stopPump = stop
	b.pumping.Go(func() { b.pump.run(run) })
	return nil
}

// dial connects once, or until ctx ends where a retry is asked for. An answer
// that trying again cannot change (authorization) ends it at once.
func (b *Bus) dial(ctx context.Context, name string, limit time.Duration) (*nats.Conn, error) {
	wait := reconnectWait
	for {
		nc, err := nats.Connect(b.opts.Servers, b.natsOptions(name, limit)...)
		if err == nil {
			return nc, nil
		}
		final := errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
			errors.Is(err, nats.ErrNkeysNotSupported)
		if final || !b.opts.RetryOnFailedConnect {
			return nil, b.connectError(err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, b.connectError(err)
		case <-timer.C:
		}
		wait = min(2*wait, dialTimeout)
	}
}

func (b *Bus) connectError(err error) error {
	servers := redact(b.opts.Servers)
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return fmt.Errorf("connect to NATS at %s: %w: check the files of --creds, --nkey, --tlscert, --tlskey and --tlsca, and who may read them", servers, err)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return fmt.Errorf("connect to NATS at %s: %w: check the user, password, token or credentials file", servers, err)
	default:
		return fmt.Errorf("connect to NATS at %s: %w: check that a nats-server with JetStream listens there (--server, or `sallyport dev` for a server of its own)", servers, err)
	}
}

func (b *Bus) natsOptions(name string, limit time.Duration) []nats.Option {
	options := append([]nats.Option{}, b.opts.NATS...)
	options = append(options,
		nats.Name(name),
		nats.Timeout(limit),
		nats.RetryOnFailedConnect(false),
		nats.MaxReconnects(-1),
		// Credentials may be rotated while we run: never give up for them.
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
		// No buffer on either connection: a control publish while disconnected
		// fails at once and is retried by its caller; the output keeps its own
		// window, which knows what was confirmed.
		nats.ReconnectBufSize(-1),
		nats.DrainTimeout(drainTimeout),
		nats.FlusherTimeout(writeTimeout),
		nats.ErrorHandler(b.onError),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if !b.closed.Load() {
				b.log.Warn().Err(err).Str("connection", name).Msg("nats disconnected")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.log.Info().Str("connection", name).Str("server", nc.ConnectedServerName()).Msg("nats reconnected")
			if p := b.handled.Load(); p != nil && p.nc == nc {
				p.kick()
			}
		}),
	)
	if b.opts.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(b.opts.InboxPrefix))
	}
	if b.opts.InProcess != nil {
		options = append(options, nats.InProcessServer(b.opts.InProcess))
	}
	return options
}

func (b *Bus) onError(nc *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		b.permissionErrors.Add(1)
		if s := deniedSubject(err.Error()); s != "" {
			subject = s
		}
		b.log.Error().Str("subject", subject).Err(err).Msg("nats permission refused")
		if b.opts.OnPermissionError != nil {
			b.opts.OnPermissionError(subject)
		}
	case errors.Is(err, nats.ErrSlowConsumer):
		b.slowConsumers.Add(1)
		b.log.Warn().Str("subject", subject).Msg("nats subscription dropped messages")
		if b.opts.OnSlowConsumer != nil {
			b.opts.OnSlowConsumer(subject)
		}
	default:
		b.log.Warn().Str("subject", subject).Err(err).Msg("nats reported an error")
		// A write of the background flusher that timed out is told here alone.
		var netErr net.Error
		if p := b.handled.Load(); p != nil && p.nc == nc && errors.As(err, &netErr) && netErr.Timeout() {
			p.disturbed(err)
		}
	}
}

// offline says in words what the library calls a full buffer: with none, that is
// what a publish without a connection ends with.
func offline(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return fmt.Errorf("not connected to NATS (%w)", err)
	}
	return err
}

// Control is the connection for everything but output. A publish while it is
// disconnected fails at once.
func (b *Bus) Control() *nats.Conn { return b.control }

// Services is b with a control connection of its own, for serving the requests of
// others: what a tenant sends there, however much, does not stand before a
// worker's claims and acknowledgements, and when the server cuts a reader off that
// is too slow for it, jobs go on. It ends with b and must not be closed itself.
func (b *Bus) Services() *Bus {
	if b.services == nil {
		return b
	}
	return b.services
}

// Output is the connection for events.
func (b *Bus) Output() *nats.Conn { return b.output }

// JS is JetStream on the control connection.
func (b *Bus) JS() jetstream.JetStream { return b.js }

// APIPrefix is the JetStream API's subject prefix, $JS.API unless a domain is
// configured.
func (b *Bus) APIPrefix() string { return b.api }

// Subjects are the subjects under the configured prefix.
func (b *Bus) Subjects() wire.Subjects { return b.subjects }

// Streams are the names of the streams under the configured prefix.
func (b *Bus) Streams() StreamNames { return b.streams }

// RequestTimeout bounds one request to the server.
func (b *Bus) RequestTimeout() time.Duration { return b.timeout }

// Connected says whether the connections that jobs need are up now.
func (b *Bus) Connected() bool { return b.control.IsConnected() && b.output.IsConnected() }

// Reconnects counts the reconnects of all connections.
func (b *Bus) Reconnects() uint64 {
	n := b.control.Stats().Reconnects + b.output.Stats().Reconnects
	if b.services != nil {
		n += b.services.control.Stats().Reconnects
	}
	return n
}

// PermissionErrors counts what the server refused by permissions.
func (b *Bus) PermissionErrors() uint64 { return b.permissionErrors.Load() }

// SlowConsumers counts the times that a subscription of ours dropped messages.
func (b *Bus) SlowConsumers() uint64 { return b.slowConsumers.Load() }

// Close waits until output is confirmed, drains all connections and closes them. When ctx ends first, the rest is cut off and the error says what was
// left. Calling it again does nothing.
func (b *Bus) Close(ctx context.Context) error {
	if b.closed.Swap(true) {
		return nil
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, drainTimeout)
		defer cancel()
	}
	err := b.pump.drain(ctx)
	b.stopPump()
	b.pumping.Wait()
	return errors.Join(err, closeConn(ctx, b.services.control), closeConn(ctx, b.output), closeConn(ctx, b.control))
}

// closeConn drains nc (handlers finish, buffers leave) and closes it.
func closeConn(ctx context.Context, nc *nats.Conn) error {
	defer nc.Close()
	if !nc.IsConnected() {
		return nil
	}
	done := nc.StatusChanged(nats.CLOSED)
	defer nc.RemoveStatusListener(done)
	if err := nc.Drain(); err != nil {
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrConnectionReconnecting) {
			return nil
		}
		return fmt.Errorf("drain the connection: %w", err)
	}
	for !nc.IsClosed() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain the connection: %w", context.Cause(ctx))
		case <-done:
			return nil
		}
	}
	return nil
}

func (b *Bus) serverName(nc *nats.Conn) string {
	if b.opts.InProcess != nil {
		return "in-process server"
	}
	return nc.ConnectedUrlRedacted()
}
