package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// A bad request gets a clear answer where a safe reply is known, stands on the
// dead-letter stream with its reason, and does not slow good jobs down.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "2")
	good := `{"v":1,"argv":["echo","good"]}`
	for _, c := range []struct {
		name, body string
		headers    nats.Header
		reason     wire.Reason
		says       string // in the message
		silent     bool   // no safe reply is known
	}{
		{name: "not-json", body: `{not json`, reason: wire.ReasonNotJSON},
		{name: "array", body: `[]`, reason: wire.ReasonNotJSON},
		{name: "bytes", body: "\xff\xff\xff", reason: wire.ReasonNotJSON},
		{name: "unknown-field", body: `{"v":1,"argv":["true"],"colour":"red"}`, reason: wire.ReasonField, says: "colour"},
		{name: "repeated-field", body: `{"v":1,"argv":["true"],"argv":["id"]}`, says: "argv"},
		{name: "missing-argv", body: `{"v":1}`, reason: wire.ReasonField, says: "argv"},
		{name: "empty-argv", body: `{"v":1,"argv":[]}`, reason: wire.ReasonField, says: "argv"},
		{name: "nul", body: `{"v":1,"argv":["a\u0000b"]}`, reason: wire.ReasonField, says: "argv[0]"},
		{name: "negative-limit", body: `{"v":1,"argv":["true"],"limits":{"wall_ms":-1}}`, reason: wire.ReasonField, says: "limits.wall_ms"},
		{name: "overflowing-limit", body: `{"v":1,"argv":["true"],"limits":{"wall_ms":99999999999999999999}}`, reason: wire.ReasonField, says: "limits.wall_ms"},
		{name: "over-maximum", body: `{"v":1,"argv":["true"],"limits":{"pids":1000000000}}`, reason: wire.ReasonTooBig, says: "limits.pids"},
		{name: "unsupported", body: `{"v":1,"argv":["true"],"priority":1}`, reason: wire.ReasonUnsupported, says: "priority"},
		{name: "unknown-profile", body: `{"v":1,"argv":["true"],"profile":"nosuch"}`, reason: wire.ReasonProfile, says: "nosuch"},
		{name: "foreign-reply", body: good, headers: nats.Header{wire.HeaderReplyTo: {"exec.job.other.q.x"}}, reason: wire.ReasonReply, silent: true},
		{name: "api-reply", body: good, headers: nats.Header{wire.HeaderReplyTo: {"$JS.API.STREAM.PURGE.EXEC_JOBS"}}, reason: wire.ReasonReply, silent: true},
		{name: "long-reply", body: good, headers: nats.Header{wire.HeaderReplyTo: {strings.Repeat("r", 5000)}}, reason: wire.ReasonReply, silent: true},
		{name: "status-header", body: ``, headers: nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}},
		{name: "too-long", body: `{"v":1,"argv":["` + strings.Repeat("x", 200_000) + `"]}`, says: "argv[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.on(t)
			f := s.publish(c.name, []byte(c.body), c.headers)
			dead := s.dead(c.name)
			if c.reason != "" {
				require.Equal(t, c.reason, dead.Reason, dead.Message)
			}
			require.Contains(t, dead.Message, c.says)
			require.NotZero(t, dead.Seq)
			if !c.silent {
				f.wait()
				require.Equal(t, wire.InvalidJob, f.result.Outcome, "%s", f.raw)
				require.Equal(t, dead.Reason, f.result.Reason)
				require.Contains(t, f.result.Message, c.says)
				require.Equal(t, wire.StartNo, f.result.StartState)
			}
			began := time.Now()
			s.run("good-after-"+c.name, "echo", "good").exited(0)
			require.Less(t, time.Since(began), 5*time.Second)
		})
	}
	s.queueEmpty()
	// A subject outside of the scheme cannot even be queued for a worker: the
	// stream's subject has three tokens.
	_, err := s.js.Publish(t.Context(), "exec.job.default.default.bad.id", []byte(good))
	require.Error(t, err)
}

// dead waits for the dead letter of a job of the default tenant and queue.
func (s *stack) dead(id string) *wire.DeadLetter {
	s.t.Helper()
	var msg *jetstream.RawStreamMsg
	require.Eventually(s.t, func() bool {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		stream, err := s.js.Stream(ctx, "EXEC_DEAD")
		require.NoError(s.t, err)
		msg, err = stream.GetLastMsgForSubject(ctx, "exec.dead.default.default."+id)
		return err == nil
	}, patience, 10*time.Millisecond, "no dead letter of %s", id)
	d, err := wire.DecodeDeadLetter(msg.Data)
	require.NoError(s.t, err)
	return d
}
