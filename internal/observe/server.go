package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Server answers /healthz, /readyz and /metrics.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Health is what /readyz says.
type Health struct {
	// Ready is nil when the process can do its work, else the reason.
	Ready func() error
	// Detail is what else there is to know, the same for the process's whole life:
	// its text with ?verbose, its JSON where that is asked for. Nil means nothing.
	Detail fmt.Stringer
}

// Listen takes the address ("host:port") at once, so that a taken one is a start
// error. /healthz only says that the process answers at all, because a broker's
// outage is no reason to restart a worker.
func Listen(ctx context.Context, address string, metrics *Set, health Health) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("health and metrics address: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil, "") })
	mux.HandleFunc("GET /readyz", health.serve)
	// The bounds keep a stuck or hostile scraper from holding a connection.
	return &Server{listener, &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}}, nil
}

// Address is where it listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	const patience = 2 * time.Second // for scrapes under way
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve health and metrics: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if err := s.http.Shutdown(end); err != nil {
			return errors.Join(err, s.http.Close())
		}
		return nil
	})
	return group.Wait()
}

// Close lets go of the address of a Server that was never run.
func (s *Server) Close() error {
	if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// serve answers in one line, with the detail where the query says verbose, or in
// JSON where the client accepts that.
func (h Health) serve(w http.ResponseWriter, r *http.Request) {
	err := h.Ready()
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		h.document(w, err)
		return
	}
	detail := ""
	if r.URL.Query().Has("verbose") && h.Detail != nil {
		detail = h.Detail.String()
	}
	answer(w, err, detail)
}

func (h Health) document(w http.ResponseWriter, err error) {
	doc := struct {
		Ready  bool   `json:"ready"`
		Reason string `json:"reason,omitempty"`
		Detail any    `json:"detail,omitempty"`
	}{Ready: err == nil}
	if err != nil {
		doc.Reason = err.Error()
	}
	if h.Detail != nil {
		doc.Detail = h.Detail
	}
	body, jsonErr := json.Marshal(doc)
	if jsonErr != nil {
		http.Error(w, jsonErr.Error(), http.StatusInternalServerError)
		return
	}
	write(w, "application/json", err == nil, append(body, '\n'))
}

func answer(w http.ResponseWriter, err error, detail string) {
	text := "ok\n"
	if err != nil {
		text = err.Error() + "\n"
	}
	write(w, "text/plain; charset=utf-8", err == nil, []byte(text+detail))
}

func write(w http.ResponseWriter, kind string, ok bool, body []byte) {
	w.Header().Set("Content-Type", kind)
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// A caller that has gone away is no event of ours.
	if _, err := w.Write(body); err != nil {
		return
	}
}
