package createostest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	defaultJournalBytes = 1 << 20
	defaultHeartbeat    = 5 * time.Second
	// endTimeout bounds the end of a sandbox and of the server. The kernel takes
	// milliseconds; a machine under the race detector needs more.
	endTimeout = 20 * time.Second
	// keptCalls bounds the books of calls: older ones are dropped.
	keptCalls = 100_000
	// keptBody is how much of a request's body the books keep.
	keptBody = 64 << 10
)

// Config is how the server is made.
type Config struct {
	// APIKey is the account's key. Required.
	APIKey string
	// MoreKeys are the keys of other accounts.
	MoreKeys []string
	// Backend makes the sandboxes. Nil means real processes in namespaces; see
	// NewHost. It is closed with the server.
	Backend Backend
	// Address to listen on; empty means 127.0.0.1:0.
	Address string
	// Now is the clock for times, the rate limit and the idle pause. Nil means
	// time.Now.
	Now func() time.Time
	// JournalBytes bounds a process's journal of output; 0 means 1 MiB.
	JournalBytes int
	// HoldBack lets a process wait while somebody follows its output and would lose
	// some of it. Without, the oldest output is evicted, as by the real service.
	HoldBack bool
	// Heartbeat is the time between a stream's heartbeats; 0 means 5 s.
	Heartbeat time.Duration
	// Lag is how long a sandbox is creating, pausing, resuming and destroying after
	// the call was answered; 0 means that a creation, a pause and a resume are done
	// when the call is, and a destruction as soon as it can be.
	Lag time.Duration
	// KeepDestroyed shows destroyed sandboxes with status destroyed instead of 404.
	KeepDestroyed bool
	// StrictParents refuses (404) a file whose directory is missing. Without, the
	// directory is made.
	StrictParents bool
	// RatePerMinute is how many requests one address may make in a minute before it
	// gets 429; 0 means no limit. The real service has 300.
	RatePerMinute int
	// Log gets every call at debug level, without bodies and keys.
	Log zerolog.Logger
}

// Server is the scripted server. Its life: New, then Handler or Start, then Close.
type Server struct {
	config  Config
	log     zerolog.Logger
	backend Backend
	api     http.Handler
	wire    *wire
	// closing is closed by Close: what waits then ends.
	closing chan struct{}
	// ended is closed when Close has done its work.
	ended chan struct{}
	// running counts goroutines, which Close waits for.
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	http     *http.Server
	url      string
	rules    []*rule
	calls    []*Call
	boxes    map[string]*box
	order    []string
	visitors map[string][]time.Time
}

// New makes a server that does not listen yet.
func New(config Config) (*Server, error) {
	if config.APIKey == "" {
		return nil, errors.New("createos server: APIKey is required")
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.JournalBytes == 0 {
		config.JournalBytes = defaultJournalBytes
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = defaultHeartbeat
	}
	if config.Address == "" {
		config.Address = "127.0.0.1:0"
	}
	if config.Backend == nil {
		config.Backend = NewHost()
	}
	s := &Server{
		config: config, log: config.Log, backend: config.Backend, wire: newWire(), closing: make(chan struct{}), ended: make(chan struct{}),
		boxes: map[string]*box{}, visitors: map[string][]time.Time{},
	}
	s.api = s.routes()
	return s, nil
}

// Handler is the whole server without a listener of its own. Actions that reset a
// connection then end it in good order, and CutWire does not work.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// Start listens and serves until Close. It is called at most once.
func (s *Server) Start(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.config.Address)
	if err != nil {
		return fmt.Errorf("createos server: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.http != nil {
		return errors.Join(errors.New("createos server: was started or closed before"), l.Close())
	}
	s.url = "http://" + l.Addr().String()
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: time.Minute, ConnContext: s.wire.connContext}
	s.http = server
	s.running.Go(func() {
		if err := server.Serve(s.wire.listen(l)); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error().Err(err).Msg("the server has stopped listening")
		}
	})
	return nil
}

// URL is the origin, without a path. It is empty before Start.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url
}

// Serve starts a server on an address and closes it when ctx ends or stop is called.
// It is for a program that only wants one to be there. stop returns when everything
// has ended, and says what has not.
func Serve(ctx context.Context, address string, config Config) (url string, stop func() error, err error) {
	config.Address = address
	s, err := New(config)
	if err != nil {
		return "", nil, err
	}
	if err := s.Start(ctx); err != nil {
		return "", nil, errors.Join(err, s.Close())
	}
	undo := context.AfterFunc(ctx, func() {
		if err := s.Close(); err != nil {
			s.log.Error().Err(err).Msg("the server has not ended in good order")
		}
	})
	return s.URL(), func() error { undo(); return s.Close() }, nil
}

// Script adds rules. It panics on a pattern that is none, which is a test's mistake.
func (s *Server) Script(rules ...Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rules {
		if _, err := path.Match(r.Path, ""); err != nil {
			panic(fmt.Sprintf("createos server: pattern %q: %v", r.Path, err))
		}
		s.rules = append(s.rules, &rule{Rule: r})
	}
}

// Unscript takes all rules away.
func (s *Server) Unscript() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// CutSession resets, once, the connection on which the n-th byte from now on is
// sent, right before that byte, whichever answer it belongs to. WireBytes counts
// them. It needs a server that was started by Start.
func (s *Server) CutSession(n int64) { s.wire.cutSession(n) }

// WireBytes is how many bytes were sent since Start, on all connections.
func (s *Server) WireBytes() int64 { return s.wire.total() }

// Close ends all connections, sandboxes and processes and returns when they have
// ended. Its error names what has not. A second call does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.ended
		return nil
	}
	s.closed = true
	defer close(s.ended)
	server := s.http
	boxes := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		boxes = append(boxes, b)
	}
	s.mu.Unlock()
	close(s.closing)
	var errs []error
	if server != nil {
		errs = append(errs, server.Close())
	}
	ctx, cancel := ownContext()
	defer cancel()
	ends := make([]error, len(boxes))
	var all sync.WaitGroup
	for i, b := range boxes {
		all.Go(func() { ends[i] = s.end(ctx, b) })
	}
	all.Wait()
	s.running.Wait()
	errs = append(append(errs, ends...), s.backend.Close())
	left, err := s.Leftovers()
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("createos server: left on the host: %q", left))
	}
	return errors.Join(append(errs, err)...)
}

var errClosed = errors.New("createos server: is closed")

// enter counts a call, for which Close then waits; false once it is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// ownContext is a context for what goes on although its caller has gone: a call
// that is being processed, and Close.
func ownContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), endTimeout) //nolint:forbidigo // see above
}
