package observe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// Server answers /healthz, /readyz and /metrics.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen takes the address ("host:port") at once, so that a taken one is a start
// error. ready is nil when the process can do its work, else the reason, which
// /readyz shows; /healthz only says that the process answers at all, because a
// broker's outage is no reason to restart a worker.
func Listen(ctx context.Context, address string, metrics *Set, ready func() error) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("health and metrics address: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
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

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := "ok\n"
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = err.Error() + "\n"
	}
	// A caller that has gone away is no event of ours.
	if _, err := w.Write([]byte(text)); err != nil {
		return
	}
}
