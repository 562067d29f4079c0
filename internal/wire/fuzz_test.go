package wire_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// seed adds every golden file, whole and cut, and every bad request.
func seed(f *testing.F) {
	f.Helper()
	for _, data := range messages(f) {
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	for _, test := range badRequests() {
		if len(test.body) < 1<<10 {
			f.Add([]byte(test.body))
		}
	}
}

// requireWords holds that a message is for a person: bounded, UTF-8, one line.
func requireWords(t *testing.T, err error) {
	t.Helper()
	require.Less(t, len(err.Error()), 2*wire.MaxMessageBytes)
	require.True(t, utf8.ValidString(err.Error()))
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "Go ")
}

func FuzzDecodeRequest(f *testing.F) {
	seed(f)
	schema := compile(f, "request.v1.json")
	f.Fuzz(func(t *testing.T, body []byte) {
		request, bad := wire.DecodeRequest(body)
		require.Equal(t, request == nil, bad != nil)
		if bad != nil {
			requireWords(t, bad)
			require.Contains(t, wire.InvalidJob.Reasons(), bad.Reason)
			require.NotEmpty(t, bad.Message)
			return
		}
		require.NoError(t, accepts(schema, body), "the schema is stricter than the decoder")
		require.NotEmpty(t, request.Argv)
		require.NotContains(t, strings.Join(request.Argv, ""), "\x00")
		encoded, err := wire.EncodeRequest(request)
		require.NoError(t, err)
		again, bad := wire.DecodeRequest(encoded)
		require.Nil(t, bad)
		twice, err := wire.EncodeRequest(again)
		require.NoError(t, err)
		require.Equal(t, string(encoded), string(twice))
		_, err = wire.Digest("q", body)
		require.NoError(t, err)
		limits, bad := wire.Profile{}.Resolve(request)
		require.Nil(t, bad)
		require.Equal(t, request.Limits, limits)
	})
}

// roundTripWithSchema is roundTrip, and that the schema takes what is written.
func roundTripWithSchema[T any](f *testing.F, file string, decode func([]byte) (*T, error), encode func(*T) ([]byte, error)) {
	f.Helper()
	schema := compile(f, file)
	roundTrip(f, decode, func(value *T) ([]byte, error) {
		data, err := encode(value)
		if err != nil {
			return nil, err
		}
		return data, accepts(schema, data)
	})
}

// roundTrip holds that what decodes encodes, and that its encoded form is a fixed
// point.
func roundTrip[T any](f *testing.F, decode func([]byte) (*T, error), encode func(*T) ([]byte, error)) {
	f.Helper()
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		value, err := decode(data)
		if err != nil {
			require.Nil(t, value)
			requireWords(t, err)
			return
		}
		encoded, err := encode(value)
		require.NoError(t, err)
		again, err := decode(encoded)
		require.NoError(t, err)
		twice, err := encode(again)
		require.NoError(t, err)
		require.Equal(t, string(encoded), string(twice))
	})
}

func FuzzDecodeResult(f *testing.F) { roundTrip(f, wire.DecodeResult, wire.EncodeResult) }

func FuzzDecodeQuarantine(f *testing.F) { roundTrip(f, wire.DecodeQuarantine, wire.EncodeQuarantine) }

func FuzzDecodeLease(f *testing.F) {
	roundTripWithSchema(f, "lease.v1.json", wire.DecodeLease, wire.EncodeLease)
}

func FuzzDecodeEpoch(f *testing.F) {
	roundTripWithSchema(f, "epoch.v1.json", wire.DecodeEpoch, wire.EncodeEpoch)
}

func FuzzDecodeDeadLetter(f *testing.F) { roundTrip(f, wire.DecodeDeadLetter, wire.EncodeDeadLetter) }

func FuzzDecodeStarted(f *testing.F) { roundTrip(f, wire.DecodeStarted, wire.EncodeStarted) }

func FuzzDecodeAccepted(f *testing.F) { roundTrip(f, wire.DecodeAccepted, wire.EncodeAccepted) }

func FuzzDecodeRunRecord(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		record, err := wire.DecodeRunRecord(data)
		if err != nil {
			require.Nil(t, record)
			requireWords(t, err)
			return
		}
		require.Contains(t, string(data), string(record.Result))
		encoded, err := wire.EncodeRunRecord(record)
		if err != nil {
			// Only a result that another hand wrote, with white space in it.
			require.ErrorContains(t, err, "not in the form of EncodeResult")
			return
		}
		again, err := wire.DecodeRunRecord(encoded)
		require.NoError(t, err)
		require.Equal(t, record, again)
	})
}

func FuzzParseEvent(f *testing.F) {
	for _, event := range events() {
		value := func(name string) string { return strings.Join(event.Headers()[name], "") }
		f.Add(value("Exec-Event"), value("Exec-Job"), value("Exec-Attempt"), value("Exec-Seq"), value("Exec-Offset"), uint8(31), []byte("data"))
	}
	f.Fuzz(func(t *testing.T, kind, job, attempt, seq, offset string, present uint8, data []byte) {
		headers := map[string][]string{}
		for i, header := range [][2]string{
			{"Exec-Event", kind}, {"Exec-Job", job}, {"Exec-Attempt", attempt}, {"Exec-Seq", seq}, {"Exec-Offset", offset},
		} {
			if present&(1<<i) != 0 {
				headers[header[0]] = []string{header[1]}
			}
		}
		event, err := wire.ParseEvent(headers, data)
		if err != nil {
			requireWords(t, err)
			return
		}
		again, err := wire.ParseEvent(event.Headers(), data)
		require.NoError(t, err)
		require.Equal(t, event, again)
		requireSafeHeaders(t, event)
	})
}

func requireSafeHeaders(t *testing.T, event wire.Event) {
	t.Helper()
	for name, values := range event.Headers() {
		require.True(t, wire.ValidToken(name))
		for _, value := range values {
			tenant, id, pair := strings.Cut(value, ".")
			require.True(t, wire.ValidToken(tenant) && (!pair || wire.ValidToken(id)), value)
		}
	}
}

func FuzzEventHeaders(f *testing.F) {
	f.Add("stdout", "acme.1", 1, uint64(1), int64(0))
	f.Add("stdout\r\n", "acme.1\r\nX: y", -1, uint64(0), int64(-1))
	f.Fuzz(func(t *testing.T, kind, job string, attempt int, seq uint64, offset int64) {
		requireSafeHeaders(t, wire.Event{Type: wire.EventType(kind), Job: job, Attempt: attempt, Seq: seq, Offset: offset})
	})
}

func FuzzParseSubjects(f *testing.F) {
	for _, subject := range []string{
		"exec.job.t.q.1", "exec.submit.t.q", "exec.out.t.1", "exec.run.t.1", "exec.lease.p.l", "exec.lease._worker.w", "exec.quarantine.p.h.l", "exec.dead.t.q.1",
		"exec.job.*.q.>", "exec..", "$JS.API.x", "",
	} {
		f.Add(subject)
	}
	s := subjects(f, "exec")
	f.Fuzz(func(t *testing.T, subject string) {
		if job, err := s.ParseJob(subject); err == nil {
			require.Equal(t, subject, s.Job(job))
		}
		if job, err := s.ParseDead(subject); err == nil {
			require.Equal(t, subject, s.Dead(job))
		}
		if tenant, queue, err := s.ParseSubmit(subject); err == nil {
			require.Equal(t, subject, s.Submit(tenant, queue))
		}
		if tenant, id, err := s.ParsePair(subject); err == nil {
			require.Contains(t, []string{
				s.Out(tenant, id), s.Live(tenant, id), s.Read(tenant, id), s.Ctl(tenant, id), s.Cancel(tenant, id), s.Status(tenant, id),
				s.Run(tenant, id),
			}, subject)
		}
		if provider, lease, err := s.ParseLease(subject); err == nil {
			require.Equal(t, subject, s.Lease(provider, lease))
		}
		if worker, err := s.ParseEpoch(subject); err == nil {
			require.Equal(t, subject, s.Epoch(worker))
		}
		if provider, host, lease, err := s.ParseQuarantine(subject); err == nil {
			require.Equal(t, subject, s.Quarantine(provider, host, lease))
		}
		token := wire.Token(subject)
		require.True(t, wire.ValidToken(token))
		require.Equal(t, token, wire.Token(token))
	})
}

func FuzzReplyRule(f *testing.F) {
	for _, entry := range []string{"_INBOX.>", "_INBOX_{tenant}.>", "reply.{tenant}.>", "{tenant}.>", "fixed", "$JS.>", "exec.>", ">"} {
		f.Add(entry, "acme", "_INBOX.a.b")
		f.Add(entry, "acme", "reply.acme.x")
		f.Add(entry, "_INBOX", "_INBOX.x")
		f.Add(entry, "exec", "exec.job.t.q.1")
	}
	s := subjects(f, "exec")
	f.Fuzz(func(t *testing.T, entry, tenant, reply string) {
		rule, err := wire.NewReplyRule(s, []string{entry})
		if err != nil {
			requireWords(t, err)
			return
		}
		if bad := rule.Check(tenant, reply); bad != nil {
			requireWords(t, bad)
			require.Equal(t, wire.ReasonReply, bad.Reason)
			return
		}
		require.NotEmpty(t, reply)
		require.LessOrEqual(t, len(reply), wire.MaxReplyBytes)
		tokens := strings.Split(reply, ".")
		require.LessOrEqual(t, len(tokens), wire.MaxReplyTokens)
		require.NotContains(t, tokens, "")
		require.False(t, strings.ContainsAny(reply, "*> \t\r\n\x00"))
		require.NotEqual(t, byte('$'), reply[0])
		require.NotEqual(t, "exec", tokens[0])
		// What is allowed is the entry with the tenant in it, to the letter.
		allowed := strings.ReplaceAll(entry, "{tenant}", tenant)
		if base, open := strings.CutSuffix(allowed, ">"); open {
			require.True(t, strings.HasPrefix(reply, base) && len(reply) > len(base))
		} else {
			require.Equal(t, allowed, reply)
		}
		if reply[0] == '_' {
			require.Equal(t, byte('_'), entry[0])
		}
	})
}

func FuzzInline(f *testing.F) {
	f.Add([]byte("text"))
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		inline := wire.NewInline(data)
		back, err := inline.Bytes()
		require.NoError(t, err)
		require.Equal(t, string(data), string(back))
	})
}
