package createostest

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// wire knows the server's connections and can cut them at a byte.
type wire struct {
	mu   sync.Mutex
	sent int64
	// cut is the count of sent at which a connection is reset; less than 0 is never.
	cut int64
}

func newWire() *wire { return &wire{cut: -1} }

func (w *wire) listen(l net.Listener) net.Listener { return &listener{Listener: l, wire: w} }

type connKey struct{}

func (w *wire) connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// of is the connection of a request; nil without Start.
func (w *wire) of(r *http.Request) *conn {
	c, ok := r.Context().Value(connKey{}).(*conn)
	if !ok {
		return nil
	}
	return c
}

func (w *wire) cutSession(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = w.sent + n
}

func (w *wire) total() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent
}

// take says how many of n bytes may still be sent on c, and counts them.
func (w *wire) take(c *conn, n int) (allowed int, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	allowed = n
	if c.left >= 0 && int64(allowed) >= c.left {
		allowed, cut = int(c.left), true
	}
	if w.cut >= 0 && w.sent+int64(allowed) >= w.cut {
		allowed, cut = int(w.cut-w.sent), true
		w.cut = -1
	}
	if c.left >= 0 {
		c.left -= int64(allowed)
	}
	w.sent += int64(allowed)
	c.sent += int64(allowed)
	return allowed, cut
}

type listener struct {
	net.Listener
	wire *wire
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, wire: l.wire, left: -1}, nil
}

// conn counts and cuts. A nil conn is one that nobody can cut.
type conn struct {
	net.Conn
	wire *wire
	// sent counts bytes; left is how many may follow, less than 0 any number. Both
	// are guarded by wire.mu.
	sent, left int64
	// last is the part of the newest answer.
	last *span
}

// span is an answer's part of what a connection sent. net/http sends the last of it
// when the handler has returned.
type span struct {
	conn *conn
	// end is less than 0 while the answer is the newest.
	begin, end int64
}

// next begins the next answer's part, which ends the one before.
func (c *conn) next() *span {
	if c == nil {
		return nil
	}
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	if c.last != nil {
		c.last.end = c.sent
	}
	c.last = &span{conn: c, begin: c.sent, end: -1}
	return c.last
}

func (s *span) bytes() int64 {
	if s == nil {
		return 0
	}
	s.conn.wire.mu.Lock()
	defer s.conn.wire.mu.Unlock()
	if s.end < 0 {
		return s.conn.sent - s.begin
	}
	return s.end - s.begin
}

var errCut = errors.New("the connection was cut")

func (c *conn) Write(p []byte) (int, error) {
	allowed, cut := c.wire.take(c, len(p))
	n, err := c.Conn.Write(p[:allowed])
	if cut && err == nil {
		c.reset()
		err = errCut
	}
	return n, err
}

// limit lets n further bytes through.
func (c *conn) limit(n int64) {
	if c == nil {
		return
	}
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	c.left = n
}

// reset ends the connection with RST instead of FIN. What was sent on the loopback
// has arrived: its reader gets it before the error.
func (c *conn) reset() {
	if c == nil {
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		// An error means that it has ended.
		_ = tcp.SetLinger(0) //nolint:errcheck // see above
	}
	_ = c.Close() //nolint:errcheck // see above
}

// answerWriter is what the API answers into.
type answerWriter struct {
	http.ResponseWriter
	conn          *conn
	closing, gone <-chan struct{}
	status        int
	sent          int64
	// cut is how many bytes of the body may be sent; rate how many in a second.
	cut  *int64
	rate int64
}

func (w *answerWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	total := 0
	for len(p) > 0 {
		n := len(p)
		if w.rate > 0 {
			// In tenths of a second, so that a slow answer is a steady one.
			n = min(n, int(max(w.rate/10, 1)))
		}
		if w.cut != nil {
			n = min(n, int(*w.cut-w.sent))
		}
		written, err := w.ResponseWriter.Write(p[:n])
		total += written
		w.sent += int64(written)
		if err != nil {
			return total, err
		}
		if w.cut != nil && w.sent >= *w.cut {
			w.flushIfCut()
		}
		p = p[n:]
		if w.rate > 0 {
			w.flush()
			if err := w.pace(n); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// pace waits for as long as n bytes take.
func (w *answerWriter) pace(n int) error {
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(w.rate))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.gone:
	case <-w.closing:
	}
	return errCut
}

// Flush implements http.Flusher.
func (w *answerWriter) Flush() { w.flush() }

func (w *answerWriter) flush() {
	// An error means that the client has gone.
	_ = http.NewResponseController(w.ResponseWriter).Flush() //nolint:errcheck // see above
}

// flushIfCut resets a connection whose answer was to be cut, at the cut or, if it
// was shorter, at its end.
func (w *answerWriter) flushIfCut() {
	if w.cut == nil {
		return
	}
	w.flush()
	w.reset()
}

// reset ends the connection and the handler.
func (w *answerWriter) reset() {
	w.conn.reset()
	panic(http.ErrAbortHandler)
}

// hang waits for the client's or the server's end, and ends the handler.
func (w *answerWriter) hang() {
	select {
	case <-w.gone:
	case <-w.closing:
	}
	w.reset()
}

// answer is a scripted answer.
func (w *answerWriter) answer(a Action) {
	maps.Copy(w.Header(), a.header)
	body := []byte(a.text)
	if a.text == "" {
		body = statusBody(a.code)
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(a.code)
	// An error means that the client has gone.
	_, _ = w.Write(body) //nolint:errcheck // see above
	w.flushIfCut()
}
