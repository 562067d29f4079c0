package createostest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// inside is what a call carries through the API.
type inside struct {
	key  string
	call *Call
	fx   effects
	w    *answerWriter
}

type insideKey struct{}

// in is the call that r is. A request that did not come through serve has none.
func in(r *http.Request) *inside {
	if i, ok := r.Context().Value(insideKey{}).(*inside); ok {
		return i
	}
	return &inside{call: &Call{}}
}

// serve is the way of every call: the books, the script, the account, the API.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		s.refuse(w, refuse(http.StatusServiceUnavailable, "the server is closed"))
		return
	}
	defer s.running.Done()
	sent := s.wire.of(r)
	call, fx := s.note(r, sent.next())
	a := &answerWriter{ResponseWriter: w, conn: sent, closing: s.closing, gone: r.Context().Done()}
	body := &countingBody{ReadCloser: r.Body, sum: sha256.New(), keep: call.Op != PutFile}
	r.Body = body
	w.Header().Set("X-Request-Id", requestID())
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		call.Ended = s.config.Now()
		call.Status, call.AnswerBytes = a.status, a.sent
		call.Body, call.BodyBytes, call.BodySHA256 = body.kept, body.n, hex.EncodeToString(body.sum.Sum(nil))
		s.log.Debug().Str("op", string(call.Op)).Str("path", call.Path).Int("status", call.Status).Bool("scripted", call.Scripted).Msg("call")
	}()
	if call.Op != PutFile {
		// What was asked is in the books even where a script keeps it from the API, and
		// is processed even if its client goes meanwhile.
		asked, err := io.ReadAll(io.LimitReader(body, maxBody+1))
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(asked), failing{err}))
	}
	i := &inside{call: call, fx: fx, w: a}
	r = r.WithContext(context.WithValue(r.Context(), insideKey{}, i))
	s.act(a, r, i)
}

// act lets the script have its way with a call.
func (s *Server) act(w *answerWriter, r *http.Request, i *inside) {
	fx := i.fx
	if d, ok := fx.find(kindDelay); ok && !s.pause(d.d) {
		w.reset()
	}
	if c, ok := fx.find(kindCutWire); ok {
		w.conn.limit(c.n)
	}
	if c, ok := fx.find(kindCutBody); ok {
		w.cut = &c.n
	}
	if c, ok := fx.find(kindSlowBody); ok {
		w.rate = c.n
	}
	if fx.has(kindCutBefore) {
		w.reset()
	}
	if fx.has(kindHang) {
		w.hang()
	}
	if a, ok := fx.find(kindStatus); ok {
		w.answer(a)
		return
	}
	s.setProcessed(i.call)
	silent := fx.has(kindCutAfterCommit) || fx.has(kindHangAfterCommit) || fx.has(kindCommitThen)
	if !silent {
		s.account(w, r, i)
		w.flushIfCut()
		return
	}
	s.account(&nowhere{header: http.Header{}}, r, i)
	if a, ok := fx.find(kindCommitThen); ok {
		w.answer(a)
		return
	}
	if fx.has(kindHangAfterCommit) {
		w.hang()
	}
	w.reset()
}

// account asks for the key and counts requests.
func (s *Server) account(w http.ResponseWriter, r *http.Request, i *inside) {
	for _, name := range []string{"X-Api-Key", "X-Auth-Token", "X-Access-Token"} {
		if key := r.Header.Get(name); key != "" && i.key == "" {
			i.key = key
		}
	}
	if wait, ok := s.admitRate(r); !ok {
		w.Header().Set("Retry-After", retryAfter(wait))
		s.refuse(w, refuse(http.StatusTooManyRequests, "too many requests"))
		return
	}
	if i.key != s.config.APIKey && !slices.Contains(s.config.MoreKeys, i.key) {
		s.refuse(w, refuse(http.StatusUnauthorized, "no valid key"))
		return
	}
	s.api.ServeHTTP(w, r)
}

// admitRate says whether an address may ask again, and if not, when.
func (s *Server) admitRate(r *http.Request) (time.Duration, bool) {
	if s.config.RatePerMinute == 0 {
		return 0, true
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.Now()
	recent := slices.DeleteFunc(s.visitors[host], func(t time.Time) bool { return now.Sub(t) >= time.Minute })
	if len(recent) >= s.config.RatePerMinute {
		s.visitors[host] = recent
		return time.Minute - now.Sub(recent[0]), false
	}
	s.visitors[host] = append(recent, now)
	return 0, true
}

// note enters a call into the books and says what the script has for it.
func (s *Server) note(r *http.Request, on *span) (*Call, effects) {
	header := r.Header.Clone()
	for _, name := range []string{"X-Api-Key", "X-Auth-Token", "X-Access-Token"} {
		header.Del(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Call{Begun: s.config.Now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Header: header, Seq: 1, span: on}
	c.Op, c.Sandbox, c.Process = classify(r.Method, r.URL.Path)
	if n := len(s.calls); n > 0 {
		c.Seq = s.calls[n-1].Seq + 1
		if n >= keptCalls {
			s.calls = append(s.calls[:0], s.calls[n/2:]...)
		}
	}
	s.calls = append(s.calls, c)
	var fx effects
	for _, rule := range s.rules {
		if rule.fire(*c) {
			fx = append(fx, rule.Then...)
			c.Scripted = true
		}
	}
	return c, fx
}

func (s *Server) setProcessed(c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Processed = true
}

func (s *Server) setCreated(c *Call, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Created = id
}

// classify says what call a method and a path are.
func classify(method, path string) (op Op, sandbox, process string) {
	rest, under := strings.CutPrefix(path, "/v1/sandboxes")
	parts := strings.Split(strings.TrimPrefix(rest, "/"), "/")
	if !under || rest != "" && rest[0] != '/' {
		return Other, "", ""
	}
	shape := method + " "
	for i, p := range parts {
		switch {
		case i == 0 && p == "":
		case i == 0:
			sandbox, shape = p, shape+"*"
		case i == 2 && parts[1] == "processes":
			process, shape = p, shape+"/*"
		default:
			shape += "/" + p
		}
	}
	op, known := shapes()[shape]
	if !known {
		op = Other
	}
	return op, sandbox, process
}

// shapes are the calls of the API; * is an id.
func shapes() map[string]Op {
	return map[string]Op{
		"POST ": CreateSandbox, "GET ": ListSandboxes,
		"GET *": GetSandbox, "PATCH *": PatchSandbox, "DELETE *": DeleteSandbox,
		"POST */pause": PauseSandbox, "POST */resume": ResumeSandbox,
		"PUT */files": PutFile, "GET */files": GetFile, "POST */exec": Exec,
		"POST */processes": CreateProcess, "GET */processes": ListProcesses,
		"GET */processes/*": GetProcess, "DELETE */processes/*": DeleteProcess,
		"GET */processes/*/connect": Connect, "POST */processes/*/input": Input,
		"POST */processes/*/stdin/close": CloseStdin, "POST */processes/*/resize": Resize,
		"POST */processes/*/signal": Signal, "GET */processes/*/wait": Wait,
	}
}

// pause waits, whatever the client does; false when the server closes first.
func (s *Server) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closing:
		return false
	}
}

// countingBody digests what is read of a request's body.
type countingBody struct {
	io.ReadCloser
	sum  hash.Hash
	n    int64
	keep bool
	kept []byte
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	// A hash never fails (package hash).
	_, _ = b.sum.Write(p[:n])
	if b.keep {
		b.kept = append(b.kept, p[:min(n, keptBody-len(b.kept))]...)
	}
	return n, err
}

// failing is a reader's end.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// nowhere is where an answer goes that nobody gets.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}
func (n *nowhere) Flush()                      {}
