package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/wire"
)

// stored reads a job's stored output to its end.
func (s *stack) stored(id string) (stdout []byte, result *wire.Result) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	tail, err := s.client().Tail(id, 0)
	require.NoError(s.t, err)
	defer closing(s.t, tail)
	for {
		ev, _, err := tail.Next(ctx)
		if errors.Is(err, io.EOF) {
			require.Empty(s.t, tail.Lost(), id)
			return stdout, result
		}
		if errors.Is(err, client.ErrNoGateway) && ctx.Err() == nil {
			<-time.NewTimer(50 * time.Millisecond).C // it has not reconnected yet
			continue
		}
		require.NoError(s.t, err, id)
		switch ev.Type {
		case wire.EventStdout:
			stdout = append(stdout, ev.Data...)
		case wire.EventResult:
			result, err = wire.DecodeResult(ev.Data)
			require.NoError(s.t, err)
		case wire.EventStarted, wire.EventStderr, wire.EventAccepted, wire.EventEnd:
		}
	}
}

// A link that breaks, falls silent or loses the server's answers while a program
// writes costs no byte and doubles none, live and stored.
func TestOutputOverABadLink(t *testing.T) {
	t.Parallel()
	s, _ := newBrokerStack(t, withAckWait("20s"), nil)
	p := newProxy(t, s.url)
	w := s.through(p).worker("w1", "--slots", "2")
	s.gateway()
	const lines = 4000
	job, err := s.client().Submit(t.Context(), &client.Request{
		V: 1, Output: wire.OutputBoth,
		Argv: []string{"perl", "-e", fmt.Sprintf(`$| = 1; for (1..%d) { print "$_\n"; select(undef, undef, undef, 0.001) }`, lines)},
	}, "counter")
	require.NoError(t, err)
	defer closing(t, job)
	var want bytes.Buffer
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	trouble := make(chan struct{})
	begun := make(chan struct{})
	go func() {
		defer close(trouble)
		<-begun
		pause := func(d time.Duration) { <-time.NewTimer(d).C }
		for range 3 {
			p.cut()
			pause(300 * time.Millisecond)
		}
		for _, deaf := range []bool{false, true} {
			release := p.hold(deaf)
			pause(900 * time.Millisecond)
			if !deaf {
				p.cut() // what was swallowed never arrives
			}
			release()
			pause(200 * time.Millisecond)
		}
	}()
	var got bytes.Buffer
	first := &onFirst{to: &got, do: func() { close(begun) }}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := job.Copy(ctx, first, nil)
	require.NoError(t, err)
	<-trouble
	require.Equal(t, wire.Exited, r.Outcome)
	require.Equal(t, 1, r.Attempt)
	require.Empty(t, r.Output.LostRanges)
	require.Empty(t, job.Lost())
	require.Equal(t, want.String(), got.String())
	out, final := s.stored("counter")
	require.Equal(t, want.String(), string(out))
	require.Equal(t, r, final)
	s.queueEmpty()
	require.GreaterOrEqual(t, w.metric(t, "sallyport_nats_reconnects_total"), 2.0)
}

// onFirst calls do before the first write.
type onFirst struct {
	to   io.Writer
	do   func()
	done bool
}

func (f *onFirst) Write(p []byte) (int, error) {
	if !f.done {
		f.done = true
		f.do()
	}
	return f.to.Write(p)
}

// A server that comes and goes, once for longer than anybody retries by default,
// stops nothing for good: every job ends once, with its output, and the worker
// takes jobs again by itself.
func TestServerThatComesAndGoes(t *testing.T) {
	t.Parallel()
	s, b := newBrokerStack(t, workerConfig, nil)
	w := s.worker("w1", "--slots", "4")
	s.gateway()
	n := 0
	put := func() {
		t.Helper()
		name := id("steady-%d", n)
		body := fmt.Appendf(nil, `{"v":1,"argv":["sh","-c","echo a%d; sleep 0.3; echo b%d"],"output":"stored"}`, n, n)
		n++
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.js.Publish(ctx, "exec.job.default.default."+name, body)
			var api *jetstream.APIError
			return err == nil || errors.As(err, &api) && strings.Contains(api.Description, "maximum messages per subject")
		}, patience, 50*time.Millisecond, "not stored: %s", name)
	}
	restarts := soak(2, 30)
	for i := range restarts {
		for range 5 {
			put()
			<-time.NewTimer(100 * time.Millisecond).C
		}
		b.stop()
		if i == 0 {
			require.Eventually(t, func() bool {
				code, why := w.get("/readyz")
				return code != http.StatusOK && strings.Contains(why, "NATS")
			}, patience, 20*time.Millisecond, "ready without a server")
			code, _ := w.get("/healthz")
			require.Equal(t, http.StatusOK, code, "an outage is no reason to be restarted")
			<-time.NewTimer(2 * time.Second).C
		}
		b.start()
		put()
		back := time.Now()
		require.Eventually(t, func() bool { code, _ := w.get("/readyz"); return code == http.StatusOK }, patience, 20*time.Millisecond)
		require.Less(t, time.Since(back), 30*time.Second)
	}
	for i := range n {
		out, r := s.stored(id("steady-%d", i))
		require.NotNil(t, r, "steady-%d", i)
		require.Equal(t, []any{wire.Exited, 1}, []any{r.Outcome, r.Attempt}, "steady-%d: %+v", i, r)
		require.Equal(t, fmt.Sprintf("a%d\nb%d\n", i, i), string(out))
	}
	s.queueEmpty()
}

// Output that floods a slow link delays no heartbeat: nothing is delivered again.
// Acknowledgements that are on their way when the worker ends arrive.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	s, _ := newBrokerStack(t, withAckWait("5s"), nil)
	c := s.census()
	p := newProxy(t, s.url)
	w := s.through(p).worker("w1", "--slots", "9", "--drain", "20s")
	p.slow(0, time.Microsecond) // 1 MB/s
	var all []*followed
	all = append(all, s.submit("sleeper", wire.Request{Argv: []string{"sleep", "7"}}))
	for i := range 8 {
		all = append(all, s.submit(id("flood-%d", i), shell("head -c 800000 /dev/zero")))
	}
	for i, f := range all {
		f.wait().exited(0)
		require.Equal(t, 1, f.result.Attempt)
		if i > 0 {
			require.Len(t, f.stdout, 800_000)
		}
	}
	s.queueEmpty()
	require.Zero(t, s.consumerInfo().NumRedelivered)
	require.Zero(t, w.metric(t, "sallyport_redeliveries_total"))
	require.Zero(t, w.metric(t, "sallyport_fenced_total"))

	p.slow(100*time.Millisecond, 0)
	all = nil
	for i := range 18 {
		all = append(all, s.submit(id("last-%d", i), wire.Request{Argv: []string{"echo", "x"}}))
	}
	for _, f := range all {
		f.wait().exited(0)
	}
	w.signal(syscall.SIGTERM) // the acknowledgement of the newest is on its way at best
	s.within(w.done, "the worker does not end")
	require.Equal(t, 0, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	s.queueEmpty()
	for i := range all {
		c.once(id("last-%d", i), 1)
	}
}

// The queue's consumer vanishes, or the network falls silent: readiness says so
// within seconds and the worker recovers by itself.
func TestReadinessTellsWhetherJobsAreTaken(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	p := newProxy(t, s.url)
	w := s.through(p).worker("w1", "--slots", "2")
	unready := func(says string) {
		t.Helper()
		began := time.Now()
		require.Eventually(t, func() bool {
			code, why := w.get("/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(why, says)
		}, patience, 20*time.Millisecond, "ready, or silent about it")
		require.Less(t, time.Since(began), 10*time.Second)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, s.js.DeleteConsumer(ctx, "EXEC_JOBS", "w-default"))
	unready("w-default")
	s.apply()
	w.waitReady()
	s.run("after-apply", "echo", "ok").exited(0)

	release := p.hold(false)
	unready("")
	release()
	w.waitReady()
	s.run("after-silence", "echo", "ok").exited(0)
}

// A job whose message somebody purged still ends with its result, and without a
// storm in the log.
func TestQueuePurgedUnderAJob(t *testing.T) {
	t.Parallel()
	s, _ := newBrokerStack(t, withAckWait("4s"), nil)
	w := s.worker("w1", "--slots", "2")
	f, _ := s.started("purged", wire.Request{Argv: []string{"sleep", "6"}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := s.js.Stream(ctx, "EXEC_JOBS")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(ctx))
	f.wait().exited(0)
	require.Eventually(t, func() bool { return w.metric(t, "sallyport_slots_used") == 0 }, patience, 20*time.Millisecond)
	loud := 0
	for line := range strings.Lines(w.log.String()) {
		if strings.Contains(line, "purged") && (strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`)) {
			loud++
		}
	}
	require.LessOrEqual(t, loud, 1, "%s", w.log)
	s.run("next", "echo", "ok").exited(0)
}

// Without a gateway, or a server's idea of one, a publisher is told so at once,
// and that nothing was submitted.
func TestPublisherWithoutGateway(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	c := s.client()
	_, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"true"}}, "")
	require.ErrorIs(t, err, client.ErrNoGateway)
	_, err = c.Status(t.Context(), "some-job")
	require.ErrorIs(t, err, client.ErrNoGateway)
	tail, err := c.Tail("some-job", 0)
	require.NoError(t, err)
	defer closing(t, tail)
	_, _, err = tail.Next(t.Context())
	require.ErrorIs(t, err, client.ErrNoGateway)
	_, stderr, code := s.split("", "run", "--server", s.url, "--", "true")
	require.Equal(t, 125, code)
	require.Contains(t, stderr, "sallyport gateway")
}
