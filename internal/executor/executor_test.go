package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/executor"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is an executor over a real pool and the fake provider, in virtual time.
type bench struct {
	t        *testing.T
	provider *fake.Provider
	pool     *leasepool.Pool
	x        *executor.Executor

	mu      sync.Mutex
	records []leasepool.Record
	hold    chan struct{} // a quarantine record is not durable before it is closed
}

func (b *bench) Quarantine(ctx context.Context, r leasepool.Record) error {
	select {
	case <-b.hold:
	case <-ctx.Done():
		return ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	return nil
}

func (b *bench) quarantined() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.records)
}

// inBubble runs a story with a fresh bench.
func inBubble(t *testing.T, cfg fake.Config, story func(t *testing.T, b *bench)) {
	t.Helper()
	inBubbleWith(t, cfg, nil, story)
}

// inBubbleWith is inBubble with an object store.
func inBubbleWith(t *testing.T, cfg fake.Config, objects run.Objects, story func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, hold: make(chan struct{}), provider: fake.New(fake.NewWorld(), cfg)}
		close(b.hold)
		var err error
		b.pool, err = leasepool.New(b, zerolog.Nop(), leasepool.Config{
			Capacity: 4, AcquireTimeout: 5 * time.Second, ShutdownTimeout: 5 * time.Second,
			Profiles: []leasepool.Profile{{Name: "default", Provider: b.provider, ReuseTenant: true}, {Name: "single", Provider: b.provider}},
		})
		require.NoError(t, err)
		profile := func(name string, reuse wire.Reuse) executor.Profile {
			return executor.Profile{
				Profile: wire.Profile{
					Name: name, Provider: "fake", Reuse: reuse,
					Default: wire.Limits{WallMS: new(int64(10_000)), GraceMS: new(int64(1000)), OutputBytes: new(int64(1 << 20))},
					Max:     wire.Limits{WallMS: new(int64(60_000)), GraceMS: new(int64(10_000)), OutputBytes: new(int64(1 << 30)), MemoryBytes: new(int64(1 << 30)), CPUMS: new(int64(60_000))},
				},
				Capabilities: b.provider.Capabilities(),
			}
		}
		b.x, err = executor.New(b.pool, zerolog.Nop(), executor.Config{
			Profiles: map[string]executor.Profile{"default": profile("default", wire.ReuseTenant), "single": profile("single", wire.ReuseNever)},
			Worker:   wire.WorkerRef{ID: "w", Version: "test"},
			Objects:  objects,
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.pool.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Log("pool:", err) // it names what the story left in doubt
			}
			require.NoError(t, b.provider.Close())
		}()
		synctest.Wait()
		story(t, b)
	})
}

// handled is one attempt and all that came of it.
type handled struct {
	run.Outcome
	events []wire.Event
	gate   *gate
}

func (h *handled) data(typ wire.EventType) string {
	var s strings.Builder
	for _, ev := range h.events {
		if ev.Type == typ {
			s.Write(ev.Data)
		}
	}
	return s.String()
}

type gate struct {
	err     error
	delay   time.Duration
	claimed string
	started bool
}

func (g *gate) Claim(ctx context.Context, lease string) error {
	select {
	case <-time.After(g.delay):
	case <-ctx.Done():
		return ctx.Err()
	}
	g.claimed = lease
	return g.err
}

func (g *gate) Started() { g.started = true }

type output struct {
	mu     sync.Mutex
	events []wire.Event
	fail   func(wire.Event) error
	stall  func(wire.Event) bool // for as long as the caller waits
	chunk  int
}

func (o *output) Emit(ctx context.Context, ev wire.Event) error {
	if o.stall != nil && o.stall(ev) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		if err := o.fail(ev); err != nil {
			return err
		}
	}
	ev.Data = append([]byte(nil), ev.Data...)
	o.events = append(o.events, ev)
	return nil
}

func (o *output) MaxChunk() int {
	if o.chunk > 0 {
		return o.chunk
	}
	return 64 << 10
}

type attempt struct {
	request wire.Request
	ctx     context.Context //nolint:containedctx // a test's table
	hurry   <-chan struct{}
	gate    *gate
	out     *output
}

func (b *bench) handle(a attempt) *handled {
	b.t.Helper()
	if a.ctx == nil {
		a.ctx = b.t.Context()
	}
	if a.gate == nil {
		a.gate = &gate{}
	}
	if a.out == nil {
		a.out = &output{}
	}
	a.request.V = wire.Version
	outcome := b.x.Handle(a.ctx, run.Attempt{
		Job: wire.Job{Tenant: "t", Queue: "q", ID: "j"}, Request: &a.request, Number: 1, Mode: a.request.Mode(true), Hurry: a.hurry,
	}, a.gate, a.out)
	a.out.mu.Lock()
	defer a.out.mu.Unlock()
	return &handled{Outcome: outcome, events: a.out.events, gate: a.gate}
}

func script(steps ...string) attempt {
	return attempt{request: wire.Request{Argv: append([]string{"fake"}, steps...)}}
}

func TestAProgramThatEndsByItself(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		h := b.handle(script("print:hello", "err:oops", "exit:3"))
		r := h.Result
		require.Equal(t, wire.Exited, r.Outcome)
		require.Equal(t, 3, *r.ExitCode)
		require.Nil(t, r.Signal)
		require.Equal(t, wire.StartYes, r.StartState)
		require.Equal(t, wire.Proven, r.Containment.Verdict)
		require.NotEmpty(t, r.Containment.Evidence)
		require.Equal(t, wire.Reusable, r.Lease.Disposition)
		require.Equal(t, h.gate.claimed, r.Lease.ID, "the claim names the lease that ran the job")
		require.True(t, h.gate.started)
		require.Equal(t, wire.EventStarted, h.events[0].Type)
		require.Equal(t, "hello\n", h.data(wire.EventStdout))
		require.Equal(t, "oops\n", h.data(wire.EventStderr))
		for i, ev := range h.events {
			require.Equal(t, uint64(i+1), ev.Seq)
		}
		require.Equal(t, uint64(len(h.events)), r.Output.LastSeq)
		require.Equal(t, int64(6), r.Output.StdoutBytes)

		again := b.handle(script("ls"))
		require.Equal(t, r.Lease.ID, again.Result.Lease.ID, "the same tenant's next job uses the lease again")
		require.Equal(t, 2, again.Result.Lease.Use)
	})
}

func TestOutcomes(t *testing.T) {
	limits := wire.Limits{WallMS: new(int64(1000)), GraceMS: new(int64(500))}
	for name, c := range map[string]struct {
		steps   []string
		limits  wire.Limits
		outcome wire.Outcome
		reason  wire.Reason
		code    *int
		signal  int
	}{
		"signal":                  {steps: []string{"signal:9"}, outcome: wire.Signaled, signal: 9},
		"exit 137 is an exit":     {steps: []string{"exit:137"}, outcome: wire.Exited, code: new(137)},
		"time out":                {steps: []string{"forever"}, limits: limits, outcome: wire.TimedOut, signal: 15},
		"time out, deaf":          {steps: []string{"ignore-term", "forever"}, limits: limits, outcome: wire.TimedOut, signal: 9},
		"clean exit in the grace": {steps: []string{"term-exit:0:100ms", "forever"}, limits: limits, outcome: wire.TimedOut, code: new(0)},
		"leftover":                {steps: []string{"leftover", "exit:0"}, outcome: wire.Exited, code: new(0)},
		"memory":                  {steps: []string{"oom"}, outcome: wire.OOM},
		"cpu":                     {steps: []string{"cpu:5s"}, limits: wire.Limits{CPUMS: new(int64(1000))}, outcome: wire.Limit, reason: wire.ReasonCPU},
		"output":                  {steps: []string{"write:2KiB", "forever"}, limits: wire.Limits{OutputBytes: new(int64(1 << 10)), GraceMS: new(int64(100))}, outcome: wire.Limit, reason: wire.ReasonOutput},
		"output, ended meanwhile": {steps: []string{"write:2KiB", "exit:0"}, limits: wire.Limits{OutputBytes: new(int64(1 << 10))}, outcome: wire.Limit, reason: wire.ReasonOutput},
		"output, exact fit":       {steps: []string{"write:1KiB", "exit:0"}, limits: wire.Limits{OutputBytes: new(int64(1 << 10))}, outcome: wire.Exited, code: new(0)},
		"not found":               {steps: []string{"start:not_found"}, outcome: wire.NotStarted, reason: wire.ReasonNotFound, code: new(127)},
		"not executable":          {steps: []string{"start:not_executable"}, outcome: wire.NotStarted, reason: wire.ReasonNotExecutable, code: new(126)},
		"bad directory":           {steps: []string{"start:bad_cwd"}, outcome: wire.NotStarted, reason: wire.ReasonBadCwd},
		"the sandbox vanishes":    {steps: []string{"die"}, outcome: wire.Lost, reason: wire.ReasonSandboxGone},
		"refused by the provider": {steps: []string{"prepare:refuse"}, outcome: wire.NotStarted, reason: wire.ReasonStart},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
				a := script(c.steps...)
				a.request.Limits = c.limits
				h := b.handle(a)
				require.False(t, h.Abandoned, "%v", h.Err)
				r := h.Result
				require.Equal(t, c.outcome, r.Outcome, "%+v", r)
				require.Equal(t, c.reason, r.Reason)
				if c.code != nil {
					require.Equal(t, c.code, r.ExitCode)
					require.Nil(t, r.Signal)
				}
				if c.signal != 0 {
					require.Equal(t, c.signal, r.Signal.Number)
					require.Nil(t, r.ExitCode)
				}
				if c.outcome == wire.Limit && c.reason == wire.ReasonOutput {
					require.Equal(t, int64(1<<10), r.Output.StdoutBytes)
					require.True(t, r.Output.Truncated)
				} else {
					require.False(t, r.Output.Truncated)
				}
				require.Zero(t, b.quarantined())
			})
		})
	}
}

func TestCauses(t *testing.T) {
	for name, c := range map[string]struct {
		cause   error
		outcome wire.Outcome
		reason  wire.Reason
	}{
		"cancel":   {run.ErrCancelled, wire.Cancelled, ""},
		"shutdown": {run.ErrShutdown, wire.Lost, wire.ReasonShutdown},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second, func() { cancel(c.cause) })
				a := script("print:before", "ignore-term", "forever")
				a.ctx = ctx
				began := time.Now()
				h := b.handle(a)
				require.Equal(t, c.outcome, h.Result.Outcome)
				require.Equal(t, c.reason, h.Result.Reason)
				require.Equal(t, 9, h.Result.Signal.Number)
				require.Equal(t, "before\n", h.data(wire.EventStdout))
				require.Less(t, time.Since(began), 3*time.Second, "one second, the grace, and no more")
			})
		})
	}
	t.Run("the first reason stays", func(t *testing.T) {
		inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(1200*time.Millisecond, func() { cancel(run.ErrCancelled) })
			a := script("ignore-term", "forever")
			a.ctx, a.request.Limits = ctx, wire.Limits{WallMS: new(int64(1000)), GraceMS: new(int64(500))}
			require.Equal(t, wire.TimedOut, b.handle(a).Result.Outcome)
		})
	})
	t.Run("cancelled before the start", func(t *testing.T) {
		inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
			ctx, cancel := context.WithCancelCause(t.Context())
			a := script("delay:prepare:1s", "print:never")
			a.ctx, a.gate = ctx, &gate{delay: time.Second}
			time.AfterFunc(500*time.Millisecond, func() { cancel(run.ErrCancelled) })
			h := b.handle(a)
			require.Empty(t, h.data(wire.EventStdout))
			require.False(t, h.gate.started)
			if !h.Abandoned {
				require.Equal(t, wire.StartNo, h.Result.StartState)
			}
		})
	})
}

// A job that this worker may not start leaves nothing, and decides nothing.
func TestARefusedClaimStartsNothing(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script("print:never")
		a.gate = &gate{err: errors.New("another worker was first")}
		h := b.handle(a)
		require.True(t, h.Abandoned)
		require.ErrorContains(t, h.Err, "another worker")
		require.Empty(t, h.events)
		require.False(t, h.gate.started)
		require.Zero(t, b.quarantined())
		next := b.handle(script("print:ok"))
		require.Equal(t, "ok\n", next.data(wire.EventStdout))
	})
}

// Doubt about the end, or about the start, is quarantine, in bounded time, and
// the message must wait for the record.
func TestDoubtQuarantinesTheLease(t *testing.T) {
	for name, c := range map[string]struct {
		steps   []string
		outcome wire.Outcome
		start   wire.StartState
		reason  leasepool.QuarantineReason
	}{
		"never proven":        {[]string{"print:hi", "wait:never", "exit:0"}, wire.Exited, wire.StartYes, leasepool.QuarantineUnproven},
		"unproven after kill": {[]string{"terminate:unproven", "forever"}, wire.TimedOut, wire.StartYes, leasepool.QuarantineUnproven},
		"gone without proof":  {[]string{"die:unproven"}, wire.Lost, wire.StartYes, leasepool.QuarantineUnproven},
		"ambiguous start":     {[]string{"open:ambiguous", "print:hi"}, wire.Lost, wire.StartMaybe, leasepool.QuarantineAmbiguousStart},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
				b.hold = make(chan struct{})
				a := script(c.steps...)
				a.request.Limits = wire.Limits{WallMS: new(int64(2000)), GraceMS: new(int64(500))}
				began := time.Now()
				h := b.handle(a)
				require.Less(t, time.Since(began), 12*time.Second)
				require.Equal(t, c.outcome, h.Result.Outcome, "%+v", h.Result)
				require.Equal(t, c.start, h.Result.StartState)
				require.Equal(t, wire.Quarantined, h.Result.Lease.Disposition)
				if c.reason == leasepool.QuarantineUnproven {
					require.Equal(t, wire.Unproven, h.Result.Containment.Verdict)
				}
				select {
				case <-h.Settled:
					require.Fail(t, "settled before the record was durable")
				default:
				}
				close(b.hold)
				<-h.Settled
				require.Equal(t, 1, b.quarantined())
				require.Equal(t, c.reason, b.records[0].Reason)
				require.Equal(t, "j", b.records[0].Job)
				next := b.handle(script("print:ok"))
				require.NotEqual(t, h.Result.Lease.ID, next.Result.Lease.ID)
			})
		})
	}
}

func TestWhatIsRefusedBeforeTheStart(t *testing.T) {
	inBubble(t, fake.Config{Unenforced: map[string]string{"memory_bytes": "no control group here"}}, func(t *testing.T, b *bench) {
		a := script("print:x")
		a.request.Limits.MemoryBytes = new(int64(64 << 20))
		r := b.handle(a).Result
		require.Equal(t, wire.NotStarted, r.Outcome)
		require.Equal(t, wire.ReasonUnenforceable, r.Reason)
		require.Contains(t, r.Message, "limits.memory_bytes")
		require.Contains(t, r.Message, "no control group here")

		for field, change := range map[string]func(*wire.Request){
			"limits.wall_ms":  func(r *wire.Request) { r.Limits.WallMS = new(int64(3_600_000)) },
			"profile":         func(r *wire.Request) { r.Profile = "nosuch" },
			"files[1].object": func(r *wire.Request) { r.Files = []wire.File{{Path: "a", Text: new("")}, {Path: "b", Object: "o"}} },
			"priority":        func(r *wire.Request) { r.Priority = new(1) },
			"not_before":      func(r *wire.Request) { r.NotBefore = new(time.Now()) },
			"lease.reuse":     func(r *wire.Request) { r.Profile, r.Lease.Reuse = "single", wire.ReuseTenant },
		} {
			a := script("print:x")
			change(&a.request)
			bad := b.x.Check(&a.request)
			require.NotNil(t, bad, field)
			require.Equal(t, field, bad.Field)
			h := b.handle(a)
			require.Equal(t, wire.InvalidJob, h.Result.Outcome)
			require.Empty(t, h.gate.claimed)
		}
		require.Nil(t, b.x.Check(&wire.Request{V: 1, Argv: []string{"fake"}}))
	})
}

func TestOutputIsDeclaredLostWhereItDidNotGoOut(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script("print:one", "sleep:100ms", "print:two", "sleep:100ms", "print:three")
		a.out = &output{fail: func(ev wire.Event) error {
			if ev.Seq == 3 {
				return errors.New("no connection")
			}
			return nil
		}}
		h := b.handle(a)
		require.Equal(t, []wire.LostRange{{From: 3, To: 3}}, h.Result.Output.LostRanges)
		require.True(t, h.Result.Output.Truncated)
		require.Equal(t, int64(14), h.Result.Output.StdoutProduced)
		require.Equal(t, int64(10), h.Result.Output.StdoutBytes)
		require.Equal(t, "one\nthree\n", h.data(wire.EventStdout))
	})
}

func TestOutputIsCutIntoEventsThatTheServerTakes(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script("write:1000")
		a.out = &output{chunk: 300}
		h := b.handle(a)
		offset := int64(0)
		for _, ev := range h.events[1:] {
			require.LessOrEqual(t, len(ev.Data), 300)
			require.Equal(t, offset, ev.Offset)
			offset += int64(len(ev.Data))
		}
		require.Equal(t, int64(1000), offset)
	})
}

func TestInlineOutput(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script("print:out", "err:err")
		a.request.Output = wire.OutputInline
		h := b.handle(a)
		require.Len(t, h.events, 1, "only the started event")
		require.Equal(t, "out\n", h.Result.Stdout.Data)
		require.Equal(t, "err\n", h.Result.Stderr.Data)
		require.False(t, h.Result.Output.Truncated)

		a = script("write:600KiB")
		a.request.Output = wire.OutputInline
		h = b.handle(a)
		require.Equal(t, wire.Exited, h.Result.Outcome)
		require.Equal(t, int64(wire.MaxInlineBytes), h.Result.Output.StdoutBytes)
		require.Equal(t, int64(600<<10), h.Result.Output.StdoutProduced)
		require.True(t, h.Result.Output.Truncated)
	})
}

// A broker that takes nothing any more holds the process back, and not the
// verdict: the run ends at its limit, its lease is proven, the hole is declared.
func TestOutputThatNobodyTakesDoesNotHoldTheVerdictUp(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script("write:64KiB", "write:64KiB", "exit:0")
		a.request.Limits = wire.Limits{WallMS: new(int64(3000)), GraceMS: new(int64(500))}
		stuck := &stuckOutput{}
		began := time.Now()
		outcome := b.x.Handle(t.Context(), run.Attempt{
			Job: wire.Job{Tenant: "t", Queue: "q", ID: "j"}, Request: &wire.Request{V: 1, Argv: a.request.Argv, Limits: a.request.Limits}, Number: 1, Mode: wire.OutputReply,
		}, &gate{}, stuck)
		require.Less(t, time.Since(began), 12*time.Second)
		require.Equal(t, wire.Proven, outcome.Result.Containment.Verdict, "%+v", outcome.Result)
		require.NotEmpty(t, outcome.Result.Output.LostRanges)
		require.True(t, outcome.Result.Output.Truncated)
	})
}

type stuckOutput struct{}

func (*stuckOutput) Emit(ctx context.Context, ev wire.Event) error {
	if ev.Type == wire.EventStarted {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (*stuckOutput) MaxChunk() int { return 1024 }

// Sandboxes that cannot be set up send the job back and, after some in a row,
// stop the pulling for a while.
func TestSetUpFailures(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		b.provider.OnCreate(fake.Create{Kind: sandbox.Unavailable}, fake.Create{Kind: sandbox.Unavailable}, fake.Create{Kind: sandbox.Unavailable})
		for range 3 {
			require.NoError(t, b.x.Ready())
			h := b.handle(script("print:x"))
			require.True(t, h.Abandoned)
			require.Empty(t, h.gate.claimed)
		}
		require.ErrorContains(t, b.x.Ready(), "could not be set up")
		time.Sleep(6 * time.Second)
		require.NoError(t, b.x.Ready())
		require.Equal(t, "x\n", b.handle(script("print:x")).data(wire.EventStdout))
		require.NoError(t, b.x.Ready())
	})
}

func TestFreshLeaseIsUsedOnce(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script("print:x")
		a.request.Lease.Reuse = wire.ReuseNever
		first, second := b.handle(a), b.handle(a)
		require.Equal(t, wire.Destroyed, first.Result.Lease.Disposition)
		require.NotEqual(t, first.Result.Lease.ID, second.Result.Lease.ID)
	})
}
