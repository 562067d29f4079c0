package wire_test

import (
	"encoding/base64"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// badResults turn a good exited result into one that breaks a rule.
func badResults() map[string]func(*wire.Result) {
	return map[string]func(*wire.Result){
		"no outcome":               func(r *wire.Result) { r.Outcome = "" },
		"unknown outcome":          func(r *wire.Result) { r.Outcome = "failed" },
		"no exit code":             func(r *wire.Result) { r.ExitCode = nil },
		"exit code -1":             func(r *wire.Result) { r.ExitCode = new(-1) },
		"exit code 256":            func(r *wire.Result) { r.ExitCode = new(256) },
		"exit code and signal":     func(r *wire.Result) { r.Signal = &wire.Signal{Number: 9} },
		"signaled without signal":  func(r *wire.Result) { r.Outcome, r.ExitCode = wire.Signaled, nil },
		"signal 0":                 func(r *wire.Result) { r.Outcome, r.ExitCode, r.Signal = wire.Signaled, nil, &wire.Signal{} },
		"reason without need":      func(r *wire.Result) { r.Reason = wire.ReasonCPU },
		"limit without reason":     func(r *wire.Result) { r.Outcome = wire.Limit },
		"reason of another":        func(r *wire.Result) { r.Outcome, r.Reason = wire.Limit, wire.ReasonShutdown },
		"no start state":           func(r *wire.Result) { r.StartState = "" },
		"exited but not started":   func(r *wire.Result) { r.StartState = wire.StartNo },
		"exited but maybe started": func(r *wire.Result) { r.StartState = wire.StartMaybe },
		"expired but started": func(r *wire.Result) {
			r.Outcome, r.Reason, r.ExitCode = wire.Expired, wire.ReasonDeadline, nil
		},
		"no tenant":            func(r *wire.Result) { r.Tenant = "" },
		"no id":                func(r *wire.Result) { r.ID = "" },
		"tenant with a dot":    func(r *wire.Result) { r.Tenant = "a.b" },
		"queue with a star":    func(r *wire.Result) { r.Queue = "*" },
		"negative attempt":     func(r *wire.Result) { r.Attempt = -1 },
		"no verdict":           func(r *wire.Result) { r.Containment.Verdict = "" },
		"no scope":             func(r *wire.Result) { r.Containment.Scope = "" },
		"no disposition":       func(r *wire.Result) { r.Lease.Disposition = "" },
		"unproven and reused":  func(r *wire.Result) { r.Containment.Verdict = wire.Unproven },
		"negative output":      func(r *wire.Result) { r.Output.StdoutBytes = -1 },
		"lost range from 0":    func(r *wire.Result) { r.Output.LostRanges = []wire.LostRange{{From: 0, To: 1}} },
		"unknown encoding":     func(r *wire.Result) { r.Stdout = &wire.Inline{Encoding: "gzip"} },
		"inline not in base64": func(r *wire.Result) { r.Stderr = &wire.Inline{Encoding: "base64", Data: "%"} },
		"empty key in meta":    func(r *wire.Result) { r.Meta = map[string]string{"": "x"} },
	}
}

func TestBadResultsAreRefused(t *testing.T) {
	bad := badResults()
	// Beyond what the schema can tell.
	bad["delivered more than produced"] = func(r *wire.Result) { r.Output.StderrBytes = 1 }
	bad["lost range backwards"] = func(r *wire.Result) { r.Output.LostRanges = []wire.LostRange{{From: 2, To: 1}} }
	bad["meta too big"] = func(r *wire.Result) { r.Meta = map[string]string{"x": strings.Repeat("x", 4096)} }
	for name, change := range bad {
		result := ranResult(wire.Exited)
		result.ExitCode = new(0)
		_, err := wire.EncodeResult(result)
		require.NoError(t, err)
		change(result)
		_, err = wire.EncodeResult(result)
		var invalid *wire.Invalid
		require.ErrorAs(t, err, &invalid, name)
		require.NotEmpty(t, invalid.Field, name)
	}
}

func TestDecodingAResult(t *testing.T) {
	good := string(golden(t, "result_exited.json"))
	t.Run("unknown fields of a newer worker are ignored", func(t *testing.T) {
		result, err := wire.DecodeResult([]byte(strings.Replace(good, `{"v":1,`, `{"v":1,"newer":{"x":[1]},`, 1)))
		require.NoError(t, err)
		require.Equal(t, results()["result_exited.json"], result)
	})
	for name, test := range map[string]struct{ data, says string }{
		"version":     {strings.Replace(good, `"v":1`, `"v":2`, 1), "v: must be the number 1, not 2"},
		"empty":       {"", "is empty"},
		"null":        {"null", "must be a JSON object"},
		"null field":  {strings.Replace(good, `"exit_code":0`, `"exit_code":null`, 1), "exit_code: must be a whole number, not null"},
		"no outcome":  {strings.Replace(good, `"outcome":"exited",`, ``, 1), "outcome: must be one of"},
		"repeated":    {strings.Replace(good, `"v":1,`, `"v":1,"id":"x",`, 1), "id: stands twice"},
		"wrong type":  {strings.Replace(good, `"attempt":1`, `"attempt":"1"`, 1), `attempt: must be a whole number, not "1"`},
		"wrong float": {strings.Replace(good, `"run_ms":12`, `"run_ms":"12"`, 1), `timing.run_ms: must be a number, not "12"`},
		"wrong list":  {strings.Replace(good, `"applied":["user"`, `"applied":[1`, 1), `containment.isolation.applied[0]: must be a string, not 1`},
		"too long":    {strings.Repeat(" ", wire.MaxRecordBytes) + good, "at most 1040384 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := wire.DecodeResult([]byte(test.data))
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, "decode result: ")
		})
	}
}

func TestEncodingAResultIsDeterministicAndTidies(t *testing.T) {
	result := ranResult(wire.TimedOut)
	result.V = 0
	result.Meta = map[string]string{"b": "1", "a": "2", "c": "3", "d": "4"}
	result.Message = strings.Repeat("ä", wire.MaxMessageBytes)
	result.Containment.Evidence = make([]wire.Evidence, wire.MaxEvidence+5)
	result.Containment.Evidence[0] = wire.Evidence{Kind: "odd kind", Detail: "file \xff\xfe"}
	result.Timing = wire.Timing{QueuedMS: -5, LeaseMS: math.NaN(), SetupMS: math.Inf(1), RunMS: 1.23456, ProofMS: 0.0004}
	for i := range 3000 {
		result.Output.LostRanges = append(result.Output.LostRanges, wire.LostRange{From: uint64(2*i + 1), To: uint64(2*i + 1)})
	}
	first, err := wire.EncodeResult(result)
	require.NoError(t, err)
	for range 20 {
		again, err := wire.EncodeResult(result)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
	require.Zero(t, result.V, "the caller's result must not change")
	require.Equal(t, "odd kind", result.Containment.Evidence[0].Kind)

	decoded, err := wire.DecodeResult(first)
	require.NoError(t, err)
	require.Equal(t, wire.Timing{RunMS: 1.235}, decoded.Timing)
	require.Len(t, decoded.Containment.Evidence, wire.MaxEvidence)
	require.Equal(t, "file \uFFFD", decoded.Containment.Evidence[0].Detail)
	require.LessOrEqual(t, len(decoded.Message), wire.MaxMessageBytes)
	require.Len(t, decoded.Output.LostRanges, 1024)
	require.Equal(t, uint64(5999), decoded.Output.LostRanges[1023].To)
}

func TestWithoutInline(t *testing.T) {
	full := results()["result_limit.json"]
	full.Stdout, full.Stderr = wire.NewInline([]byte("a")), wire.NewInline(nil)
	slim := full.WithoutInline()
	require.Nil(t, slim.Stdout)
	require.Nil(t, slim.Stderr)
	require.Equal(t, []wire.CollectedFile{
		{Path: "out/a.json", Size: 2, Refuse: "the result became too big"}, full.Files[1], full.Files[2],
	}, slim.Files)
	require.NotNil(t, full.Stdout, "the full result must not change")
	require.NotEmpty(t, full.Files[0].Base64)

	plain := results()["result_exited.json"]
	require.Equal(t, plain, plain.WithoutInline())
	require.False(t, plain.WithoutInline().Output.Truncated)
}

func TestInline(t *testing.T) {
	for name, test := range map[string]struct {
		data     string
		encoding string
	}{
		"empty":                    {"", wire.EncodingText},
		"text":                     {"hello\n", wire.EncodingText},
		"UTF-8":                    {"Grüße ☃ 𝄞", wire.EncodingText},
		"a few control characters": {"\x1b[31mred\x1b[0m\x00", wire.EncodingText},
		"quotes and lines":         {strings.Repeat("\"a\": 1,\n", 200), wire.EncodingText},
		"not UTF-8":                {"\xff", wire.EncodingBase64},
		"half a rune":              {"Gr\xc3", wire.EncodingBase64},
		"surrogate":                {"\xed\xa0\x80", wire.EncodingBase64},
		"only control characters":  {strings.Repeat("\x01", 1000), wire.EncodingBase64},
		"only backslashes":         {strings.Repeat(`\`, 1000), wire.EncodingBase64},
	} {
		t.Run(name, func(t *testing.T) {
			inline := wire.NewInline([]byte(test.data))
			require.Equal(t, test.encoding, inline.Encoding)
			data, err := inline.Bytes()
			require.NoError(t, err)
			require.Equal(t, test.data, string(data))

			result := ranResult(wire.TimedOut)
			result.Stdout = inline
			encoded, err := wire.EncodeResult(result)
			require.NoError(t, err)
			decoded, err := wire.DecodeResult(encoded)
			require.NoError(t, err)
			data, err = decoded.Stdout.Bytes()
			require.NoError(t, err)
			require.Equal(t, test.data, string(data))
		})
	}
	data, err := (*wire.Inline)(nil).Bytes()
	require.NoError(t, err)
	require.Empty(t, data)
	_, err = (&wire.Inline{Encoding: "", Data: "x"}).Bytes()
	require.EqualError(t, err, `inline output: encoding must be text or base64, not ""`)
}

func TestTheGreatestInlineResultFitsItsRecord(t *testing.T) {
	for name, fill := range map[string]string{"base64": "\xff", "escapes": "\x01", "text": "a", "quotes": `aaa"`} {
		result := ranResult(wire.TimedOut)
		data := []byte(strings.Repeat(fill, wire.MaxInlineBytes/len(fill)))
		result.Stdout, result.Stderr = wire.NewInline(data), wire.NewInline(data)
		result.Meta = map[string]string{"x": strings.Repeat("\x01", 4000)}
		result.Message = strings.Repeat("\x01", wire.MaxMessageBytes)
		encoded, err := wire.EncodeResult(result)
		require.NoError(t, err)
		record := *runRecords(t)["run_done.json"]
		record.Result = encoded
		stored, err := wire.EncodeRunRecord(&record)
		require.NoError(t, err, name)
		require.LessOrEqual(t, len(stored), wire.MaxRecordBytes, name)
		back, err := wire.DecodeRunRecord(stored)
		require.NoError(t, err)
		require.Equal(t, encoded, []byte(back.Result), name)
	}
}

func TestRunRecordKeepsItsResultByteForByte(t *testing.T) {
	record := *runRecords(t)["run_done.json"]
	data, err := wire.EncodeRunRecord(&record)
	require.NoError(t, err)
	back, err := wire.DecodeRunRecord(data)
	require.NoError(t, err)
	require.Equal(t, string(record.Result), string(back.Result))

	for name, result := range map[string]string{
		"white space": `{"v": 1}`, "not JSON": `{"v"`, "repeated": `{"a":1,"a":1}`, "no object": `5`, "two": `{} {}`,
	} {
		record.Result = wire.RawResult(result)
		_, err = wire.EncodeRunRecord(&record)
		require.Error(t, err, name)
	}
	// Escapes that we would not have written ourselves stay too.
	record.Result = wire.RawResult(`{"a":"\u0061\/"}`)
	data, err = wire.EncodeRunRecord(&record)
	require.NoError(t, err)
	back, err = wire.DecodeRunRecord(data)
	require.NoError(t, err)
	require.Equal(t, string(record.Result), string(back.Result))
}

func TestRunRecordRules(t *testing.T) {
	for name, change := range map[string]func(*wire.RunRecord){
		"no state":             func(r *wire.RunRecord) { r.State = "" },
		"no worker":            func(r *wire.RunRecord) { r.Worker = "" },
		"no token":             func(r *wire.RunRecord) { r.Token = "" },
		"attempt 0":            func(r *wire.RunRecord) { r.Attempt = 0 },
		"no queue":             func(r *wire.RunRecord) { r.Queue = "" },
		"no digest":            func(r *wire.RunRecord) { r.Digest = "" },
		"bad lease":            func(r *wire.RunRecord) { r.Lease = "a.b" },
		"negative renewals":    func(r *wire.RunRecord) { r.Renewals = -1 },
		"result while claimed": func(r *wire.RunRecord) { r.Result = wire.RawResult("{}") },
		"done without result":  func(r *wire.RunRecord) { r.State = wire.RunDone },
	} {
		record := *runRecords(t)["run_claimed.json"]
		change(&record)
		_, err := wire.EncodeRunRecord(&record)
		require.Error(t, err, name)
	}
	_, err := wire.DecodeRunRecord([]byte(strings.Replace(string(golden(t, "run_claimed.json")), "{", `{"newer":1,`, 1)))
	require.EqualError(t, err, "decode run record: newer: is not a field of a run record, version 1")
}

func TestQuarantineRules(t *testing.T) {
	for name, change := range map[string]func(*wire.Quarantine){
		"no state":          func(q *wire.Quarantine) { q.State = "" },
		"no reason":         func(q *wire.Quarantine) { q.Reason = "" },
		"no lease":          func(q *wire.Quarantine) { q.Lease = "" },
		"host with dots":    func(q *wire.Quarantine) { q.Host = "a.b" },
		"bad job":           func(q *wire.Quarantine) { q.Job = "a.b.c" },
		"never seen":        func(q *wire.Quarantine) { q.FirstSeen = time.Time{} },
		"gone without time": func(q *wire.Quarantine) { q.State = wire.Gone },
		"time but not gone": func(q *wire.Quarantine) { q.DestroyedAt = new(time.Unix(1, 0)) },
		"negative attempts": func(q *wire.Quarantine) { q.Attempts = -1 },
		"handle not UTF-8":  func(q *wire.Quarantine) { q.Handle = map[string]string{"dir": "\xff"} },
		"handle too big":    func(q *wire.Quarantine) { q.Handle = map[string]string{"dir": strings.Repeat("x", 4096)} },
	} {
		record := *quarantines()["quarantine_fresh.json"]
		change(&record)
		_, err := wire.EncodeQuarantine(&record)
		require.Error(t, err, name)
	}
	long := *quarantines()["quarantine_fresh.json"]
	long.Job = "acme.job-1"
	long.Message = strings.Repeat("x", 1<<20)
	long.Evidence = make([]wire.Evidence, 1000)
	data, err := wire.EncodeQuarantine(&long)
	require.NoError(t, err)
	require.Less(t, len(data), 16<<10)
}

func TestDeadLetterKeepsWhatFits(t *testing.T) {
	letter := *deadLetters()["dead_letter.json"]
	letter.Body = []byte(strings.Repeat("\xff", wire.MaxDeadBodyBytes))
	data, err := wire.EncodeDeadLetter(&letter)
	require.NoError(t, err)
	back, err := wire.DecodeDeadLetter(data)
	require.NoError(t, err)
	require.Equal(t, letter.Body, back.Body)
	require.False(t, back.BodyCut)

	letter.Body = append(letter.Body, 'x')
	data, err = wire.EncodeDeadLetter(&letter)
	require.NoError(t, err)
	back, err = wire.DecodeDeadLetter(data)
	require.NoError(t, err)
	require.Len(t, back.Body, wire.MaxDeadBodyBytes)
	require.True(t, back.BodyCut)
	require.False(t, letter.BodyCut, "the caller's letter must not change")

	// The most that JetStream lets through, in the form that takes the most room.
	letter.Headers = map[string][]string{"X": {strings.Repeat("\x01", 64<<10)}}
	data, err = wire.EncodeDeadLetter(&letter)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), wire.MaxRecordBytes)
	require.Greater(t, len(data), wire.MaxRecordBytes-64)
	back, err = wire.DecodeDeadLetter(data)
	require.NoError(t, err)
	require.True(t, back.BodyCut)
	require.Equal(t, letter.Headers, back.Headers)

	letter.Headers = map[string][]string{"X": {strings.Repeat("x", 2<<20)}}
	_, err = wire.EncodeDeadLetter(&letter)
	require.EqualError(t, err, "encode dead letter: the headers alone exceed 1040384 bytes")

	for name, change := range map[string]func(*wire.DeadLetter){
		"no subject": func(d *wire.DeadLetter) { d.Subject = "" },
		"no reason":  func(d *wire.DeadLetter) { d.Reason = "" },
		"no time":    func(d *wire.DeadLetter) { d.At = time.Time{} },
		"bad tenant": func(d *wire.DeadLetter) { d.Tenant = ">" },
	} {
		bad := *deadLetters()["dead_letter.json"]
		change(&bad)
		_, err := wire.EncodeDeadLetter(&bad)
		require.Error(t, err, name)
	}
	_, err = wire.DecodeDeadLetter([]byte(strings.Replace(string(golden(t, "dead_letter.json")), `"////"`, `"%"`, 1)))
	require.ErrorContains(t, err, `body: must be a string in base64, not "%"`)
}

func TestNoHeaderKeepsAMessageOutOfTheDeadLetters(t *testing.T) {
	letter := *deadLetters()["dead_letter.json"]
	letter.Headers = map[string][]string{"\xff": {"a"}, "\xfe": {"b", "\xff"}, "": {""}, "\x00\u2028": nil}
	data, err := wire.EncodeDeadLetter(&letter)
	require.NoError(t, err)
	back, err := wire.DecodeDeadLetter(data)
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"\uFFFD": {"b", "\uFFFD", "a"}, "": {""}, "\x00\u2028": {}}, back.Headers)
}

func TestEvidenceIsBoundedOnTheWayInToo(t *testing.T) {
	data := string(golden(t, "quarantine_fresh.json"))
	piece := `{"kind":"cgroup","detail":"populated 1"}`
	for name, evidence := range map[string]string{
		"kind":   `{"kind":"a.b"}`,
		"detail": `{"kind":"a","detail":"` + strings.Repeat("x", wire.MaxMessageBytes+1) + `"}`,
		"number": strings.TrimSuffix(strings.Repeat(piece+",", wire.MaxEvidence+1), ","),
	} {
		_, err := wire.DecodeQuarantine([]byte(strings.Replace(data, piece, evidence, 1)))
		require.ErrorContains(t, err, "evidence", name)
	}
}

func TestStartedAndAcceptedRules(t *testing.T) {
	_, err := wire.EncodeStarted(&wire.Started{Attempt: 0, Worker: "w", Lease: "l"})
	require.ErrorContains(t, err, "attempt: must be at least 1")
	_, err = wire.EncodeStarted(&wire.Started{Attempt: 1, Worker: "w"})
	require.ErrorContains(t, err, "lease: must be")
	_, err = wire.EncodeAccepted(&wire.Accepted{Tenant: "a", Queue: "b", ID: "c.d"})
	require.ErrorContains(t, err, "id: must be")
	_, err = wire.DecodeAccepted([]byte(`{"v":1,"tenant":"a","queue":"b"}`))
	require.ErrorContains(t, err, "id: must be")
	_, err = wire.DecodeStarted([]byte(`{"v":1,"attempt":1,"worker":"w","lease":"l","newer":true}`))
	require.NoError(t, err)
}

func TestMessage(t *testing.T) {
	require.Equal(t, "a 1", wire.Message("a %d", 1))
	require.Equal(t, "a \uFFFDb", wire.Message("a %s", "\xff\xfeb"))
	for _, unit := range []string{"x", "ä", "☃", "𝄞"} {
		for shift := range 4 {
			text := wire.Message("%s%s", strings.Repeat("y", shift), strings.Repeat(unit, wire.MaxMessageBytes+1))
			require.True(t, utf8.ValidString(text))
			require.LessOrEqual(t, len(text), wire.MaxMessageBytes)
			require.Greater(t, len(text), wire.MaxMessageBytes-8)
			require.True(t, strings.HasSuffix(text, unit+" …"))
		}
	}
	whole := strings.Repeat("x", wire.MaxMessageBytes)
	require.Equal(t, whole, wire.Message("%s", whole))
}

func TestInvalidIsAnError(t *testing.T) {
	_, bad := wire.DecodeRequest([]byte(argv(`[]`)))
	var err error = bad
	require.EqualError(t, err, "argv: must be a list of strings with at least one, the program")
	var target *wire.Invalid
	require.True(t, errors.As(err, &target))
	_, bad = wire.DecodeRequest([]byte("[]"))
	require.EqualError(t, bad, "the body must be a JSON object, not a list")
}

func TestExitStatus(t *testing.T) {
	status := func(outcome wire.Outcome, reason wire.Reason) int {
		return wire.ExitStatus(&wire.Result{Outcome: outcome, Reason: reason, ExitCode: new(0)})
	}
	for code := range 256 {
		require.Equal(t, code, wire.ExitStatus(&wire.Result{Outcome: wire.Exited, ExitCode: &code}))
	}
	require.Equal(t, 139, wire.ExitStatus(&wire.Result{Outcome: wire.Signaled, Signal: &wire.Signal{Number: 11}}))
	require.Equal(t, 192, wire.ExitStatus(&wire.Result{Outcome: wire.Signaled, Signal: &wire.Signal{Number: 64}}))
	require.Equal(t, 120, status(wire.Expired, wire.ReasonDeadline))
	require.Equal(t, 121, status(wire.InvalidJob, wire.ReasonField))
	require.Equal(t, 122, status(wire.Limit, wire.ReasonCPU))
	require.Equal(t, 123, status(wire.Lost, wire.ReasonShutdown))
	require.Equal(t, 124, status(wire.TimedOut, ""))
	require.Equal(t, 130, status(wire.Cancelled, ""))
	require.Equal(t, 137, status(wire.OOM, ""))
	for _, code := range []int{126, 127} {
		require.Equal(t, code, wire.ExitStatus(&wire.Result{Outcome: wire.NotStarted, Reason: wire.ReasonNotFound, ExitCode: &code}))
	}
	require.Equal(t, 125, wire.ExitStatus(&wire.Result{Outcome: wire.NotStarted, Reason: wire.ReasonUnenforceable}))
	// Never success for what nobody understands.
	require.Equal(t, 123, wire.ExitStatus(&wire.Result{}))
	require.Equal(t, 123, wire.ExitStatus(&wire.Result{Outcome: wire.Exited}))
	require.Equal(t, 123, wire.ExitStatus(&wire.Result{Outcome: wire.Signaled}))
	require.Equal(t, 123, wire.ExitStatus(&wire.Result{Outcome: wire.Exited, ExitCode: new(256)}))
}

func TestProfileResolve(t *testing.T) {
	profile := wire.Profile{
		Name:    "small",
		Default: wire.Limits{WallMS: new(int64(1000)), OutputBytes: new(int64(64))},
		Max:     wire.Limits{WallMS: new(int64(5000)), Pids: new(int64(32)), OutputBytes: new(int64(128))},
	}
	limits, bad := profile.Resolve(&wire.Request{Limits: wire.Limits{WallMS: new(int64(5000)), GraceMS: new(int64(7))}})
	require.Nil(t, bad)
	require.Equal(t, wire.Limits{WallMS: new(int64(5000)), OutputBytes: new(int64(64)), GraceMS: new(int64(7))}, limits)

	limits, bad = profile.Resolve(&wire.Request{})
	require.Nil(t, bad)
	require.Equal(t, profile.Default, limits)
	*limits.WallMS = 1
	require.Equal(t, int64(1000), *profile.Default.WallMS, "the profile must not change")

	for field, request := range map[string]wire.Limits{
		"limits.wall_ms":      {WallMS: new(int64(5001))},
		"limits.pids":         {Pids: new(int64(33))},
		"limits.output_bytes": {OutputBytes: new(int64(math.MaxInt64))},
		"limits.grace_ms":     {GraceMS: new(int64(3_600_001))},
	} {
		_, bad = profile.Resolve(&wire.Request{Limits: request})
		require.NotNil(t, bad)
		require.Equal(t, field, bad.Field)
		require.Equal(t, wire.ReasonTooBig, bad.Reason)
	}
	_, bad = profile.Resolve(&wire.Request{Limits: wire.Limits{WallMS: new(int64(5001))}})
	require.EqualError(t, bad, `limits.wall_ms: must be at most 5000 milliseconds in the profile "small", not 5001`)
	_, bad = profile.Resolve(&wire.Request{Limits: wire.Limits{CPUMS: new(int64(0))}})
	require.Equal(t, wire.ReasonField, bad.Reason)
}

func TestEveryLimitResolves(t *testing.T) {
	// Each by its own name, so that no two share a place.
	for i, name := range limitNames() {
		request, bad := wire.DecodeRequest([]byte(with(`"limits":{"` + name + `":` + string(rune('1'+i%9)) + `}`)))
		require.Nil(t, bad)
		limits, bad := wire.Profile{}.Resolve(request)
		require.Nil(t, bad)
		require.Equal(t, request.Limits, limits, name)
		require.NotEqual(t, wire.Limits{}, limits, name)
		require.Nil(t, limits.Validate("limits"))
	}
}

func TestBase64OfTheStandardLibraryIsOurs(t *testing.T) {
	for _, data := range []string{"", "a", "ab", "abc", "\xff\xfe\xfd\xfc"} {
		body := with(`"stdin_base64":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `"`)
		request, bad := wire.DecodeRequest([]byte(body))
		require.Nil(t, bad)
		input, given := request.Input()
		require.True(t, given)
		require.Equal(t, data, string(input))
	}
}
