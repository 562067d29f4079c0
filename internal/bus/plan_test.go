package bus_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
)

func TestPlanReportsAllMistakes(t *testing.T) {
	t.Parallel()
	_, err := bus.Plan(bus.PlanConfig{
		SubjectPrefix: "bad prefix", Queues: []bus.QueuePlan{{Name: "a b"}, {Name: "x", Concurrency: -1}, {Name: "x"}},
		FleetSlots: -1, Workers: -2, Replicas: 9, AckWait: time.Millisecond, JobsBytes: 5,
	})
	require.Error(t, err)
	for _, word := range []string{"prefix", `queue "a b"`, "concurrency -1", "named twice", "fleet_slots", "workers", "replicas", "ack_wait", "jobs_bytes"} {
		require.ErrorContains(t, err, word)
	}
	_, err = bus.Plan(bus.PlanConfig{})
	require.ErrorContains(t, err, "queues: at least one")
}

func TestPlanHoldsTheDesign(t *testing.T) {
	t.Parallel()
	plan, err := bus.Plan(bus.PlanConfig{Queues: []bus.QueuePlan{{Name: "default"}, {Name: "big", Concurrency: 100}}, FleetSlots: 500, Workers: 300, Replicas: 3})
	require.NoError(t, err)
	streams := map[string]bus.StreamPlan{}
	for _, s := range plan.Streams {
		streams[s.Config.Name] = s
		require.Equal(t, 3, s.Config.Replicas, s.Config.Name)
		require.Positive(t, s.Config.MaxBytes, s.Config.Name)
		require.Positive(t, s.Config.MaxMsgSize, s.Config.Name)
		require.Equal(t, jetstream.FileStorage, s.Config.Storage)
		require.False(t, s.Config.AllowMsgSchedules, s.Config.Name)
	}
	require.Len(t, streams, 7)

	jobs := streams["EXEC_JOBS"].Config
	require.Equal(t, jetstream.WorkQueuePolicy, jobs.Retention)
	require.Equal(t, jetstream.DiscardNew, jobs.Discard)
	require.True(t, jobs.DiscardNewPerSubject)
	require.EqualValues(t, 1, jobs.MaxMsgsPerSubject)
	require.Zero(t, jobs.MaxAge)
	require.False(t, jobs.AllowRollup || jobs.AllowMsgTTL || jobs.AllowDirect)

	out := streams["EXEC_OUT"].Config
	require.Equal(t, jetstream.DiscardOld, out.Discard)
	require.Equal(t, 24*time.Hour, out.MaxAge)
	require.True(t, out.AllowDirect)
	require.Equal(t, &jetstream.RePublish{Source: "exec.out.>", Destination: "exec.live.>"}, out.RePublish)

	for _, name := range []string{"EXEC_RUNS", "EXEC_LEDGER"} {
		c := streams[name].Config
		require.EqualValues(t, 1, c.MaxMsgsPerSubject)
		require.EqualValues(t, -1, c.MaxMsgs, name)
		require.Zero(t, c.MaxAge, name)
		require.Equal(t, jetstream.DiscardNew, c.Discard)
		require.False(t, c.DiscardNewPerSubject || c.AllowDirect, name)
		require.True(t, c.AllowMsgTTL, name)
	}
	ledger := streams["EXEC_LEDGER"].Config
	require.True(t, ledger.DenyDelete && ledger.DenyPurge && ledger.AllowAtomicPublish)
	require.Equal(t, 30*24*time.Hour, streams["EXEC_DEAD"].Config.MaxAge)
	require.Equal(t, 30*time.Second, streams["KV_EXEC_WORKERS"].Config.MaxAge)
	files := streams["OBJ_EXEC_FILES"].Config
	require.Equal(t, 7*24*time.Hour+time.Hour, files.MaxAge, "an object outlives the result that names it")
	require.Equal(t, jetstream.DiscardNew, files.Discard)
	require.True(t, files.AllowRollup && files.AllowDirect)
	require.False(t, files.DenyPurge)

	consumers := streams["EXEC_JOBS"].Consumers
	require.Len(t, consumers, 2)
	c := consumers[0]
	require.Equal(t, "w-default", c.Durable)
	require.Equal(t, "exec.job.*.default.*", c.FilterSubject)
	require.Equal(t, time.Minute, c.AckWait)
	require.Equal(t, -1, c.MaxDeliver)
	require.Empty(t, c.BackOff)
	require.Equal(t, 1<<20, c.MaxAckPending, "the whole queue")
	require.Equal(t, 1200, c.MaxWaiting)
	require.Equal(t, 256, c.MaxRequestBatch)
	require.Equal(t, 30*time.Second, c.MaxRequestExpires)
	require.Zero(t, c.InactiveThreshold)
	require.Equal(t, 1<<20, consumers[1].MaxAckPending)

	doc, err := plan.Document()
	require.NoError(t, err)
	var back bus.Layout
	require.NoError(t, json.Unmarshal(doc, &back))
	require.Equal(t, plan.Streams[0].Config.Name, back.Streams[0].Config.Name)
}

func TestApplyThenCheckIsClean(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	plan, err := bus.Plan(small())
	require.NoError(t, err)

	err = b.Check(deadline(t), plan)
	var check *bus.CheckError
	require.ErrorAs(t, err, &check)
	require.Len(t, check.Findings, 7, "all streams are missing")
	require.ErrorContains(t, err, "EXEC_RUNS: stream is missing, wanted present: run `sallyport streams apply`")

	changes, err := b.Apply(deadline(t), plan)
	require.NoError(t, err)
	require.Len(t, changes, 8)
	for _, c := range changes {
		require.Equal(t, bus.Created, c.Action, c.String())
	}
	found, err := b.Inspect(deadline(t), plan)
	require.NoError(t, err)
	require.Empty(t, found)
	require.NoError(t, b.Check(deadline(t), plan))

	changes, err = b.Apply(deadline(t), plan)
	require.NoError(t, err)
	for _, c := range changes {
		require.Equal(t, bus.Unchanged, c.Action, c.String())
	}

	// The bucket is one that nats.go opens as such.
	_, err = b.JS().KeyValue(deadline(t), b.Streams().Workers)
	require.NoError(t, err)
}

func TestApplyUpdatesWhatMayBeUpdated(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	cfg := small()
	cfg.AckWait, cfg.OutputRetention, cfg.RunsBytes = 30*time.Second, time.Hour, 64<<20
	cfg.Queues = append(cfg.Queues, bus.QueuePlan{Name: "gpu"})
	plan, err := bus.Plan(cfg)
	require.NoError(t, err)
	changes, err := b.Apply(deadline(t), plan)
	require.NoError(t, err)
	words := ""
	for _, c := range changes {
		words += c.String() + "\n"
	}
	require.Contains(t, words, "stream EXEC_OUT: updated\n  max_age: 24h0m0s → 1h0m0s")
	require.Contains(t, words, "max_bytes: 536870912 → 67108864")
	require.Contains(t, words, "consumer w-default: updated\n  ack_wait: 1m0s → 30s")
	require.Contains(t, words, "consumer w-gpu: created")
	require.Contains(t, words, "stream EXEC_LEDGER: unchanged")
	require.NoError(t, b.Check(deadline(t), plan))
}

func TestApplyNeverDeletes(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	_, err := b.JS().CreateStream(deadline(t), jetstream.StreamConfig{Name: "EXEC_JOBS", Subjects: []string{"exec.job.*.*.*"}})
	require.NoError(t, err)
	plan, err := bus.Plan(small())
	require.NoError(t, err)
	_, err = b.Apply(deadline(t), plan)
	require.ErrorContains(t, err, "stream EXEC_JOBS: retention: Limits → WorkQueue: the server cannot change this")
	info, err := b.JS().Stream(deadline(t), "EXEC_JOBS")
	require.NoError(t, err)
	require.Equal(t, jetstream.LimitsPolicy, info.CachedInfo().Config.Retention)
	_, err = b.JS().Stream(deadline(t), "EXEC_DEAD")
	require.NoError(t, err, "the others are made all the same")
}

func TestApplySaysWhyThereIsNoRoom(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.JetStreamMaxStore = 16 << 20 })
	b := connect(t, s.ClientURL(), nil)
	plan, err := bus.Plan(small())
	require.NoError(t, err)
	_, err = b.Apply(deadline(t), plan)
	require.ErrorContains(t, err, "max_file_store")
}

// TestCheckFindsEverything starts from a good plan and breaks one setting after
// the other; each must be found, by name and with both values.
func TestCheckFindsEverything(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	plan, err := bus.Plan(small())
	require.NoError(t, err)
	js, ctx := b.JS(), deadline(t)

	jobs := plan.Streams[0].Config
	jobs.Retention, jobs.Discard, jobs.DiscardNewPerSubject = jetstream.LimitsPolicy, jetstream.DiscardOld, false
	jobs.MaxAge, jobs.AllowRollup, jobs.AllowMsgSchedules, jobs.MaxMsgSize = time.Hour, true, true, 1024
	_, err = js.CreateStream(ctx, jobs)
	require.NoError(t, err)
	worker := plan.Streams[0].Consumers[0]
	worker.BackOff = []time.Duration{5 * time.Second}
	worker.AckWait, worker.MaxDeliver, worker.MaxAckPending, worker.MaxWaiting = 5*time.Second, 3, 2, 8
	worker.InactiveThreshold, worker.MaxRequestExpires, worker.MemoryStorage = time.Minute, time.Second, true
	_, err = js.CreateConsumer(ctx, jobs.Name, worker)
	require.NoError(t, err)
	_, err = js.CreateConsumer(ctx, jobs.Name, jetstream.ConsumerConfig{Durable: "thief", FilterSubject: "exec.job.acme.>", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)

	out := plan.Streams[1].Config
	out.AllowDirect, out.RePublish, out.MaxAge, out.MaxBytes = false, nil, 0, -1
	_, err = js.CreateStream(ctx, out)
	require.NoError(t, err)
	runs := plan.Streams[2].Config
	runs.AllowMsgTTL, runs.AllowDirect, runs.MaxMsgs, runs.DiscardNewPerSubject = false, true, 10, true
	_, err = js.CreateStream(ctx, runs)
	require.NoError(t, err)
	ledger := plan.Streams[3].Config
	ledger.DenyDelete, ledger.DenyPurge, ledger.AllowAtomicPublish, ledger.MaxMsgsPerSubject = false, false, false, 5
	ledger.Storage = jetstream.MemoryStorage
	ledger.MaxBytes = 1 << 20
	_, err = js.CreateStream(ctx, ledger)
	require.NoError(t, err)

	err = b.Check(ctx, plan)
	var check *bus.CheckError
	require.ErrorAs(t, err, &check)
	for _, words := range []string{
		"EXEC_JOBS: retention is Limits, wanted WorkQueue: the server cannot change this",
		"EXEC_JOBS: discard is DiscardOld, wanted DiscardNew: run `sallyport streams apply`",
		"EXEC_JOBS: discard_new_per_subject is false, wanted true",
		"EXEC_JOBS: max_age is 1h0m0s, wanted unlimited",
		"EXEC_JOBS: allow_rollup_hdrs is true, wanted false",
		"EXEC_JOBS: allow_msg_schedules is true, wanted false",
		"EXEC_JOBS: max_msg_size is 1024, wanted 8388608",
		"consumer w-default: ack_wait is 5s, wanted 1m0s",
		"consumer w-default: backoff is 5s, wanted none",
		"consumer w-default: max_deliver is 3, wanted unlimited",
		"consumer w-default: max_ack_pending is 2, wanted 1048576",
		"consumer w-default: max_waiting is 8, wanted 512: the server cannot change this",
		"consumer w-default: inactive_threshold is 1m0s, wanted unlimited",
		"consumer w-default: max_expires is 1s, wanted 30s",
		"consumer w-default: mem_storage is true, wanted false",
		"consumer thief: filter_subject is exec.job.acme.>, wanted nothing that overlaps with exec.job.*.default.* (w-default)",
		"EXEC_OUT: allow_direct is false, wanted true",
		"EXEC_OUT: republish is none, wanted exec.out.> → exec.live.>",
		"EXEC_OUT: max_age is unlimited, wanted 24h0m0s",
		"EXEC_OUT: max_bytes is unlimited",
		"EXEC_RUNS: allow_msg_ttl is false, wanted true",
		"EXEC_RUNS: allow_direct is true, wanted false",
		"EXEC_RUNS: max_msgs is 10, wanted unlimited",
		"EXEC_RUNS: discard_new_per_subject is true, wanted false",
		"EXEC_LEDGER: deny_delete is false, wanted true",
		"EXEC_LEDGER: deny_purge is false, wanted true",
		"EXEC_LEDGER: allow_atomic is false, wanted true",
		"EXEC_LEDGER: max_msgs_per_subject is 5, wanted 1",
		"EXEC_LEDGER: storage is Memory, wanted File: the server cannot change this",
		"warning: stream EXEC_LEDGER: max_bytes is 1048576",
		"stream EXEC_DEAD: stream is missing",
		"stream KV_EXEC_WORKERS: stream is missing",
	} {
		require.ErrorContains(t, err, words)
	}
}

func TestCheckWarnings(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	cfg := small()
	cfg.Replicas = 3
	plan, err := bus.Plan(cfg)
	require.NoError(t, err)
	require.NoError(t, b.Check(deadline(t), plan), "fewer replicas than planned are no reason to refuse")
	found, err := b.Inspect(deadline(t), plan)
	require.NoError(t, err)
	require.Len(t, found, 7)
	for _, f := range found {
		require.True(t, f.Warning, f.String())
		require.Equal(t, "num_replicas", f.Field)
	}
}

func TestCheckNamesQueuesWithoutConsumer(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	plan, err := bus.Plan(small())
	require.NoError(t, err)
	require.NoError(t, b.Enqueue(deadline(t), job("acme", "forgotten", "j1"), []byte("{}"), nil))
	require.NoError(t, b.Enqueue(deadline(t), job("acme", "default", "j2"), []byte("{}"), nil))
	found, err := b.Inspect(deadline(t), plan)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "at least 1 in queue forgotten without a consumer", found[0].Found)
	require.True(t, found[0].Warning)
}

func TestCheckMissingConsumer(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	cfg := small()
	cfg.Queues = append(cfg.Queues, bus.QueuePlan{Name: "gpu"})
	plan, err := bus.Plan(cfg)
	require.NoError(t, err)
	err = b.Check(deadline(t), plan)
	var check *bus.CheckError
	require.True(t, errors.As(err, &check))
	require.Len(t, check.Findings, 1)
	require.ErrorContains(t, err, "stream EXEC_JOBS, consumer w-gpu: consumer is missing, wanted filter exec.job.*.gpu.*: run `sallyport streams apply`")
}

func TestApplySaysWhoIsInTheWay(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	ctx := deadline(t)
	_, err := b.JS().CreateStream(ctx, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"exec.run.>"}})
	require.NoError(t, err)
	plan, err := bus.Plan(small())
	require.NoError(t, err)
	_, err = b.JS().CreateStream(ctx, plan.Streams[0].Config)
	require.NoError(t, err)
	_, err = b.JS().CreateConsumer(ctx, "EXEC_JOBS", jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	_, err = b.Apply(ctx, plan)
	require.ErrorContains(t, err, "stream EXEC_RUNS: ")
	require.ErrorContains(t, err, "another stream takes these subjects")
	require.ErrorContains(t, err, "stream EXEC_JOBS, consumer w-default: ")
	require.ErrorContains(t, err, "another consumer takes this queue's messages")
	err = b.Check(ctx, plan)
	require.ErrorContains(t, err, "consumer w-default: consumer is missing")
	require.ErrorContains(t, err, "consumer all: filter_subject is all subjects, wanted nothing that overlaps")
}

// TestCheckWithoutPermission: the server says nothing to a user who may not ask;
// the check says which permission that was, and looks at the rest.
func TestCheckWithoutPermission(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "p"},
			{Username: "w", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{
				Deny: []string{"$JS.API.INFO", "$JS.API.STREAM.INFO.EXEC_RUNS", "$JS.API.CONSUMER.LIST.>"},
			}}},
		}
	})
	admin := connect(t, s.ClientURL(), func(o *bus.Options) { o.NATS = []nats.Option{nats.UserInfo("admin", "p")} })
	plan := apply(t, admin, small())
	b := connect(t, s.ClientURL(), func(o *bus.Options) {
		o.NATS, o.RequestTimeout = []nats.Option{nats.UserInfo("w", "p")}, 500*time.Millisecond
	})
	found, err := b.Inspect(deadline(t), plan)
	require.ErrorContains(t, err, "look at stream EXEC_RUNS")
	require.ErrorContains(t, err, "may publish to $JS.API.STREAM.INFO.EXEC_RUNS")
	require.Len(t, found, 1)
	require.True(t, found[0].Warning)
	require.Contains(t, found[0].Remedy, "allow $JS.API.CONSUMER.LIST.EXEC_JOBS")
	require.Error(t, b.Check(deadline(t), plan), "what cannot be looked at is not good")
	require.Error(t, b.Pressure(deadline(t)))
}

// TestApplyKeepsABiggerStream: bytes that an operator added are not taken away.
func TestApplyKeepsABiggerStream(t *testing.T) {
	s := startServer(t, nil)
	b := connect(t, s.ClientURL(), nil)
	plan, err := bus.Plan(small())
	require.NoError(t, err)
	_, err = b.Apply(deadline(t), plan)
	require.NoError(t, err)
	js := b.JS()
	stream, err := js.Stream(deadline(t), "EXEC_RUNS")
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	bigger := 2 * cfg.MaxBytes
	cfg.MaxBytes, cfg.Discard = bigger, jetstream.DiscardOld // and something that Apply must repair
	_, err = js.UpdateStream(deadline(t), cfg)
	require.NoError(t, err)
	_, err = b.Apply(deadline(t), plan)
	require.NoError(t, err)
	stream, err = js.Stream(deadline(t), "EXEC_RUNS")
	require.NoError(t, err)
	require.Equal(t, bigger, stream.CachedInfo().Config.MaxBytes)
	require.Equal(t, jetstream.DiscardNew, stream.CachedInfo().Config.Discard)
}
