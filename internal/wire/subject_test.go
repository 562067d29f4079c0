package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

func subjects(tb testing.TB, prefix string) wire.Subjects {
	tb.Helper()
	s, err := wire.NewSubjects(prefix)
	require.NoError(tb, err)
	return s
}

func TestPrefix(t *testing.T) {
	for _, good := range []string{"exec", "EXEC-1", "a.b.c.d", strings.Repeat("p", 64)} {
		require.Equal(t, good, subjects(t, good).Prefix())
	}
	for _, bad := range []string{"", ".", "exec.", ".exec", "a..b", "a.b.c.d.e", "$JS", "_INBOX", "a._b", "a b", "*", "exec.>", "ä", strings.Repeat("p", 65)} {
		_, err := wire.NewSubjects(bad)
		require.ErrorContains(t, err, "subject prefix", bad)
	}
}

func TestSubjectsAreMadeAndRead(t *testing.T) {
	for _, prefix := range []string{"exec", "acme.prod.exec"} {
		s := subjects(t, prefix)
		job := wire.Job{Tenant: "acme", Queue: "fast", ID: "01J-x_9"}
		require.Equal(t, "acme.01J-x_9", job.Key())

		require.Equal(t, prefix+".job.acme.fast.01J-x_9", s.Job(job))
		parsed, err := s.ParseJob(s.Job(job))
		require.NoError(t, err)
		require.Equal(t, job, parsed)

		require.Equal(t, prefix+".dead.acme.fast.01J-x_9", s.Dead(job))
		parsed, err = s.ParseDead(s.Dead(job))
		require.NoError(t, err)
		require.Equal(t, job, parsed)

		require.Equal(t, prefix+".submit.acme.fast", s.Submit("acme", "fast"))
		tenant, queue, err := s.ParseSubmit(s.Submit("acme", "fast"))
		require.NoError(t, err)
		require.Equal(t, []string{"acme", "fast"}, []string{tenant, queue})

		for kind, subject := range map[string]string{
			"out": s.Out("acme", "1"), "live": s.Live("acme", "1"), "read": s.Read("acme", "1"), "ctl": s.Ctl("acme", "1"),
			"cancel": s.Cancel("acme", "1"), "status": s.Status("acme", "1"), "run": s.Run("acme", "1"),
		} {
			require.Equal(t, prefix+"."+kind+".acme.1", subject)
			tenant, id, err := s.ParsePair(subject)
			require.NoError(t, err)
			require.Equal(t, []string{"acme", "1"}, []string{tenant, id})
		}

		require.Equal(t, prefix+".lease._worker.w1", s.Epoch("w1"))
		name, err := s.ParseEpoch(s.Epoch("w1"))
		require.NoError(t, err)
		require.Equal(t, "w1", name)
		require.Empty(t, s.Lease("_worker", "w1"), "no lease stands where an epoch does")
		_, _, err = s.ParseLease(s.Epoch("w1"))
		require.Error(t, err)
		_, err = s.ParseEpoch(s.Lease("local", "01K"))
		require.Error(t, err)
		provider, lease, err := s.ParseLease(s.Lease("local", "01K"))
		require.NoError(t, err)
		require.Equal(t, []string{"local", "01K"}, []string{provider, lease})

		require.Equal(t, prefix+".quarantine.local.h.01K", s.Quarantine("local", "h", "01K"))
		provider, host, lease, err := s.ParseQuarantine(s.Quarantine("local", "h", "01K"))
		require.NoError(t, err)
		require.Equal(t, []string{"local", "h", "01K"}, []string{provider, host, lease})
	}
}

func TestWildcards(t *testing.T) {
	s := subjects(t, "exec")
	for want, got := range map[string]string{
		"exec.job.*.*.*": s.AllJobs(), "exec.job.*.fast.*": s.QueueJobs("fast"), "exec.job.acme.*.1": s.QueuedJob("acme", "1"),
		"exec.submit.*.*": s.AllSubmit(), "exec.out.*.*": s.AllOut(), "exec.live.*.*": s.AllLive(), "exec.read.*.*": s.AllRead(),
		"exec.ctl.*.*": s.AllCtl(), "exec.cancel.*.*": s.AllCancel(), "exec.status.*.*": s.AllStatus(), "exec.run.*.*": s.AllRuns(),
		"exec.lease.*.*": s.AllLeases(), "exec.quarantine.*.*.*": s.AllQuarantine(), "exec.dead.*.*.*": s.AllDead(),
		"exec.lease.createos.*": s.ProviderLeases("createos"), "exec.lease._worker.*": s.AllEpochs(),
		"exec.quarantine.local.h.*": s.HostQuarantine("local", "h"), "exec.quarantine.createos.*.*": s.ProviderQuarantine("createos"),
	} {
		require.Equal(t, want, got)
	}
}

func TestABadWordMakesNoSubject(t *testing.T) {
	s := subjects(t, "exec")
	for _, word := range []string{"", "*", ">", "a.b", "a b", "a\r\n", "ä", "$", strings.Repeat("x", 65)} {
		for _, subject := range []string{
			s.Job(wire.Job{Tenant: word, Queue: "q", ID: "1"}), s.Job(wire.Job{Tenant: "t", Queue: word, ID: "1"}),
			s.Job(wire.Job{Tenant: "t", Queue: "q", ID: word}), s.Submit(word, "q"), s.Out("t", word), s.Run(word, "1"),
			s.Lease(word, "l"), s.Epoch(word), s.Quarantine("p", word, "l"), s.Dead(wire.Job{Tenant: word, Queue: "q", ID: "1"}),
		} {
			require.Empty(t, subject)
		}
	}
	require.Empty(t, s.QueueJobs("a.b"))
	require.Empty(t, s.HostQuarantine("local", ">"))
	for _, word := range []string{"", "*", ">", "a.b", "_worker"} {
		require.Empty(t, s.ProviderLeases(word), word)
	}
	require.Empty(t, wire.Subjects{}.Job(wire.Job{Tenant: "t", Queue: "q", ID: "1"}))
}

func TestForeignSubjectsAreNotRead(t *testing.T) {
	s := subjects(t, "exec")
	for _, subject := range []string{
		"", "exec", "exec.job", "exec.job.t.q", "exec.job.t.q.1.2", "exec.job.t.q.", "exec.job..q.1", "exec.job.*.q.1", "exec.job.t.q.>",
		"exec.out.t.q.1", "execs.job.t.q.1", "EXEC.job.t.q.1", "x.exec.job.t.q.1", "exec.job.t.q.a b", "exec.job.t.q.\xff",
		"exec.job." + strings.Repeat("t", 65) + ".q.1", "exec.job" + strings.Repeat(".a", 100_000),
	} {
		_, err := s.ParseJob(subject)
		require.Error(t, err, subject)
		require.Less(t, len(err.Error()), 500)
	}
	for _, subject := range []string{"exec.job.t.1", "exec.lease.t.1", "exec.submit.t.q", "exec.out.t", "exec.out.t.1.2", ""} {
		_, _, err := s.ParsePair(subject)
		require.Error(t, err, subject)
	}
	_, _, err := s.ParseSubmit("exec.submit.t.q.1")
	require.Error(t, err)
	_, _, _, err = s.ParseQuarantine("exec.quarantine.p.h")
	require.Error(t, err)
	_, _, err = s.ParseLease("exec.lease.p")
	require.Error(t, err)
	_, err = s.ParseEpoch("exec.lease._worker")
	require.Error(t, err)
	_, err = wire.Subjects{}.ParseJob(".job.t.q.1")
	require.Error(t, err, "the zero value reads nothing")
}

func TestToken(t *testing.T) {
	for _, same := range []string{"a", "host-1", "A_b-9", strings.Repeat("x", 64)} {
		require.Equal(t, same, wire.Token(same))
		require.True(t, wire.ValidToken(same))
	}
	require.Equal(t, "host-1-example-com_f525d63079ed51ea", wire.Token("host-1.example.com"))
	seen := map[string]string{}
	for _, word := range []string{"", ".", "a.b", "a-b", "a_b", "a b", "ä", "*", ">", strings.Repeat("x", 65), strings.Repeat("x", 66), "a\x00b"} {
		token := wire.Token(word)
		require.True(t, wire.ValidToken(token), "%q", token)
		require.Equal(t, token, wire.Token(token))
		require.NotContains(t, seen, token)
		seen[token] = word
	}
}

func TestReplyRule(t *testing.T) {
	s := subjects(t, "exec")
	rule, err := wire.NewReplyRule(s, []string{"_INBOX.>", "_INBOX_{tenant}.>", "reply.{tenant}.>", "{tenant}.results.>", "fixed.results"})
	require.NoError(t, err)
	for _, reply := range []string{
		"_INBOX.a", "_INBOX.abc.def.1", "_INBOX_acme.x", "reply.acme.x", "reply.acme.x.y.z", "acme.results.1", "fixed.results",
		"reply.acme." + strings.Repeat("x", 245), "reply.acme" + strings.Repeat(".a", 14),
	} {
		require.Nil(t, rule.Check("acme", reply), reply)
	}
	for reply, says := range map[string]string{
		"":                                       "must not be empty",
		"_INBOX":                                 "not on the operator's list",
		"_INBOX.":                                "empty token",
		"_INBOX..a":                              "empty token",
		".reply.acme.x":                          "empty token",
		"reply.acme":                             "not on the operator's list",
		"reply.other.x":                          "not on the operator's list",
		"reply.acme2.x":                          "not on the operator's list",
		"_INBOX_other.x":                         "not on the operator's list",
		"_INBOXX.a":                              "not on the operator's list",
		"_inbox.a":                               "not on the operator's list",
		"fixed.results.x":                        "not on the operator's list",
		"Fixed.results":                          "not on the operator's list",
		"reply.acme.*":                           "wildcard",
		"reply.acme.>":                           "wildcard",
		"reply.acme.a*":                          "wildcard",
		"reply.acme.a b":                         "printable ASCII",
		"reply.acme.a\tb":                        "printable ASCII",
		"reply.acme.a\r\nPUB x 0\r\n":            "printable ASCII",
		"reply.acme.a\x00":                       "printable ASCII",
		"reply.acme.a\x7f":                       "printable ASCII",
		"reply.acme.ä":                           "printable ASCII",
		"reply.acme.\u00a0":                      "printable ASCII",
		"reply.acme.\xff":                        "printable ASCII",
		"$JS.API.STREAM.DELETE.X":                "server's own",
		"$SYS.x":                                 "server's own",
		"$x":                                     "server's own",
		"_R_.x":                                  "server's own",
		"_GR_.x":                                 "server's own",
		"exec":                                   "Sallyport's own",
		"exec.job.other.q.1":                     "Sallyport's own",
		"exec.anything":                          "Sallyport's own",
		"reply.acme." + strings.Repeat("x", 246): "at most 256 bytes, not 257",
		"reply.acme" + strings.Repeat(".a", 15):  "at most 16 tokens, not 17",
		"reply.acme." + strings.Repeat("x", 10_000_000): "at most 256 bytes",
	} {
		bad := rule.Check("acme", reply)
		require.NotNil(t, bad, reply)
		require.Equal(t, wire.ReasonReply, bad.Reason)
		require.Equal(t, wire.HeaderReplyTo, bad.Field)
		require.Contains(t, bad.Message, says)
	}
}

func TestATenantsNameBorrowsNothing(t *testing.T) {
	rule, err := wire.NewReplyRule(subjects(t, "exec"), []string{"{tenant}.>", "_INBOX_{tenant}.>"})
	require.NoError(t, err)
	for tenant, reply := range map[string]string{
		"_INBOX": "_INBOX.a", "_R_": "_R_.a", "exec": "exec.job.x", "_": "_.a", "": ".a", "a.b": "a.b.c", "*": "x.y", ">": "x.y", "$JS": "$JS.x",
	} {
		require.NotNil(t, rule.Check(tenant, reply), tenant)
	}
	require.Nil(t, rule.Check("acme", "acme.x"))
	require.NotNil(t, rule.Check("acme", "_INBOX_acme2.x"))

	deep, err := wire.NewReplyRule(subjects(t, "acme.exec"), []string{"acme.>"})
	require.NoError(t, err)
	require.Nil(t, deep.Check("t", "acme.other"))
	require.Nil(t, deep.Check("t", "acme.executor"))
	require.NotNil(t, deep.Check("t", "acme.exec"))
	require.NotNil(t, deep.Check("t", "acme.exec.job.t.q.1"))
}

func TestAnEmptyListAllowsNothing(t *testing.T) {
	rule, err := wire.NewReplyRule(subjects(t, "exec"), nil)
	require.NoError(t, err)
	require.NotNil(t, rule.Check("acme", "_INBOX.a"))
	require.NotNil(t, wire.ReplyRule{}.Check("acme", "_INBOX.a"), "the zero value allows nothing")
}

func TestBadAllowListEntries(t *testing.T) {
	s := subjects(t, "exec")
	for entry, says := range map[string]string{
		"": "empty", ">": "wildcard", ".>": "empty", "*.>": "wildcard", "reply.*.>": "wildcard", "reply.>.x": "wildcard", "reply.>.>": "wildcard",
		"$JS.>": "server's own", "_R_.>": "server's own", "exec.>": "Sallyport's own", "exec": "Sallyport's own", "exec.job.>": "Sallyport's own",
		"reply.{tenants}.>": "brace", "reply.{Tenant}.>": "brace", "reply. x.>": "printable", "a..b": "empty token", "_{tenant}.>": "inbox prefix",
		strings.Repeat("x", 257): "at most 256 bytes",
	} {
		_, err := wire.NewReplyRule(s, []string{"_INBOX.>", entry})
		require.ErrorContains(t, err, says, entry)
		require.ErrorContains(t, err, "reply allow-list entry")
	}
	_, err := wire.NewReplyRule(wire.Subjects{}, nil)
	require.Error(t, err)
}

func TestReplyHeader(t *testing.T) {
	for name, test := range map[string]struct {
		headers map[string][]string
		reply   string
		bad     bool
	}{
		"no headers":     {nil, "", false},
		"absent":         {map[string][]string{"X": {"y"}}, "", false},
		"no value":       {map[string][]string{"Exec-Reply-To": {}}, "", false},
		"one":            {map[string][]string{"Exec-Reply-To": {"_INBOX.a"}}, "_INBOX.a", false},
		"other case":     {map[string][]string{"exec-reply-TO": {"_INBOX.a"}}, "_INBOX.a", false},
		"empty":          {map[string][]string{"Exec-Reply-To": {""}}, "", true},
		"two":            {map[string][]string{"Exec-Reply-To": {"a", "a"}}, "", true},
		"two in cases":   {map[string][]string{"Exec-Reply-To": {"a"}, "exec-reply-to": {"b"}}, "", true},
		"two, one empty": {map[string][]string{"Exec-Reply-To": {"", "a"}}, "", true},
	} {
		reply, bad := wire.ReplyHeader(test.headers)
		require.Equal(t, test.bad, bad != nil, name)
		require.Equal(t, test.reply, reply, name)
	}
}

func TestReservedHeader(t *testing.T) {
	for _, name := range []string{"Nats-Msg-Id", "nats-rollup", "NATS-", "Status", "STATUS", "description", "KV-Operation", "kv-operation", " Status", "Nats-TTL "} {
		require.True(t, wire.ReservedHeader(name), name)
	}
	for _, name := range []string{"", "Nats", "X-Nats-Foo", "Status-Code", "traceparent", "Exec-Reply-To", "KV"} {
		require.False(t, wire.ReservedHeader(name), name)
	}
}

func TestEventsTravelInHeaders(t *testing.T) {
	for name, event := range events() {
		data := []byte("data")
		parsed, err := wire.ParseEvent(event.Headers(), data)
		require.NoError(t, err, name)
		event.Data = data
		require.Equal(t, event, parsed, name)
	}
	withOthers := events()["event_stdout.txt"].Headers()
	withOthers["Nats-Sequence"] = []string{"5", "6"}
	_, err := wire.ParseEvent(withOthers, nil)
	require.NoError(t, err)
}

func TestEventHeaderBytesIsABound(t *testing.T) {
	long := strings.Repeat("x", wire.MaxTokenBytes)
	for _, kind := range []wire.EventType{wire.EventAccepted, wire.EventStarted, wire.EventStdout, wire.EventStderr, wire.EventResult, wire.EventEnd} {
		event := wire.Event{Type: kind, Job: long + "." + long, Attempt: 1<<63 - 1, Seq: 1<<64 - 1, Offset: 1<<63 - 1}
		size := len("NATS/1.0\r\n") + len("\r\n")
		for name, values := range event.Headers() {
			require.Len(t, values, 1)
			size += len(name) + len(": ") + len(values[0]) + len("\r\n")
		}
		require.LessOrEqual(t, size, wire.EventHeaderBytes)
	}
}

func TestEventHeadersTakeNoForeignWords(t *testing.T) {
	event := wire.Event{Type: "stdout\r\nNats-Rollup: all", Job: "a.b\r\nX: y", Attempt: -1, Offset: -1}
	require.Empty(t, event.Headers())
	event = wire.Event{Type: wire.EventStdout, Job: "a.b.c", Offset: -1}
	require.Equal(t, map[string][]string{"Exec-Event": {"stdout"}}, event.Headers())
	_, err := wire.ParseEvent(event.Headers(), nil)
	require.Error(t, err)
}

func TestBadEventHeaders(t *testing.T) {
	for name, change := range map[string]func(map[string][]string){
		"no event":          func(h map[string][]string) { delete(h, "Exec-Event") },
		"unknown event":     func(h map[string][]string) { h["Exec-Event"] = []string{"stdin"} },
		"two events":        func(h map[string][]string) { h["Exec-Event"] = []string{"stdout", "stdout"} },
		"no job":            func(h map[string][]string) { delete(h, "Exec-Job") },
		"job of one token":  func(h map[string][]string) { h["Exec-Job"] = []string{"acme"} },
		"job of three":      func(h map[string][]string) { h["Exec-Job"] = []string{"a.b.c"} },
		"no attempt":        func(h map[string][]string) { delete(h, "Exec-Attempt") },
		"attempt 0":         func(h map[string][]string) { h["Exec-Attempt"] = []string{"0"} },
		"attempt negative":  func(h map[string][]string) { h["Exec-Attempt"] = []string{"-1"} },
		"attempt with zero": func(h map[string][]string) { h["Exec-Attempt"] = []string{"01"} },
		"attempt with sign": func(h map[string][]string) { h["Exec-Attempt"] = []string{"+1"} },
		"attempt too big":   func(h map[string][]string) { h["Exec-Attempt"] = []string{"2147483648"} },
		"attempt empty":     func(h map[string][]string) { h["Exec-Attempt"] = []string{""} },
		"no seq":            func(h map[string][]string) { delete(h, "Exec-Seq") },
		"seq too big":       func(h map[string][]string) { h["Exec-Seq"] = []string{"18446744073709551616"} },
		"two seqs":          func(h map[string][]string) { h["Exec-Seq"] = []string{"1", "2"} },
		"no offset":         func(h map[string][]string) { delete(h, "Exec-Offset") },
		"offset too big":    func(h map[string][]string) { h["Exec-Offset"] = []string{"9223372036854775808"} },
		"offset in hex":     func(h map[string][]string) { h["Exec-Offset"] = []string{"0x10"} },
		"offset of started": func(h map[string][]string) { h["Exec-Event"] = []string{"started"} },
		"accepted with seq": func(h map[string][]string) { h["Exec-Event"] = []string{"accepted"}; delete(h, "Exec-Offset") },
	} {
		headers := events()["event_stdout.txt"].Headers()
		change(headers)
		event, err := wire.ParseEvent(headers, []byte("x"))
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "strconv", name)
		require.Equal(t, wire.Event{}, event, name)
	}
	_, err := wire.ParseEvent(nil, nil)
	require.Error(t, err)
}

func TestParseKey(t *testing.T) {
	tenant, id, err := wire.ParseKey("acme.1")
	require.NoError(t, err)
	require.Equal(t, []string{"acme", "1"}, []string{tenant, id})
	for _, bad := range []string{"", ".", "acme", "acme.", ".1", "a.b.c", "a.*"} {
		_, _, err = wire.ParseKey(bad)
		require.Error(t, err, bad)
	}
}

func TestSharedReply(t *testing.T) {
	t.Parallel()
	s := subjects(t, "exec")
	rule, err := wire.NewReplyRule(s, []string{"_INBOX_{tenant}.>", "reply.{tenant}.>", "monitor.>"})
	require.NoError(t, err)
	for _, reply := range []string{"_INBOX.a", "_INBOX.abc.def.1", "monitor.x"} {
		require.Nil(t, rule.CheckShared(reply), reply)
	}
	for _, reply := range []string{
		"", "_INBOX", "_INBOX_acme.x", "reply.acme.x", "reply.{tenant}.x", "exec.run.a.b", "exec", "$JS.API.INFO", "_R_.x", "monitor", "monitor.*", "x",
	} {
		require.NotNil(t, rule.CheckShared(reply), reply)
	}
	require.NotNil(t, wire.ReplyRule{}.CheckShared("_INBOX.a"), "the zero rule allows nothing")
}
