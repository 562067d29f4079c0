package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
)

// Server is dev's own NATS server, with JetStream on file storage.
type Server struct {
	nats *server.Server
}

// StartServer starts a NATS server on address (a loopback host and port; port 0
// is any free one) that keeps its streams below dir.
func StartServer(ctx context.Context, address, dir string, log zerolog.Logger) (*Server, error) {
	// More would let a forgotten dev directory fill the disk.
	const maxStore, maxMemory, maxPayload = 8 << 30, 256 << 20, 8 << 20
	const readyWait = 10 * time.Second

	host, port, err := splitAddress(ctx, address)
	if err != nil {
		return nil, err
	}
	store := filepath.Join(dir, "nats")
	if err := os.MkdirAll(store, 0o700); err != nil {
		return nil, fmt.Errorf("make the streams' directory: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "sallyport-dev", Host: host, Port: port,
		JetStream: true, StoreDir: store, JetStreamMaxStore: maxStore, JetStreamMaxMemory: maxMemory, MaxPayload: maxPayload,
		NoSigs: true, DisableJetStreamBanner: true,
		// Clients of a stopping dev server are told at once.
		LameDuckDuration: time.Second, LameDuckGracePeriod: time.Millisecond,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	s.SetLoggerV2(serverLog{log.With().Str("part", "nats-server").Logger()}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(readyWait) {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("embedded NATS server: not ready after %s; see the log above", readyWait)
	}
	return &Server{s}, nil
}

// URL is where clients connect.
func (s *Server) URL() string { return s.nats.ClientURL() }

// InProcessConn is a connection without a socket (nats.InProcessConnProvider).
func (s *Server) InProcessConn() (net.Conn, error) { return s.nats.InProcessConn() }

// Close stops the server and returns when its files are closed.
func (s *Server) Close() {
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
}

// splitAddress also finds out whether the port is free, because the server
// itself would end the process's log with a fatal line instead of an error.
func splitAddress(ctx context.Context, address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: %w", address, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", 0, fmt.Errorf("listen address %q is not on loopback: dev has no authentication; for a network, run a NATS server and sallyport worker, gateway and reaper", address)
	}
	port, err = strconv.Atoi(text)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: %w", address, err)
	}
	var lc net.ListenConfig
	probe, err := lc.Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "", 0, fmt.Errorf("listen address %s is taken (another dev or NATS server?): stop that one, or choose another, like --listen 127.0.0.1:4333", address)
	case err != nil:
		return "", 0, fmt.Errorf("listen address %s: %w", address, err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, probe.Close()
}

// serverLog passes the server's lines on; its notices are our debug lines.
type serverLog struct{ zerolog.Logger }

func (l serverLog) Noticef(format string, args ...any) { l.Debug().Msgf(format, args...) }
func (l serverLog) Warnf(format string, args ...any)   { l.Warn().Msgf(format, args...) }
func (l serverLog) Fatalf(format string, args ...any)  { l.Error().Msgf(format, args...) }
func (l serverLog) Errorf(format string, args ...any)  { l.Error().Msgf(format, args...) }
func (l serverLog) Debugf(format string, args ...any)  { l.Trace().Msgf(format, args...) }
func (l serverLog) Tracef(format string, args ...any)  { l.Trace().Msgf(format, args...) }
