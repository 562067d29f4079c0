package createostest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// maxBody bounds a JSON body: environments may have 64 KiB, an input 256 KiB in
// base64.
const maxBody = 1 << 20

// refusal is an answer that is no success: fail below 500, error from there on.
type refusal struct {
	status int
	text   string
	// code is the stable machine code, more what stands beside it.
	code string
	more map[string]any
}

func (r *refusal) Error() string { return fmt.Sprintf("HTTP %d: %s", r.status, r.text) }

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status: status, text: fmt.Sprintf(format, args...)}
}

var errNoSandbox = errors.New("no such sandbox")

// body is the envelope (JSend).
func (r *refusal) body() []byte {
	if r.status >= http.StatusInternalServerError {
		return encode(map[string]any{"status": "error", "message": r.text, "code": r.status})
	}
	var data any = r.text
	if r.code != "" {
		object := map[string]any{"code": r.code, "message": r.text}
		maps.Copy(object, r.more)
		data = object
	}
	return encode(map[string]any{"status": "fail", "data": data})
}

// statusBody is the envelope that belongs to a code.
func statusBody(code int) []byte {
	if code < http.StatusMultipleChoices {
		return encode(map[string]any{"status": "success", "data": map[string]any{}})
	}
	return refuse(code, "scripted").body()
}

// encode is for values that are made here, which JSON always has.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("createos server: encoding: %v", err))
	}
	return data
}

// endpoint is one call of the API: its data, or a refusal.
type endpoint func(r *http.Request) (status int, data any, err error)

// ok answers 200.
func ok(data any) (int, any, error) { return http.StatusOK, data, nil }

func fail(status int, format string, args ...any) (int, any, error) {
	return 0, nil, refuse(status, format, args...)
}

// envelope puts what an endpoint says into JSend.
func (s *Server) envelope(e endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, data, err := e(r)
		if err != nil {
			s.refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusAccepted {
			w.Header().Set("X-Poll-After", "1")
		}
		w.WriteHeader(status)
		s.write(w, encode(map[string]any{"status": "success", "data": data}))
	}
}

func (s *Server) refuse(w http.ResponseWriter, err error) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		s.log.Warn().Err(err).Msg("a call could not be served")
		r = refuse(http.StatusInternalServerError, "%v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	s.write(w, r.body())
}

// write sends a part of an answer. A client that has gone is the client's affair.
func (s *Server) write(w io.Writer, data []byte) {
	if _, err := w.Write(data); err != nil {
		s.log.Debug().Err(err).Msg("the client has gone")
	}
}

// decode reads a JSON body strictly: what the server would not understand it does
// not pass over.
func decode(r *http.Request, into any) error {
	d := json.NewDecoder(io.LimitReader(r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return refuse(http.StatusBadRequest, "body: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, "body: more than one JSON value, or too long")
	}
	return nil
}

// number reads a query parameter.
func number(r *http.Request, name string, otherwise int64) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, refuse(http.StatusBadRequest, "%s: not a number from 0", name)
	}
	return n, nil
}

func retryAfter(d time.Duration) string {
	return strconv.Itoa(int(max((d+time.Second-1)/time.Second, 0)))
}

func requestID() string { return "req-" + rand.Text()[:12] }
