package wire_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const goldenDir = "testdata/golden"

func golden(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(goldenDir, name))
	require.NoError(tb, err)
	return bytes.TrimSuffix(data, []byte("\n"))
}

func at(text string) time.Time {
	moment, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return moment
}

func fullRequest() *wire.Request {
	return &wire.Request{
		V:           1,
		Argv:        []string{"/usr/bin/python3", "-c", "print('é\t\"<&>')", ""},
		Env:         map[string]string{"LANG": "C.UTF-8", "EMPTY": "", "A": "b=c"},
		Cwd:         "work/sub",
		StdinBase64: new("AP8="),
		Files: []wire.File{
			{Path: "in/empty.txt", Text: new("")},
			{Path: "in/data.bin", Base64: new("AAEC"), Mode: "0600"},
			{Path: "in/model", Object: "inputs/model-1", Mode: "0444"},
		},
		Collect: []string{"out/*.json", "report.txt"},
		Limits: wire.Limits{
			WallMS: new(int64(10_000)), CPUMS: new(int64(5_000)), MemoryBytes: new(int64(67_108_864)), Pids: new(int64(64)),
			OutputBytes: new(int64(1_048_576)), DiskBytes: new(int64(16_777_216)), Inodes: new(int64(1_000)),
			OpenFiles: new(int64(256)), CPUShare: new(int64(50)), GraceMS: new(int64(1_000)),
		},
		Profile:   "python",
		Lease:     wire.LeaseRule{Reuse: wire.ReuseNever},
		Retry:     wire.Retry{MaxAttempts: new(3), IfLost: true},
		Output:    wire.OutputInline,
		Deadline:  new(at("2030-01-02T03:04:05.678Z")),
		NotBefore: new(at("2030-01-01T00:00:00Z")),
		Priority:  new(5),
		Meta:      map[string]string{"commit": "c0ffee", "case": "1/2"},
	}
}

func worker() wire.WorkerRef { return wire.WorkerRef{ID: "host-1_7Q2", Version: "0.1.0"} }

func ranResult(outcome wire.Outcome) *wire.Result {
	return &wire.Result{
		V: 1, Tenant: "acme", ID: "job-1", Queue: "default", Attempt: 1, Outcome: outcome, StartState: wire.StartYes,
		Containment: &wire.Containment{
			Verdict: wire.Proven, Scope: wire.ScopeKernel,
			Evidence:  []wire.Evidence{{Kind: "reap", Detail: "init saw no child left"}, {Kind: "cgroup", Detail: "populated 0"}},
			Isolation: wire.Isolation{Level: "namespaces+cgroup", Applied: []string{"user", "pid", "mount"}, Missing: []string{"seccomp"}},
		},
		Lease: &wire.LeaseUse{ID: "01JZ", Provider: "local", Profile: "default", Use: 2, Disposition: wire.Reusable},
		Usage: &wire.Usage{
			WallMS: 12, CPUUserUS: new(int64(900)), CPUSystemUS: new(int64(0)), MemoryPeakBytes: new(int64(1 << 20)),
			PidsPeak: new(int64(2)), OOMKills: new(int64(0)), Source: "cgroup",
		},
		Output: wire.OutputSummary{StdoutBytes: 6, StdoutProduced: 6, LastSeq: 3},
		Timing: wire.Timing{QueuedMS: 1.5, LeaseMS: 0.25, SetupMS: 3.125, RunMS: 12, ProofMS: 0.875},
		Worker: worker(),
		Meta:   map[string]string{"commit": "c0ffee"},
	}
}

// results are one of each kind, by the name of its golden file.
func results() map[string]*wire.Result {
	exited := ranResult(wire.Exited)
	exited.ExitCode = new(0)

	signaled := ranResult(wire.Signaled)
	signaled.Signal = &wire.Signal{Number: 11, Name: "SIGSEGV"}
	signaled.Stdout, signaled.Stderr = wire.NewInline([]byte("hello\n")), wire.NewInline([]byte{0xff, 0x00})
	signaled.Output = wire.OutputSummary{
		StdoutBytes: 6, StderrBytes: 2, StdoutProduced: 6, StderrProduced: 4, Truncated: true, LastSeq: 9,
		LostRanges: []wire.LostRange{{From: 4, To: 4}, {From: 6, To: 7}},
	}

	timedOut := ranResult(wire.TimedOut)
	timedOut.ExitCode = new(0)
	timedOut.Message = "the program ended within the grace period after its wall time was over"

	limit := ranResult(wire.Limit)
	limit.Reason, limit.Signal = wire.ReasonOutput, &wire.Signal{Number: 35}
	limit.Output.Truncated = true
	limit.Output.Unread = &wire.Unread{First: 12, Last: 40, Reason: "the provider's journal had dropped it"}
	limit.Containment.Verdict, limit.Containment.Scope = wire.Unproven, wire.ScopeProvider
	limit.Lease.Disposition = wire.Quarantined
	limit.FilesOmitted = 2
	limit.Files = []wire.CollectedFile{
		{Path: "out/a.json", Size: 2, Base64: "e30="},
		{Path: "out/b", Size: 1 << 30, Object: "out/job-1/b"},
		{Path: "out/c", Size: 9, Refuse: "is a symbolic link"},
	}

	oom := ranResult(wire.OOM)
	oom.Signal = &wire.Signal{Number: 9, Name: "SIGKILL"}

	bare := func(outcome wire.Outcome, reason wire.Reason, state wire.StartState, message string) *wire.Result {
		return &wire.Result{
			V: 1, Tenant: "acme", ID: "job-1", Queue: "default", Attempt: 1, Outcome: outcome, Reason: reason, Message: message,
			StartState: state, Worker: worker(),
		}
	}
	invalid := bare(wire.InvalidJob, wire.ReasonField, wire.StartNo, "limits.wall_ms: must be a whole number of milliseconds from 1 to 604800000, not 0")
	invalid.Attempt = 0
	nameless := &wire.Result{V: 1, Outcome: wire.InvalidJob, Reason: wire.ReasonSubject, StartState: wire.StartNo, Worker: worker()}
	cancelled := bare(wire.Cancelled, "", wire.StartNo, "cancelled while it was queued")
	cancelled.Attempt = 0

	return map[string]*wire.Result{
		"result_exited.json": exited, "result_signaled.json": signaled, "result_timed_out.json": timedOut,
		"result_limit.json": limit, "result_oom.json": oom, "result_cancelled.json": cancelled,
		"result_not_started.json": bare(wire.NotStarted, wire.ReasonNotFound, wire.StartNo, "no such program: pyhton"),
		"result_lost.json":        bare(wire.Lost, wire.ReasonWorkerGone, wire.StartMaybe, "the worker stopped renewing its claim"),
		"result_invalid.json":     invalid, "result_nameless.json": nameless,
		"result_expired.json": bare(wire.Expired, wire.ReasonDeadline, wire.StartNo, ""),
	}
}

func runRecords(tb testing.TB) map[string]*wire.RunRecord {
	tb.Helper()
	digest, err := wire.Digest("default", []byte(`{"v":1,"argv":["true"]}`))
	require.NoError(tb, err)
	encoded := func(r *wire.Result) wire.RawResult {
		data, err := wire.EncodeResult(r)
		require.NoError(tb, err)
		return data
	}
	record := func(state wire.RunState) *wire.RunRecord {
		return &wire.RunRecord{V: 1, State: state, Attempt: 1, Queue: "default", JobSeq: 42, Digest: digest}
	}
	claimed := record(wire.RunClaimed)
	claimed.Worker, claimed.Token, claimed.Lease = "host-1_7Q2", "c2F5", "01JZ"
	started := *claimed
	started.Started, started.Renewals = true, 3
	done := *claimed
	done.State, done.Started, done.Result = wire.RunDone, true, encoded(results()["result_signaled.json"])
	cancelled := record(wire.RunCancelled)
	cancelled.Attempt, cancelled.Result = 0, encoded(results()["result_cancelled.json"])
	return map[string]*wire.RunRecord{
		"run_claimed.json": claimed, "run_started.json": &started, "run_released.json": record(wire.RunReleased),
		"run_done.json": &done, "run_cancelled.json": cancelled,
	}
}

func quarantines() map[string]*wire.Quarantine {
	fresh := &wire.Quarantine{
		V: 1, State: wire.InQuarantine, Lease: "01JZ", Provider: "local", Host: "host-1", Worker: "host-1_7Q2",
		Tenant: "acme", Job: "job-1", Reason: wire.QuarantineUnproven, Message: "the cgroup is still populated",
		Evidence: []wire.Evidence{{Kind: "cgroup", Detail: "populated 1"}}, FirstSeen: at("2026-05-06T07:08:09.123456789Z"),
		Handle: map[string]string{"boot": "5c1f", "dir": "leases/01JZ"},
	}
	unborn := &wire.Quarantine{
		V: 1, State: wire.OnHold, Lease: "01K0", Provider: "createos", Host: "account-9",
		Reason: wire.QuarantineAmbiguousMake, FirstSeen: at("2026-05-06T07:08:09Z"),
	}
	gone := *fresh
	gone.State, gone.Attempts, gone.DestroyedAt = wire.Gone, 4, new(at("2026-05-06T08:00:00Z"))
	return map[string]*wire.Quarantine{
		"quarantine_fresh.json": fresh, "quarantine_held.json": unborn, "quarantine_destroyed.json": &gone,
	}
}

func leases() map[string]*wire.LeaseRecord {
	record := func(state wire.LeaseRecordState) *wire.LeaseRecord {
		return &wire.LeaseRecord{
			V: 1, State: state, Lease: "3q2-7w", Provider: "createos", Host: "account-9", Profile: "python",
			Worker: "host-1_7Q2", Epoch: "c2F5", Intended: at("2026-05-06T07:08:09.123456789Z"),
		}
	}
	ready := record(wire.LeaseReady)
	ready.Handle = map[string]string{"sandbox": "sbx-1", "region": "eu"}
	inUse := *ready
	inUse.State, inUse.Tenant, inUse.Job, inUse.Uses = wire.LeaseInUse, "acme", "acme.job-1", 2
	quarantined := inUse
	quarantined.State, quarantined.Message = wire.LeaseQuarantined, "the epoch of host-1_7Q2 has lapsed"
	destroyed := quarantined
	destroyed.State, destroyed.DestroyedAt = wire.LeaseDestroyed, new(at("2026-05-06T08:00:00Z"))
	destroyed.Evidence = []wire.Evidence{{Kind: "not_found", Detail: "the provider does not know it"}, {Kind: "second_look"}}
	return map[string]*wire.LeaseRecord{
		"lease_intent.json": record(wire.LeaseIntent), "lease_ready.json": ready, "lease_in_use.json": &inUse,
		"lease_quarantined.json": &quarantined, "lease_destroyed.json": &destroyed,
	}
}

func epochs() map[string]*wire.EpochRecord {
	alive := &wire.EpochRecord{
		V: 1, State: wire.EpochAlive, Worker: "host-1_7Q2", Epoch: "c2F5", Host: "host-1", Version: "0.1.0",
		Started: at("2026-05-06T07:00:00Z"), BoundMS: 30_000, Renewals: 7,
	}
	ended := *alive
	ended.State, ended.Version, ended.Renewals = wire.EpochEnded, "", 0
	return map[string]*wire.EpochRecord{"epoch_alive.json": alive, "epoch_ended.json": &ended}
}

func deadLetters() map[string]*wire.DeadLetter {
	return map[string]*wire.DeadLetter{
		"dead_letter.json": {
			V: 1, Tenant: "acme", Queue: "default", ID: "job-1", Subject: "exec.job.acme.default.job-1", Seq: 42,
			Reason: wire.ReasonNotJSON, Message: "the body is not UTF-8, which JSON must be",
			Headers: map[string][]string{"traceparent": {"00-1-2-01"}, "Exec-Reply-To": {"_INBOX.a.b"}},
			Body:    []byte{0xff, 0xff, 0xff}, Worker: "host-1_7Q2", At: at("2026-05-06T07:08:09Z"),
		},
		"dead_letter_cut.json": {
			V: 1, Subject: "exec.job.acme", Seq: 43, Reason: wire.ReasonSubject, Message: "no job subject", Body: []byte("{"), BodyCut: true,
			Worker: "host-1_7Q2", At: at("2026-05-06T07:08:09Z"),
		},
	}
}

func events() map[string]wire.Event {
	job := wire.Job{Tenant: "acme", Queue: "default", ID: "job-1"}.Key()
	return map[string]wire.Event{
		"event_accepted.txt": {Type: wire.EventAccepted, Job: job},
		"event_started.txt":  {Type: wire.EventStarted, Job: job, Attempt: 1, Seq: 1},
		"event_stdout.txt":   {Type: wire.EventStdout, Job: job, Attempt: 1, Seq: 2},
		"event_stderr.txt":   {Type: wire.EventStderr, Job: job, Attempt: 2, Seq: 18446744073709551615, Offset: 9223372036854775807},
		"event_result.txt":   {Type: wire.EventResult, Job: job, Attempt: 1, Seq: 3},
		"event_end.txt":      {Type: wire.EventEnd, Job: job, Attempt: 1},
		"event_refused.txt":  {Type: wire.EventResult},
	}
}

// messages are the encoded forms of all of them, by the name of their file.
func messages(tb testing.TB) map[string][]byte {
	tb.Helper()
	all := map[string][]byte{}
	add := func(name string, data []byte, err error) {
		require.NoError(tb, err, name)
		require.NotContains(tb, all, name)
		all[name] = data
	}
	data, err := wire.EncodeRequest(&wire.Request{V: 1, Argv: []string{"true"}})
	add("request_minimal.json", data, err)
	data, err = wire.EncodeRequest(fullRequest())
	add("request_full.json", data, err)
	for name, result := range results() {
		data, err = wire.EncodeResult(result)
		add(name, data, err)
	}
	for name, record := range runRecords(tb) {
		data, err = wire.EncodeRunRecord(record)
		add(name, data, err)
	}
	for name, record := range quarantines() {
		data, err = wire.EncodeQuarantine(record)
		add(name, data, err)
	}
	for name, record := range leases() {
		data, err = wire.EncodeLease(record)
		add(name, data, err)
	}
	for name, record := range epochs() {
		data, err = wire.EncodeEpoch(record)
		add(name, data, err)
	}
	for name, letter := range deadLetters() {
		data, err = wire.EncodeDeadLetter(letter)
		add(name, data, err)
	}
	data, err = wire.EncodeStarted(&wire.Started{Attempt: 1, Worker: "host-1_7Q2", Lease: "01JZ"})
	add("started.json", data, err)
	data, err = wire.EncodeAccepted(&wire.Accepted{Tenant: "acme", Queue: "default", ID: "job-1"})
	add("accepted.json", data, err)
	for name, event := range events() {
		add(name, []byte(headerText(event.Headers())), nil)
	}
	return all
}

// headerText is the headers as NATS writes them, with plain line ends.
func headerText(headers map[string][]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		for _, value := range headers[name] {
			lines = append(lines, name+": "+value)
		}
	}
	return strings.Join(lines, "\n")
}

func TestGoldenFiles(t *testing.T) {
	all := messages(t)
	if *update {
		require.NoError(t, os.MkdirAll(goldenDir, 0o755))
		for name, data := range all {
			require.NoError(t, os.WriteFile(filepath.Join(goldenDir, name), append(data, '\n'), 0o644))
		}
	}
	for name, data := range all {
		require.Equal(t, string(golden(t, name)), string(data), name)
	}
	files, err := os.ReadDir(goldenDir)
	require.NoError(t, err)
	for _, file := range files {
		require.Contains(t, all, file.Name(), "a golden file that nothing writes")
	}
}

func TestGoldenFilesDecodeToWhatWasEncoded(t *testing.T) {
	for name, want := range results() {
		got, err := wire.DecodeResult(golden(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for name, want := range runRecords(t) {
		got, err := wire.DecodeRunRecord(golden(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for name, want := range quarantines() {
		got, err := wire.DecodeQuarantine(golden(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for name, want := range leases() {
		got, err := wire.DecodeLease(golden(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for name, want := range epochs() {
		got, err := wire.DecodeEpoch(golden(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	for name, want := range deadLetters() {
		got, err := wire.DecodeDeadLetter(golden(t, name))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	started, err := wire.DecodeStarted(golden(t, "started.json"))
	require.NoError(t, err)
	require.Equal(t, &wire.Started{V: 1, Attempt: 1, Worker: "host-1_7Q2", Lease: "01JZ"}, started)
	accepted, err := wire.DecodeAccepted(golden(t, "accepted.json"))
	require.NoError(t, err)
	require.Equal(t, &wire.Accepted{V: 1, Tenant: "acme", Queue: "default", ID: "job-1"}, accepted)
}

func TestOtherJSONReadersReadWhatWeWrite(t *testing.T) {
	for name, data := range messages(t) {
		if filepath.Ext(name) == ".json" {
			require.True(t, json.Valid(data), name)
		}
	}
}
