package createos

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxAnswerBytes bounds a JSON answer; a page of 100 sandboxes takes far less.
	maxAnswerBytes = 8 << 20
	// maxHold bounds how long one answer can keep all calls back.
	maxHold = 30 * time.Second
	// retries is how often what changes nothing, or can be done twice, is done again.
	retries = 2
)

// client makes calls to one origin.
type client struct {
	origin  string
	key     Secret
	http    *http.Client
	pacer   *Pacer
	timeout time.Duration
	delay   time.Duration // before a retry
}

func newClient(c Config, key Secret) *client {
	transport := &http.Transport{
		ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConnsPerHost: 16,
		TLSHandshakeTimeout: 15 * time.Second, IdleConnTimeout: 20 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	pacer := c.Pacer
	if pacer == nil {
		pacer = NewPacer(c.Pace)
	}
	return &client{
		origin: c.APIURL, key: key, pacer: pacer, timeout: c.RequestTimeout, delay: c.ReconnectDelay,
		http: &http.Client{
			Transport: transport,
			// The key goes nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// call is one call.
type call struct {
	what   string
	effect effect
	method string
	path   string // below /v1, escaped
	query  url.Values
	// json is the body as JSON; or body is, of length bytes (-1 when not known).
	json   any
	body   io.Reader
	length int64
	// timeout bounds the call with its body; 0 is the client's.
	timeout time.Duration
}

// send makes the call when it is its turn. The answer's status is 2xx, and the caller
// closes its body, until when ctx must live.
func (c *client) send(ctx context.Context, k call) (*http.Response, error) {
	fault := &callError{what: k.what, effect: k.effect}
	if err := c.pacer.Wait(ctx); err != nil {
		fault.err = err
		return nil, fault
	}
	// Before there is a connection, no byte can have left.
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	request, err := c.request(traced, k)
	if err != nil {
		fault.err = err
		return nil, fault
	}
	response, err := c.http.Do(request)
	fault.sent = sent.Load()
	if err != nil {
		fault.err = transportError(ctx)
		return nil, fault
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	fault.status = response.StatusCode
	fault.retryAfter = retryAfter(response.Header.Get("Retry-After"), time.Now())
	if fault.retryAfter > 0 && (fault.status == http.StatusTooManyRequests || fault.status == http.StatusServiceUnavailable) {
		c.pacer.Hold(fault.retryAfter)
	}
	// The body is the service's words, which go nowhere: not even read.
	if err := response.Body.Close(); err != nil {
		fault.err = nil // the status is what counts
	}
	return nil, fault
}

func (c *client) request(ctx context.Context, k call) (*http.Request, error) {
	body, length := k.body, k.length
	kind := "application/octet-stream"
	if k.json != nil {
		data, err := json.Marshal(k.json)
		if err != nil {
			return nil, errors.New("the request cannot be encoded")
		}
		body, length, kind = bytes.NewReader(data), int64(len(data)), "application/json"
	}
	address := c.origin + "/v1" + k.path
	if len(k.query) > 0 {
		address += "?" + k.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, k.method, address, body)
	if err != nil {
		return nil, errors.New("the request cannot be made")
	}
	if body != nil {
		request.ContentLength = length
		request.Header.Set("Content-Type", kind)
	}
	request.Header.Set("X-Api-Key", string(c.key))
	request.Header.Set("User-Agent", "sallyport")
	return request, nil
}

// transportError is why there is no answer: the context's end, or fixed words, since
// the transport's own may hold the URL.
func transportError(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.New("the connection failed")
}

// retryAfter reads a Retry-After header: seconds or a date (RFC 9110, 10.2.3).
func retryAfter(text string, now time.Time) time.Duration {
	var d time.Duration
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		d = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxHold)
}

// within gives the call its deadline, which includes the body.
func (c *client) within(ctx context.Context, k call) (context.Context, context.CancelFunc) {
	d := k.timeout
	if d == 0 {
		d = c.timeout
	}
	return context.WithTimeoutCause(ctx, d, errTimeout)
}

// do makes a call and reads data of the answer's envelope into into. Where that is nil,
// the status says all.
func (c *client) do(ctx context.Context, k call, into any) error {
	ctx, cancel := c.within(ctx, k)
	defer cancel()
	response, err := c.send(ctx, k)
	if err != nil {
		return err
	}
	fault := &callError{what: k.what, effect: k.effect, status: response.StatusCode, sent: true}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if errors.Join(err, response.Body.Close()) != nil {
		fault.status, fault.err = 0, transportError(ctx)
		return fault
	}
	if into == nil {
		return nil
	}
	if err := open(data, into); err != nil {
		fault.malformed, fault.err = true, err
		return fault
	}
	return nil
}

// again makes a call that may be made twice, until it works, cannot work, or was made
// often enough.
func (c *client) again(ctx context.Context, k call, into any) error {
	for try := 0; ; try++ {
		err := c.do(ctx, k, into)
		if err == nil || try == retries || !passing(err) || ctx.Err() != nil {
			return err
		}
		if sleep(ctx, c.delay<<try) != nil {
			return err
		}
	}
}

// open takes data out of the envelope of an answer.
func open(answer []byte, into any) error {
	if len(answer) > maxAnswerBytes {
		return errors.New("the answer is too large")
	}
	var envelope struct {
		Status string         `json:"status"`
		Data   jsontext.Value `json:"data"`
	}
	if err := json.Unmarshal(answer, &envelope); err != nil {
		return errors.New("the answer is no valid JSON object")
	}
	switch {
	case envelope.Status != "success":
		return errors.New("the answer is no success")
	case envelope.Data.Kind() != '{':
		return errors.New("the answer has no data")
	}
	if err := json.Unmarshal(envelope.Data, into); err != nil {
		return errors.New("the answer's data is invalid")
	}
	return nil
}

// readFull reads until p is full or the source ends, which is no error.
func readFull(r io.Reader, p []byte) (int, error) {
	n, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}
