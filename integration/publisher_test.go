package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/wire"
)

// The commands of a publisher: run, submit, status, tail, cancel.
func TestPublisherCommands(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "2")
	s.gateway()

	t.Run("run streams and exits like the job", func(t *testing.T) {
		s := s.on(t)
		stdout, stderr, code := s.split("in put", "run", "--server", s.url, "--stdin", "-", "--", "sh", "-c", "cat; echo err >&2; exit 7")
		require.Equal(t, "in put", stdout)
		require.Equal(t, "err\n", stderr)
		require.Equal(t, 7, code)
		_, _, code = s.split("", "run", "--server", s.url, "--", "sh", "-c", "kill -9 $$")
		require.Equal(t, 137, code)
		_, stderr, code = s.split("", "run", "--server", s.url, "--", "nosuch")
		require.Equal(t, 127, code, stderr)
		require.Contains(t, stderr, "nosuch")
		_, stderr, code = s.split("", "run", "--server", s.url, "--wall", "300ms", "--grace", "100ms", "--", "sleep", "60")
		require.Equal(t, 124, code, stderr)
	})
	t.Run("run --json prints the result last, output inline", func(t *testing.T) {
		s := s.on(t)
		stdout, _, code := s.split("", "run", "--server", s.url, "--json", "--", "echo", "hi")
		require.Equal(t, 0, code)
		r, err := wire.DecodeResult([]byte(strings.TrimSpace(stdout)))
		require.NoError(t, err, stdout)
		require.Equal(t, wire.Exited, r.Outcome)
		require.NotNil(t, r.Stdout)
		require.Equal(t, "hi\n", r.Stdout.Data)
	})
	t.Run("submit, tail, status", func(t *testing.T) {
		s := s.on(t)
		out, code := s.command("submit", "--server", s.url, "--id", "stored-1", "--", "sh", "-c", "echo one; sleep 0.3; echo two >&2")
		require.Equal(t, 0, code, out)
		require.Contains(t, out, "stored-1")
		stdout, stderr, code := s.split("", "tail", "--server", s.url, "stored-1")
		require.Equal(t, 0, code, stderr)
		require.Equal(t, "one\n", stdout)
		require.Equal(t, "two\n", stderr)
		out, code = s.command("status", "--server", s.url, "--json", "stored-1")
		require.Equal(t, 0, code, out)
		var status wire.JobStatus
		require.NoError(t, json.Unmarshal([]byte(out), &status), out)
		require.Equal(t, wire.JobDone, status.State)
		require.NotEmpty(t, status.Result)
	})
	t.Run("cancel a running job", func(t *testing.T) {
		s := s.on(t)
		c := s.client()
		job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"sh", "-c", "echo up; sleep 60"}}, "running")
		require.NoError(t, err)
		defer closing(t, job)
		up := &waitFor{want: "up\n", seen: make(chan struct{})}
		results := make(chan *client.Result, 1)
		go func() {
			r, err := job.Copy(context.Background(), up, nil)
			if err != nil {
				t.Error(err)
			}
			results <- r
		}()
		<-up.seen
		out, code := s.command("cancel", "--server", s.url, "running")
		require.Equal(t, 0, code, out)
		r := <-results
		require.NotNil(t, r)
		require.Equal(t, wire.Cancelled, r.Outcome)
		require.Equal(t, wire.Proven, r.Containment.Verdict)
		out, code = s.command("cancel", "--server", s.url, "running")
		require.Equal(t, 0, code, "cancelling twice is no error: %s", out)
		_, code = s.command("cancel", "--server", s.url, "unknown-job")
		require.NotEqual(t, 0, code)
	})
	t.Run("cancel a queued job", func(t *testing.T) {
		s := s.on(t)
		c := s.client()
		var blockers []*client.Job
		for i := range 2 {
			job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"sleep", "3"}}, id("blocker-%d", i))
			require.NoError(t, err)
			blockers = append(blockers, job)
		}
		job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"echo", "never"}}, "waiting")
		require.NoError(t, err)
		state, err := c.Cancel(t.Context(), "waiting")
		require.NoError(t, err)
		require.Equal(t, wire.JobCancelled, state.State)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var out bytes.Buffer
		r, err := job.Copy(ctx, &out, &out)
		require.NoError(t, err)
		require.Equal(t, wire.Cancelled, r.Outcome)
		require.Equal(t, wire.StartNo, r.StartState)
		require.Empty(t, out.String())
		for _, b := range blockers {
			_, err := b.Copy(ctx, nil, nil)
			require.NoError(t, err)
			require.NoError(t, b.Close())
		}
		require.NoError(t, job.Close())
	})
	t.Run("the same id again", func(t *testing.T) {
		s := s.on(t)
		c := s.client()
		first := s.follow(c, "same", "sh", "-c", "echo $$-$(date +%N)")
		again := s.follow(c, "same", "sh", "-c", "echo $$-$(date +%N)")
		require.Equal(t, first, again, "the stored result is repeated")
		// The gateway says so itself while the first message is still there.
		job, err := c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"echo", "other"}}, "same")
		if refused, ok := errors.AsType[*client.RefusedError](err); ok {
			require.Equal(t, wire.ReasonIDConflict, refused.Result.Reason)
			return
		}
		require.NoError(t, err)
		defer closing(t, job)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := job.Copy(ctx, nil, nil)
		require.NoError(t, err)
		require.Equal(t, wire.InvalidJob, r.Outcome)
		require.Equal(t, wire.ReasonIDConflict, r.Reason)
	})
	t.Run("unknown queue is refused at once", func(t *testing.T) {
		s := s.on(t)
		c, err := client.New(s.nc, client.Config{Queue: "nosuch"})
		require.NoError(t, err)
		_, err = c.Submit(t.Context(), &client.Request{V: 1, Argv: []string{"true"}}, "")
		var refused *client.RefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, wire.ReasonQueue, refused.Result.Reason)
	})
	t.Run("tail of an unknown job", func(t *testing.T) {
		s := s.on(t)
		tail, err := s.client().Tail("no-such-job", 0)
		require.NoError(t, err)
		defer closing(t, tail)
		_, _, err = tail.Next(t.Context())
		require.ErrorIs(t, err, client.ErrUnknownJob)
	})
	t.Run("tail resumes from a cursor", func(t *testing.T) {
		s := s.on(t)
		tail, err := s.client().Tail("stored-1", 0)
		require.NoError(t, err)
		defer closing(t, tail)
		ev, cursor, err := tail.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, wire.EventStarted, ev.Type)
		rest, err := s.client().Tail("stored-1", cursor)
		require.NoError(t, err)
		defer closing(t, rest)
		var types []wire.EventType
		for {
			ev, _, err := rest.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			types = append(types, ev.Type)
		}
		require.Equal(t, []wire.EventType{wire.EventStdout, wire.EventStderr, wire.EventResult}, types)
	})
}

// follow runs a job through the client and returns the result's identity: when
// it was produced twice, the timing differs.
func (s *stack) follow(c *client.Client, id string, argv ...string) client.Result {
	s.t.Helper()
	job, err := c.Submit(s.t.Context(), &client.Request{V: 1, Argv: argv}, id)
	require.NoError(s.t, err)
	defer closing(s.t, job)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	r, err := job.Copy(ctx, nil, nil)
	require.NoError(s.t, err)
	return *r
}

func (s *stack) client() *client.Client {
	s.t.Helper()
	c, err := client.New(s.nc, client.Config{})
	require.NoError(s.t, err)
	return c
}

// split runs the binary with its streams apart.
func (s *stack) split(stdin string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		require.NoError(s.t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// waitFor is a writer that tells when it has seen something.
type waitFor struct {
	want string
	got  string
	seen chan struct{}
}

func (w *waitFor) Write(p []byte) (int, error) {
	if w.got += string(p); w.got == w.want {
		close(w.seen)
	}
	return len(p), nil
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	require.NoError(t, c.Close())
}
