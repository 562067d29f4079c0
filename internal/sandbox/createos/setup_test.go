package createos_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// patience is how long anything may take that is expected to come.
const patience = 20 * time.Second

// rig is a provider with its server.
type rig struct {
	*testing.T
	*createostest.Server
	p *createos.Provider
}

// setup starts a server and a provider for it.
func setup(t *testing.T, change ...func(s *createostest.Config, c *createos.Config)) *rig {
	t.Helper()
	config := quick(t, "")
	server := serve(t, func(s *createostest.Config) {
		for _, c := range change {
			c(s, &config)
		}
	})
	config.APIURL = server.URL()
	return &rig{T: t, Server: server, p: provide(t, config)}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	return ctx
}

// on adds a rule that fires once.
func (r *rig) on(op createostest.Op, then ...createostest.Action) {
	r.Script(createostest.Rule{Op: op, Then: then})
}

// always adds a rule that fires on every call.
func (r *rig) always(op createostest.Op, then ...createostest.Action) {
	r.Script(createostest.Rule{Op: op, Times: -1, Then: then})
}

func (r *rig) create() sandbox.Sandbox {
	r.Helper()
	box, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: rand.Text(), Profile: "test"})
	require.NoError(r, err)
	return box
}

func shell(script string) sandbox.Process {
	return sandbox.Process{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}
}

func (r *rig) start(box sandbox.Sandbox, p sandbox.Process) (sandbox.Run, *recorder) {
	r.Helper()
	sink := &recorder{}
	run, err := box.Prepare(r.ctx(), p, sink)
	require.NoError(r, err)
	require.NoError(r, run.Open(r.ctx()))
	return run, sink
}

// run runs a process to its proven end.
func (r *rig) run(box sandbox.Sandbox, p sandbox.Process) (sandbox.End, *recorder) {
	r.Helper()
	run, sink := r.start(box, p)
	end, err := run.Wait(r.ctx())
	require.NoError(r, err)
	require.True(r, end.Proof.Proven)
	return end, sink
}

// running starts a process that has written "ready" and waits.
func (r *rig) running(box sandbox.Sandbox) (sandbox.Run, *recorder) {
	r.Helper()
	run, sink := r.start(box, shell("echo ready; sleep 1000"))
	require.Eventually(r, func() bool { return sink.out() == "ready\n" }, patience, time.Millisecond)
	return run, sink
}

func (r *rig) destroy(box sandbox.Sandbox) {
	r.Helper()
	proof, err := box.Destroy(r.ctx())
	require.NoError(r, err)
	require.True(r, proof.Proven)
}

// ops are the calls that the server got, as words.
func (r *rig) ops() (ops []createostest.Op) {
	for _, c := range r.Calls() {
		ops = append(ops, c.Op)
	}
	return ops
}

func (r *rig) count(op createostest.Op) int { return len(r.Calls(op)) }

// kind requires an error of this kind.
func (r *rig) kind(kind sandbox.Kind, err error) {
	r.Helper()
	require.Error(r, err)
	require.Equal(r, kind, sandbox.KindOf(err), "%v", err)
}

// body decodes a call's JSON body.
func body(t *testing.T, c createostest.Call) (v map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(c.Body, &v))
	return v
}

// recorder is a sink that keeps everything.
type recorder struct {
	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	pieces         []string
}

func (r *recorder) Write(stream sandbox.Stream, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if stream == sandbox.Stdout {
		r.stdout.Write(p)
	} else {
		r.stderr.Write(p)
	}
	r.pieces = append(r.pieces, string(p))
	return nil
}

func (r *recorder) out() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stdout.String()
}

func (r *recorder) err() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stderr.String()
}

// answers is a provider whose service is a function.
func answers(t *testing.T, answer http.HandlerFunc, change ...func(c *createos.Config)) *createos.Provider {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	config := quick(t, server.URL)
	for _, c := range change {
		c(&config)
	}
	return provide(t, config)
}

var errTold = errors.New("told to fail")

func lease() string { return strings.ToLower(rand.Text()) }

// nothing is what stands behind sandboxes in which nothing runs.
func nothing() createostest.Backend {
	return createostest.Programs(func(context.Context, *createostest.Running) createostest.Exit { return createostest.Exit{} })
}

// sayf and say answer; that nobody listens any more is no matter.
func sayf(w http.ResponseWriter, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format, args...) //nolint:errcheck // see above
}

func say(w http.ResponseWriter, text string) { sayf(w, "%s", text) }
