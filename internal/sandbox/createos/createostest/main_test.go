package createostest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

const (
	key     = "test-key"
	shape   = "s-1vcpu-256mb"
	patient = 30 * time.Second
)

func TestMain(m *testing.M) {
	if mark := os.Getenv(crashEnv); mark != "" {
		asServer(mark)
	}
	// Some tests wait for what takes its time, and run beside others: more of them than
	// there are processors. The flag -parallel rules.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// client asks a server.
type client struct {
	*testing.T
	*createostest.Server
	http *http.Client
}

// setup starts a server whose programs are functions, unless the config says
// otherwise. Its end proves that nothing is left.
func setup(t *testing.T, config createostest.Config) *client {
	t.Helper()
	config.APIKey = key
	if config.Backend == nil {
		config.Backend = createostest.Programs(program)
	}
	s, err := createostest.New(config)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	transport := &http.Transport{}
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "again")
		transport.CloseIdleConnections()
		left, err := s.Leftovers()
		require.NoError(t, err)
		require.Empty(t, left)
		require.Empty(t, s.LiveProcesses())
	})
	// A redirect is an answer here.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client{T: t, Server: s, http: &http.Client{Transport: transport, Timeout: patient, CheckRedirect: stay}}
}

// withProcesses is a server with real processes.
func withProcesses(t *testing.T, config createostest.Config) *client {
	t.Helper()
	config.Backend = createostest.NewHost()
	return setup(t, config)
}

// answer is what came back.
type answer struct {
	*testing.T
	code   int
	header http.Header
	body   []byte
	err    error
}

// object is any JSON object.
type object = map[string]any

func (c *client) request(method, path string, body any) *http.Request {
	c.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	case []byte:
		reader = bytes.NewReader(b)
	default:
		data, err := json.Marshal(b)
		require.NoError(c, err)
		reader = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(c.Context(), method, c.URL()+path, reader)
	require.NoError(c, err)
	r.Header.Set("X-Api-Key", key)
	return r
}

func (c *client) send(r *http.Request) answer {
	c.Helper()
	response, err := c.http.Do(r)
	if err != nil {
		return answer{T: c.T, err: err}
	}
	defer func() { require.NoError(c, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	return answer{T: c.T, code: response.StatusCode, header: response.Header, body: body, err: err}
}

func (c *client) do(method, path string, body any) answer {
	c.Helper()
	return c.send(c.request(method, path, body))
}

// ok is the data of a success.
func (a answer) ok() object {
	a.Helper()
	require.NoError(a, a.err)
	require.Less(a, a.code, 300, "%s", a.body)
	var e struct {
		Status string
		Data   object
	}
	require.NoError(a, json.Unmarshal(a.body, &e), "%s", a.body)
	require.Equal(a, "success", e.Status)
	require.NotEmpty(a, a.header.Get("X-Request-Id"))
	return e.Data
}

// refused checks a refusal's envelope and returns its data or message.
func (a answer) refused(code int) any {
	a.Helper()
	require.NoError(a, a.err)
	require.Equal(a, code, a.code, "%s", a.body)
	var e object
	require.NoError(a, json.Unmarshal(a.body, &e), "%s", a.body)
	if code >= 500 {
		require.Equal(a, "error", e["status"])
		require.InDelta(a, code, e["code"], 0)
		return e["message"]
	}
	require.Equal(a, "fail", e["status"])
	return e["data"]
}

// sandbox creates one and returns its path.
func (c *client) sandbox(more ...object) string {
	c.Helper()
	body := object{"shape": shape}
	for _, m := range more {
		maps.Copy(body, m)
	}
	return "/v1/sandboxes/" + text(c.do("POST", "/v1/sandboxes", body).ok()["id"])
}

// start creates a process and returns its path.
func (c *client) start(box, cmd string, args ...string) string {
	c.Helper()
	p := c.do("POST", box+"/processes", object{"cmd": cmd, "args": args}).ok()
	return box + "/processes/" + text(p["process_id"])
}

func (c *client) shell(box, script string) string {
	c.Helper()
	return c.start(box, "/bin/bash", "-lc", script)
}

// frame is a line of a stream.
type frame struct {
	Type, Stream, Signal, Error string
	Seq                         int64
	Data                        string `json:"data_base64"`
	ExitCode                    *int   `json:"exit_code"`
	Oldest                      int64  `json:"oldest_available_seq"`
}

// events are a stream's lines as they come, and its end's error.
type events struct {
	*testing.T
	code  int
	lines *bufio.Scanner
	close func()
}

func (c *client) connect(process string, after int64) *events {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patient)
	r := c.request("GET", fmt.Sprintf("%s/connect?after=%d", process, after), nil).WithContext(ctx)
	response, err := c.http.Do(r) //nolint:bodyclose // close does it
	if err != nil {
		cancel()
	}
	require.NoError(c, err)
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 4<<20)
	e := &events{T: c.T, code: response.StatusCode, lines: lines, close: func() {
		cancel()
		require.NoError(c, response.Body.Close())
	}}
	c.Cleanup(e.close)
	return e
}

// next is the next frame; nil at the stream's end.
func (e *events) next() *frame {
	e.Helper()
	if !e.lines.Scan() {
		return nil
	}
	var f frame
	require.NoError(e, json.Unmarshal(e.lines.Bytes(), &f), "%s", e.lines.Bytes())
	return &f
}

// rest reads a stream to its end: the output of both streams, the exit frame, and
// all frames.
func (e *events) rest() (stdout, stderr string, exit *frame, all []frame) {
	e.Helper()
	require.Equal(e, 200, e.code)
	var out, errs strings.Builder
	for f := e.next(); f != nil; f = e.next() {
		all = append(all, *f)
		switch f.Type {
		case "data":
			data, err := base64.StdEncoding.DecodeString(f.Data)
			require.NoError(e, err)
			if f.Stream == "stdout" {
				out.Write(data)
			} else {
				errs.Write(data)
			}
		case "exit":
			exit = f
		}
	}
	return out.String(), errs.String(), exit, all
}

// raw reads a stream's lines without understanding them.
func (e *events) raw() (lines []string, err error) {
	for e.lines.Scan() {
		lines = append(lines, e.lines.Text())
	}
	return lines, e.lines.Err()
}

func (c *client) exec(box, script string) object {
	c.Helper()
	data := c.do("POST", box+"/exec", object{"cmd": "/bin/bash", "args": []string{"-lc", script}}).ok()
	require.Contains(c, data, "exec_ms")
	result, isObject := data["result"].(object)
	require.True(c, isObject)
	return result
}

func files(box, name string) string { return box + "/files?path=" + url.QueryEscape(name) }

func text(v any) string {
	s, ok := v.(string)
	if !ok {
		return fmt.Sprint(v)
	}
	return s
}

// output is what a process's details say of its output.
func (c *client) output(process string) object {
	c.Helper()
	output, isObject := c.do("GET", process, nil).ok()["output"].(object)
	require.True(c, isObject)
	return output
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, patient, 5*time.Millisecond, what)
}

// program is what a sandbox without processes runs: its arguments are its steps.
func program(ctx context.Context, p *createostest.Running) createostest.Exit {
	for _, step := range p.Args {
		name, arg, _ := strings.Cut(step, ":")
		var err error
		n := 0
		switch name {
		case "out":
			_, err = io.WriteString(p.Stdout, arg)
		case "err":
			_, err = io.WriteString(p.Stderr, arg)
		case "flood":
			n, err = strconv.Atoi(arg)
			for i := range n {
				_, err = fmt.Fprintf(p.Stdout, "%1023d\n", i)
			}
		case "await":
			p.Await(ctx, arg)
		case "leave":
			p.Leave(func(ctx context.Context) { <-ctx.Done() })
		case "forever":
			<-ctx.Done()
		case "exit":
			if n, err = strconv.Atoi(arg); err == nil {
				return createostest.Exit{Code: n}
			}
		}
		if err != nil {
			return createostest.Exit{Code: 255}
		}
		if ctx.Err() != nil {
			return createostest.Ended(ctx)
		}
	}
	return createostest.Exit{}
}

// listen is a listener and its origin.
func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l, "http://" + l.Addr().String()
}
