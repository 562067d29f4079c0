package integration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus/bustest"
	"github.com/sallyport/sallyport/internal/wire"
)

// stack is a server, its streams, and the services that a test starts.
type stack struct {
	t      *testing.T
	url    string
	nc     *nats.Conn
	js     jetstream.JetStream
	dir    string
	config string
	// env is added to the environment of services.
	env []string
	// queue is where jobs go; "" is the default one.
	queue string
}

// into is the same stack, whose jobs go into another queue.
func (s *stack) into(queue string) *stack {
	sub := *s
	sub.queue = queue
	return &sub
}

// patience bounds every wait of these tests: far above what a loaded machine
// needs, so that only a hang meets it.
const patience = 60 * time.Second

// config of the workers under test: a short ack wait, so that takeovers fit a
// test, and the provider that fails on command.
const workerConfig = `
ack_wait: 5s
fleet_slots: 64
reply_allow: ["_INBOX.>", "reply.{tenant}.>"]
profiles:
  fake:
    provider: fake
`

func newStack(t *testing.T) *stack {
	t.Helper()
	dir := t.TempDir()
	srv := bustest.Server(t, func(o *server.Options) { o.MaxPayload = 8 << 20 })
	s := &stack{t: t, url: srv.ClientURL(), dir: dir, config: filepath.Join(dir, "sallyport.yaml")}
	require.NoError(t, os.WriteFile(s.config, []byte(workerConfig), 0o600))
	nc, err := nats.Connect(s.url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	s.nc = nc
	s.js, err = jetstream.New(nc)
	require.NoError(t, err)
	return s
}

// apply creates the streams as an operator would.
func (s *stack) apply() *stack {
	s.t.Helper()
	out, code := s.command("streams", "apply", "--server", s.url, "--config", s.config)
	require.Equal(s.t, 0, code, out)
	return s
}

// on is the same stack for a subtest.
func (s *stack) on(t *testing.T) *stack {
	sub := *s
	sub.t = t
	return &sub
}

// command runs the binary to its end and returns what it printed.
func (s *stack) command(args ...string) (string, int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(s.t, err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// service is a running service.
type service struct {
	t    *testing.T
	cmd  *exec.Cmd
	http string
	log  *lockedBuffer
	done chan struct{}
	once sync.Once
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// worker starts a worker and waits until it is ready.
func (s *stack) worker(name string, args ...string) *service {
	s.t.Helper()
	port := freePort(s.t)
	args = append([]string{
		"worker", "--server", s.url, "--config", s.config, "--state-dir", filepath.Join(s.dir, name),
		"--http", port, "--require", "namespaces", "--drain", "5s",
	}, args...)
	w := s.start(args...)
	w.http = port
	w.waitReady()
	return w
}

func (s *stack) start(args ...string) *service {
	s.t.Helper()
	return s.startAs(os.Geteuid(), args...)
}

// startAs starts a service as another user.
func (s *stack) startAs(user int, args ...string) *service {
	s.t.Helper()
	w := &service{t: s.t, cmd: exec.Command(binary, args...), log: &lockedBuffer{}, done: make(chan struct{})}
	if user != os.Geteuid() {
		w.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	}
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	w.cmd.Env = append(append(os.Environ(), "CANARY_SECRET=zzz", "XDG_CONFIG_HOME="+s.dir), s.env...)
	require.NoError(s.t, w.cmd.Start())
	go func() {
		defer close(w.done)
		_ = w.cmd.Wait() //nolint:errcheck // its exit code is asserted where it matters
	}()
	s.t.Cleanup(func() {
		w.stop()
		if s.t.Failed() {
			s.t.Logf("log of %s:\n%s", strings.Join(args, " "), w.log)
		}
	})
	return w
}

// stop ends the service in order and waits for it.
func (w *service) stop() {
	w.once.Do(func() { w.signal(syscall.SIGTERM) })
	select {
	case <-w.done:
	case <-time.After(patience):
		w.signal(syscall.SIGKILL)
		<-w.done
		w.t.Errorf("service did not stop within %s", patience)
	}
}

func (w *service) signal(sig os.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		w.t.Errorf("signal %s: %v", sig, err)
	}
}

func (w *service) waitReady() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		select {
		case <-w.done:
			return true
		default:
		}
		code, _ := w.get("/readyz")
		return code == http.StatusOK
	}, patience, 20*time.Millisecond, "the service never got ready")
	select {
	case <-w.done:
		require.Fail(w.t, "the service ended", "%s", w.log)
	default:
	}
}

// probe keeps no connection, so that none outlives its test.
var probe = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}

func (w *service) get(path string) (int, string) {
	resp, err := probe.Get("http://" + w.http + path)
	if err != nil {
		return 0, err.Error()
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// followed is a job whose events arrive on an inbox.
type followed struct {
	t   *testing.T
	id  string
	sub *nats.Subscription

	stdout, stderr []byte
	events         []wire.EventType
	raw            []byte // the result's bytes
	result         *wire.Result
}

// publish puts a job straight into the queue, as a trusted publisher does.
func (s *stack) publish(id string, body []byte, headers nats.Header) *followed {
	s.t.Helper()
	inbox := s.nc.NewInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	require.NoError(s.t, err)
	require.NoError(s.t, sub.SetPendingLimits(-1, -1))
	require.NoError(s.t, s.nc.Flush()) // what is published may go another way, and be faster
	msg := nats.NewMsg("exec.job.default." + cmp.Or(s.queue, "default") + "." + id)
	msg.Data = body
	maps.Copy(msg.Header, headers)
	if _, ok := msg.Header[wire.HeaderReplyTo]; !ok {
		msg.Header.Set(wire.HeaderReplyTo, inbox)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	_, err = s.js.PublishMsg(ctx, msg)
	require.NoError(s.t, err)
	return &followed{t: s.t, id: id, sub: sub}
}

// submit publishes a request.
func (s *stack) submit(id string, r wire.Request) *followed {
	s.t.Helper()
	r.V = wire.Version
	body, err := json.Marshal(r)
	require.NoError(s.t, err)
	return s.publish(id, body, nil)
}

func (s *stack) run(id string, argv ...string) *followed {
	s.t.Helper()
	return s.submit(id, wire.Request{Argv: argv}).wait()
}

// wait follows the job to its result and checks what holds for every stream of
// events: sequence without a hole, offsets that add up, one result, the end.
func (f *followed) wait() *followed {
	f.t.Helper()
	seq, attempt := uint64(0), 0
	for {
		msg, err := f.sub.NextMsg(patience)
		require.NoError(f.t, err, "job %s: no further event; so far %v", f.id, f.events)
		ev, err := wire.ParseEvent(msg.Header, msg.Data)
		require.NoError(f.t, err)
		f.events = append(f.events, ev.Type)
		if ev.Type == wire.EventEnd {
			require.Empty(f.t, ev.Data)
			require.NotNil(f.t, f.result, "job %s ended without a result", f.id)
			require.NoError(f.t, f.sub.Unsubscribe())
			return f
		}
		switch {
		case ev.Attempt > attempt:
			attempt, seq, f.stdout, f.stderr = ev.Attempt, 0, nil, nil
		case ev.Attempt < attempt && ev.Type.Output():
			continue // of an attempt that was given up: every reader drops it
		}
		if f.result == nil && ev.Seq > 0 {
			require.Equal(f.t, seq+1, ev.Seq, "job %s: sequence", f.id)
		}
		seq = max(seq, ev.Seq) // a gateway's "accepted" has none, and may be overtaken
		f.take(ev)
	}
}

func (f *followed) take(ev wire.Event) {
	f.t.Helper()
	switch ev.Type {
	case wire.EventStdout:
		require.Equal(f.t, int64(len(f.stdout)), ev.Offset)
		f.stdout = append(f.stdout, ev.Data...)
	case wire.EventStderr:
		require.Equal(f.t, int64(len(f.stderr)), ev.Offset)
		f.stderr = append(f.stderr, ev.Data...)
	case wire.EventResult:
		r, err := wire.DecodeResult(ev.Data)
		require.NoError(f.t, err)
		f.result, f.raw = r, append([]byte(nil), ev.Data...)
	case wire.EventAccepted, wire.EventStarted, wire.EventEnd:
	}
}

// exited asserts on the ordinary end.
func (f *followed) exited(code int) *followed {
	f.t.Helper()
	require.Equal(f.t, wire.Exited, f.result.Outcome, "%s", f.raw)
	require.NotNil(f.t, f.result.ExitCode)
	require.Equal(f.t, code, *f.result.ExitCode, "%s", f.raw)
	return f.proven()
}

func (f *followed) proven() *followed {
	f.t.Helper()
	require.NotNil(f.t, f.result.Containment, "%s", f.raw)
	require.Equal(f.t, wire.Proven, f.result.Containment.Verdict, "%s", f.raw)
	require.NotEmpty(f.t, f.result.Containment.Evidence)
	return f
}

// queued is the number of messages in the jobs stream.
func (s *stack) queued() uint64 {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	stream, err := s.js.Stream(ctx, "EXEC_JOBS")
	require.NoError(s.t, err)
	info, err := stream.Info(ctx)
	require.NoError(s.t, err)
	return info.State.Msgs
}

func (s *stack) queueEmpty() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.queued() == 0 }, patience, 20*time.Millisecond, "messages are left in the queue")
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func id(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// gateway starts a gateway and waits until it serves.
func (s *stack) gateway() {
	s.t.Helper()
	port := freePort(s.t)
	g := s.start("gateway", "--server", s.url, "--config", s.config, "--state-dir", filepath.Join(s.dir, "gateway"), "--http", port)
	g.http = port
	g.waitReady()
}
