package consumer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/consumer"
	"github.com/sallyport/sallyport/internal/wire"
)

func record(state wire.RunState, jobSeq uint64, digest string, attempt int) *bus.Stored {
	return &bus.Stored{Seq: 77, Record: wire.RunRecord{State: state, JobSeq: jobSeq, Digest: digest, Attempt: attempt}}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	fresh, stale, silent := consumer.NewSight(time.Second, false), consumer.NewSight(2*time.Minute, false), consumer.NewSight(2*time.Minute, true)
	type change = func(*consumer.Facts)
	invalid := func(r wire.Reason) change { return func(f *consumer.Facts) { f.SetInvalid(r) } }
	late := func(f *consumer.Facts) { f.SetLate() }
	aged := func(f *consumer.Facts) { f.SetAged() }
	retry := func(n int) change { return func(f *consumer.Facts) { f.SetRetry(n) } }
	both := func(a, b change) change { return func(f *consumer.Facts) { a(f); b(f) } }
	started := record(wire.RunClaimed, 10, "d", 1)
	started.Record.Started = true
	// The delivery is always sequence 10 with digest d.
	for name, c := range map[string]struct {
		change  change
		stored  *bus.Stored
		owner   consumer.Sight
		step    any
		attempt int
		base    uint64
		outcome wire.Outcome
		reason  wire.Reason
		start   wire.StartState
	}{
		"new":                     {nil, nil, fresh, consumer.StepRun, 1, 0, "", "", wire.StartNo},
		"new, invalid":            {invalid(wire.ReasonField), nil, fresh, consumer.StepEnd, 1, 0, wire.InvalidJob, wire.ReasonField, wire.StartNo},
		"new, future":             {invalid(wire.ReasonVersion), nil, fresh, consumer.StepLeave, 0, 0, "", "", ""},
		"old, future":             {both(invalid(wire.ReasonVersion), aged), nil, fresh, consumer.StepEnd, 1, 0, wire.Expired, wire.ReasonQueueAge, wire.StartNo},
		"old":                     {aged, nil, fresh, consumer.StepEnd, 1, 0, wire.Expired, wire.ReasonQueueAge, wire.StartNo},
		"late":                    {late, nil, fresh, consumer.StepEnd, 1, 0, wire.Expired, wire.ReasonDeadline, wire.StartNo},
		"released":                {nil, record(wire.RunReleased, 10, "d", 2), fresh, consumer.StepRun, 2, 77, "", "", wire.StartNo},
		"released, old":           {aged, record(wire.RunReleased, 10, "d", 2), fresh, consumer.StepRun, 2, 77, "", "", wire.StartNo},
		"released, late":          {late, record(wire.RunReleased, 10, "d", 1), fresh, consumer.StepEnd, 1, 77, wire.Expired, wire.ReasonDeadline, wire.StartNo},
		"released again, late":    {late, record(wire.RunReleased, 10, "d", 2), fresh, consumer.StepEnd, 2, 77, wire.Lost, wire.ReasonShutdown, wire.StartMaybe},
		"redriven":                {nil, record(wire.RunReleased, 9, "d", 2), fresh, consumer.StepRun, 2, 77, "", "", wire.StartNo},
		"redriven, still invalid": {invalid(wire.ReasonProfile), record(wire.RunReleased, 9, "d", 2), fresh, consumer.StepEnd, 2, 77, wire.InvalidJob, wire.ReasonProfile, wire.StartNo},
		"released, another":       {nil, record(wire.RunReleased, 9, "x", 2), fresh, consumer.StepRefuse, 0, 0, "", "", ""},
		"running":                 {nil, record(wire.RunClaimed, 10, "d", 1), fresh, consumer.StepWait, 0, 0, "", "", ""},
		"running, invalid here":   {invalid(wire.ReasonProfile), record(wire.RunClaimed, 10, "d", 1), fresh, consumer.StepWait, 0, 0, "", "", ""},
		"stale":                   {nil, record(wire.RunClaimed, 10, "d", 1), stale, consumer.StepProbe, 0, 0, "", "", ""},
		"gone":                    {nil, record(wire.RunClaimed, 10, "d", 1), silent, consumer.StepEnd, 1, 77, wire.Lost, wire.ReasonWorkerGone, wire.StartMaybe},
		"gone, started":           {nil, started, silent, consumer.StepEnd, 1, 77, wire.Lost, wire.ReasonWorkerGone, wire.StartYes},
		"gone, retry":             {retry(2), record(wire.RunClaimed, 10, "d", 1), silent, consumer.StepRun, 2, 77, "", "", ""},
		"gone, used up":           {retry(2), record(wire.RunClaimed, 10, "d", 2), silent, consumer.StepEnd, 2, 77, wire.Lost, wire.ReasonWorkerGone, wire.StartMaybe},
		"gone, retry, late":       {both(retry(2), late), record(wire.RunClaimed, 10, "d", 1), silent, consumer.StepEnd, 1, 77, wire.Lost, wire.ReasonWorkerGone, wire.StartMaybe},
		"gone, another":           {retry(2), record(wire.RunClaimed, 9, "x", 1), silent, consumer.StepClose, 1, 77, wire.Lost, wire.ReasonWorkerGone, wire.StartMaybe},
		"gone, twin":              {nil, record(wire.RunClaimed, 9, "d", 1), silent, consumer.StepClose, 1, 77, wire.Lost, wire.ReasonWorkerGone, wire.StartMaybe},
		"done":                    {nil, record(wire.RunDone, 10, "d", 1), fresh, consumer.StepRepeat, 0, 0, "", "", ""},
		"done, twin":              {nil, record(wire.RunDone, 9, "d", 1), fresh, consumer.StepRepeat, 0, 0, "", "", ""},
		"done, another":           {nil, record(wire.RunDone, 9, "x", 1), fresh, consumer.StepRefuse, 0, 0, "", "", ""},
		"done, invalid":           {invalid(wire.ReasonField), record(wire.RunDone, 9, "x", 1), fresh, consumer.StepRefuse, 0, 0, "", "", ""},
		"cancelled":               {nil, record(wire.RunCancelled, 10, "d", 0), fresh, consumer.StepRepeat, 0, 0, "", "", ""},
		"unknown state":           {nil, record("paused", 10, "d", 1), fresh, consumer.StepLeave, 0, 0, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := consumer.Decide(consumer.NewFacts(10, "d", c.change), c.stored, c.owner)
			require.Equal(t, c.step, d.Step())
			require.Equal(t, c.attempt, d.Attempt())
			require.Equal(t, c.base, d.Base())
			outcome, reason, start := d.Final()
			require.Equal(t, []any{c.outcome, c.reason, c.start}, []any{outcome, reason, start})
			if outcome != "" {
				_, err := wire.EncodeResult(&wire.Result{Tenant: "t", ID: "i", Outcome: outcome, Reason: reason, StartState: start})
				require.NoError(t, err, "a decision that is no valid result")
			}
		})
	}
}

// TestDecideNeverRunsWhatMayRun holds the promise behind all the rules, for any
// record.
func TestDecideNeverRunsWhatMayRun(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := consumer.NewFacts(10, "d", func(f *consumer.Facts) {
			if rapid.Bool().Draw(t, "late") {
				f.SetLate()
			}
			if rapid.Bool().Draw(t, "aged") {
				f.SetAged()
			}
			if rapid.Bool().Draw(t, "retry") {
				f.SetRetry(rapid.IntRange(1, 3).Draw(t, "attempts"))
			}
		})
		state := rapid.SampledFrom([]wire.RunState{wire.RunClaimed, wire.RunReleased, wire.RunDone, wire.RunCancelled}).Draw(t, "state")
		stored := record(state, rapid.SampledFrom([]uint64{9, 10}).Draw(t, "seq"), rapid.SampledFrom([]string{"d", "x"}).Draw(t, "digest"), rapid.IntRange(1, 3).Draw(t, "attempt"))
		age := time.Duration(rapid.IntRange(0, 120).Draw(t, "age")) * time.Second
		silent := rapid.Bool().Draw(t, "silent")
		d := consumer.Decide(f, stored, consumer.NewSight(age, silent))
		if d.Step() != consumer.StepRun {
			return
		}
		switch state {
		case wire.RunReleased:
		case wire.RunClaimed:
			if age <= time.Minute || !silent || d.Attempt() <= stored.Record.Attempt {
				t.Fatalf("runs attempt %d beside a claim of attempt %d, %s old", d.Attempt(), stored.Record.Attempt, age)
			}
		case wire.RunDone, wire.RunCancelled:
			t.Fatalf("runs a job that has its final")
		}
		if d.Base() != stored.Seq {
			t.Fatalf("does not replace the record that it saw")
		}
	})
}

func TestLapsed(t *testing.T) {
	t.Parallel()
	const limit = 45 * time.Second
	require.Equal(t, consumer.LapseNot, consumer.Lapsed(limit-1, limit-1, limit))
	require.Equal(t, consumer.LapseSure, consumer.Lapsed(limit, limit, limit))
	require.Equal(t, consumer.LapseSure, consumer.Lapsed(limit, 0, limit), "the wall clock was set back")
	require.Equal(t, consumer.LapseMaybe, consumer.Lapsed(time.Second, time.Hour, limit), "the machine slept")
	require.Equal(t, consumer.LapseNot, consumer.Lapsed(time.Second, -time.Hour, limit))
}

func TestJoinRanges(t *testing.T) {
	t.Parallel()
	require.Equal(t, []wire.LostRange{{From: 1, To: 6}, {From: 9, To: 9}}, consumer.JoinRanges([]wire.LostRange{{From: 9, To: 9}, {From: 4, To: 6}, {From: 1, To: 3}, {From: 2, To: 2}}))
	var many []wire.LostRange
	for i := range uint64(3000) {
		many = append(many, wire.LostRange{From: 2*i + 1, To: 2*i + 1})
	}
	joined := consumer.JoinRanges(many)
	require.Len(t, joined, 1024)
	require.Equal(t, uint64(5999), joined[1023].To)
}
