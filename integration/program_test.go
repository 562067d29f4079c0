package integration

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

func shell(script string) wire.Request { return wire.Request{Argv: []string{"sh", "-c", script}} }

// limited is a request that ends soon whatever its program does.
func limited(wall, grace int64, argv ...string) wire.Request {
	return wire.Request{Argv: argv, Limits: wire.Limits{WallMS: new(wall), GraceMS: new(grace)}}
}

// Bytes arrive as they were written, whatever they are and however they were cut.
func TestOutputArrivesByteForByte(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "8")
	s.gateway()

	t.Run("random bytes", func(t *testing.T) {
		t.Parallel()
		f := s.on(t).run("random", "sh", "-c", "head -c 65536 /dev/urandom | tee /tmp/x; sha256sum /tmp/x >&2").exited(0)
		sum := sha256.Sum256(f.stdout)
		require.Contains(t, string(f.stderr), hex.EncodeToString(sum[:]))
	})
	t.Run("a character cut in three", func(t *testing.T) {
		t.Parallel()
		f := s.on(t).run("cut", "sh", "-c", `printf '\342'; sleep 0.2; printf '\211'; sleep 0.2; printf '\244\n'`).exited(0)
		require.Equal(t, "\u2264\n", string(f.stdout))
		require.GreaterOrEqual(t, len(f.events), 5, "it came in pieces")
	})
	t.Run("many characters of three bytes", func(t *testing.T) {
		t.Parallel()
		s := s.on(t)
		stdout, stderr, code := s.split("", "run", "--server", s.url, "--", "perl", "-e", `print "\xe2\x89\xa4" x 100000`)
		require.Equal(t, 0, code, stderr)
		require.Equal(t, strings.Repeat("\u2264", 100_000), stdout)
	})
	t.Run("streams are kept apart", func(t *testing.T) {
		t.Parallel()
		s := s.on(t)
		for i := range soak(20, 200) {
			f := s.run(id("apart-%d", i), "sh", "-c", "printf 'no newline' >&2; echo X=1; echo e2 >&2; echo X=2").exited(0)
			require.Equal(t, "X=1\nX=2\n", string(f.stdout))
			require.Equal(t, "no newlinee2\n", string(f.stderr))
		}
	})
	t.Run("a prompt comes before its newline", func(t *testing.T) {
		t.Parallel()
		s := s.on(t)
		began := time.Now()
		f, seen := s.submitWatched("prompt", shell("printf 'name? '; sleep 3; echo"), func(ev wire.Event) bool {
			return ev.Type == wire.EventStdout && string(ev.Data) == "name? "
		})
		s.within(seen, "no prompt")
		require.Less(t, time.Since(began), 2*time.Second)
		f.wait().exited(0)
	})
	t.Run("single bytes come in few chunks", func(t *testing.T) {
		t.Parallel()
		f := s.on(t).run("bytewise", "perl", "-e", `$| = 1; print "x" for 1..20000`).exited(0)
		require.Equal(t, strings.Repeat("x", 20_000), string(f.stdout))
		require.Less(t, len(f.events), 2000)
	})
	t.Run("one line of many megabytes", func(t *testing.T) {
		t.Parallel()
		size := soak(20_000_000, 200_000_000)
		r := shell(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; printf END", size))
		r.Limits.OutputBytes = new(int64(256 << 20))
		f := s.on(t).submit("line", r).wait().exited(0)
		require.Len(t, f.stdout, size+3)
		require.True(t, bytes.HasSuffix(f.stdout, []byte("xEND")))
		require.Equal(t, size, bytes.Count(f.stdout, []byte("x")))
	})
	t.Run("input of which a part is read", func(t *testing.T) {
		t.Parallel()
		s := s.on(t)
		in := strings.Repeat("x", 4<<20)
		for name, c := range map[string]struct {
			argv []string
			out  string
		}{
			"head":   {[]string{"head", "-c", "1"}, "x"},
			"closed": {[]string{"sh", "-c", "exec 0<&-; sleep 0.2; echo done"}, "done\n"},
		} {
			f := s.submit("part-"+name, wire.Request{Argv: c.argv, Stdin: &in}).wait().exited(0)
			require.Equal(t, c.out, string(f.stdout))
			require.Equal(t, 1, f.result.Attempt)
		}
	})
	t.Run("a slow reader of stored output", func(t *testing.T) {
		t.Parallel()
		s := s.on(t)
		const size = 18 << 20
		r := shell(`perl -e '$x = pack("N*", 0..65535); print $x for 1..72'`)
		r.Output, r.Limits.OutputBytes = wire.OutputStored, new(int64(size))
		r.V = wire.Version
		job, err := s.client().Submit(t.Context(), &r, "slow-reader")
		require.NoError(t, err)
		defer closing(t, job)
		tail, err := s.client().Tail("slow-reader", 0)
		require.NoError(t, err)
		defer closing(t, tail)
		sum, n, last := sha256.New(), 0, wire.EventType("")
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			ev, _, err := tail.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if ev.Type == wire.EventStdout {
				sum.Write(ev.Data)
				n += len(ev.Data)
				<-tick.C
			}
			last = ev.Type
		}
		require.Equal(t, wire.EventResult, last)
		require.Equal(t, size, n)
		require.Empty(t, tail.Lost())
		piece := make([]byte, 0, 4<<16)
		for i := range uint32(65536) {
			piece = append(piece, byte(i>>24), byte(i>>16), byte(i>>8), byte(i))
		}
		require.Equal(t, sha256.Sum256(bytes.Repeat(piece, 72)), [32]byte(sum.Sum(nil)))
		result, err := job.Copy(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Equal(t, wire.Exited, result.Outcome)
		require.Empty(t, job.Lost(), "what is stored was never to come here")
	})
}

// Readers that come late find what is stored, readers that came early miss
// nothing.
func TestReadersComeAtAnyTime(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "16")
	s.gateway()
	n := soak(60, 1000)
	all := make([]*followed, n)
	for i := range n {
		r := wire.Request{Argv: []string{"echo", id("%d", i)}, Output: wire.OutputBoth}
		all[i] = s.submit(id("echo-%d", i), r)
	}
	late := func(i int) {
		t.Helper()
		tail, err := s.client().Tail(id("echo-%d", i), 0)
		require.NoError(t, err)
		defer closing(t, tail)
		var out []byte
		for {
			ev, _, err := tail.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if ev.Type == wire.EventStdout {
				out = append(out, ev.Data...)
			}
		}
		require.Equal(t, id("%d\n", i), string(out))
		require.Empty(t, tail.Lost())
	}
	for i := range n / 2 { // while they run
		late(i)
	}
	for i, f := range all {
		f.wait().exited(0)
		require.Equal(t, id("%d\n", i), string(f.stdout))
	}
	for i := n / 2; i < n; i++ { // when all is over
		late(i)
	}
}

// A worker that gets little processor time loses no tail of a fast program's
// output, and no job that is over as soon as it began stays "running".
func TestShortProgramsOnAStarvedWorker(t *testing.T) {
	t.Setenv("GOMAXPROCS", "1")
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "64")
	tails, trues := soak(100, 500), soak(200, 5000)
	var all []*followed
	for i := range tails {
		all = append(all, s.submit(id("tail-%d", i), shell("head -c 60000 /dev/zero | tr '\\0' x")))
	}
	for i := range trues {
		all = append(all, s.submit(id("true-%d", i), wire.Request{Argv: []string{"true"}}))
	}
	want := strings.Repeat("x", 60000)
	for i, f := range all {
		f.wait().exited(0)
		require.Equal(t, wire.EventStarted, f.events[0])
		if i < tails {
			require.Equal(t, want, string(f.stdout), f.id)
		}
		require.GreaterOrEqual(t, f.result.Timing.RunMS, 0.0)
		require.GreaterOrEqual(t, f.result.Timing.QueuedMS, 0.0)
	}
	s.queueEmpty()
	require.Eventually(t, func() bool { return w.metric(t, "sallyport_slots_used") == 0 }, patience, 20*time.Millisecond)
}

// Whatever ends a program, the result names it, with the program's own end as
// detail, and what the program wrote before stands.
func TestEveryEndIsNamed(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "16")
	s.gateway()

	for _, c := range []struct {
		name    string
		request wire.Request
		outcome wire.Outcome
		reason  wire.Reason
		code    int // -1 for none
		signal  int
		stdout  string
	}{
		{name: "exits-255", request: shell("exit 255"), outcome: wire.Exited, code: 255},
		{name: "exits-256", request: shell("perl -e 'exit 256'"), outcome: wire.Exited},
		{name: "aborts", request: shell("kill -ABRT $$"), outcome: wire.Signaled, code: -1, signal: 6},
		{name: "crashes", request: shell("kill -SEGV $$"), outcome: wire.Signaled, code: -1, signal: 11},
		{name: "has-no-reader", request: shell("kill -PIPE $$"), outcome: wire.Signaled, code: -1, signal: 13},
		{name: "real-time-signal", request: shell("kill -40 $$"), outcome: wire.Signaled, code: -1, signal: 40},
		{name: "burns-until-its-limit", request: limited(800, 300, "sh", "-c", "trap '' TERM; while :; do :; done"), outcome: wire.TimedOut, code: -1, signal: 9},
		{name: "kills-its-group", request: shell("kill -9 0"), outcome: wire.Signaled, code: -1, signal: 9},
		{name: "one-millisecond", request: limited(1, 100, "sleep", "2"), outcome: wire.TimedOut, code: -1, signal: 15},
		{name: "grandchild-holds-stderr", request: shell("echo hi; sleep 3600 >/dev/null & exit 0"), outcome: wire.Exited, stdout: "hi\n"},
		{name: "cwd-is-a-file", request: wire.Request{Argv: []string{"true"}, Cwd: "/etc/passwd"}, outcome: wire.NotStarted, reason: wire.ReasonBadCwd, code: -1},
		{name: "talks-until-its-limit", request: limited(1500, 200, "sh", "-c", "while :; do printf .; sleep 0.2; done >/dev/null"), outcome: wire.TimedOut, code: -1, signal: 15},
		{name: "silent-for-long", request: limited(6000, 200, "sleep", "3"), outcome: wire.Exited},
		{name: "late", request: wire.Request{Argv: []string{"true"}, Deadline: new(time.Now().Add(-time.Hour))}, outcome: wire.Expired, reason: wire.ReasonDeadline, code: -1},
		{name: "not-late", request: wire.Request{Argv: []string{"true"}, Deadline: new(time.Now().AddDate(1, 0, 0))}, outcome: wire.Exited},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := s.on(t).submit(c.name, c.request).wait()
			require.Equal(t, c.outcome, f.result.Outcome, "%s", f.raw)
			require.Equal(t, c.reason, f.result.Reason, "%s", f.raw)
			if c.code < 0 {
				require.Nil(t, f.result.ExitCode, "%s", f.raw)
			} else {
				require.Equal(t, c.code, *f.result.ExitCode, "%s", f.raw)
			}
			if c.signal == 0 {
				require.Nil(t, f.result.Signal, "%s", f.raw)
			} else {
				require.Equal(t, c.signal, f.result.Signal.Number, "%s", f.raw)
			}
			if c.stdout != "" {
				require.Equal(t, c.stdout, string(f.stdout))
			}
			require.GreaterOrEqual(t, f.result.Timing.QueuedMS, 0.0)
			require.NotContains(t, string(f.raw), ":-", "no number of a result is negative: %s", f.raw)
		})
	}
	for _, sh := range []string{"sh", "bash"} {
		for i, script := range []string{"sleep 20", "sleep 20; true", "(sleep 20)", "sleep 20 | cat", "sleep 20 & wait"} {
			t.Run(id("a tree under %s ends at its limit: %s", sh, script), func(t *testing.T) {
				t.Parallel()
				f := s.on(t).submit(id("tree-%s-%d", sh, i), limited(700, 300, sh, "-c", script)).wait().proven()
				require.Equal(t, wire.TimedOut, f.result.Outcome, "%s", f.raw)
				require.Less(t, f.result.Timing.RunMS+f.result.Timing.ProofMS, 2000.0, "%s", f.raw)
			})
		}
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		r := shell(`echo before; printf partial; exec perl -e '$x = "x" x (1 << 30); sleep 60'`)
		r.Limits.MemoryBytes = new(int64(64 << 20))
		f := s.on(t).submit("oom", r).wait()
		if f.result.Outcome == wire.NotStarted { // a host that cannot limit memory says so
			require.Equal(t, wire.ReasonUnenforceable, f.result.Reason, "%s", f.raw)
			return
		}
		require.Equal(t, wire.OOM, f.proven().result.Outcome, "%s", f.raw)
		require.Equal(t, "before\npartial", string(f.stdout))
		require.Positive(t, *f.result.Usage.OOMKills)
		require.Equal(t, 9, f.result.Signal.Number, "%s", f.raw)
	})
	t.Run("more output than allowed", func(t *testing.T) {
		t.Parallel()
		r := shell("head -c 5242880 /dev/zero; sleep 60")
		r.Limits.OutputBytes = new(int64(1 << 20))
		f := s.on(t).submit("much", r).wait().proven()
		require.Equal(t, []any{wire.Limit, wire.ReasonOutput}, []any{f.result.Outcome, f.result.Reason}, "%s", f.raw)
		out := f.result.Output
		require.True(t, out.Truncated)
		require.Equal(t, int64(1<<20), out.StdoutBytes)
		require.Greater(t, out.StdoutProduced, out.StdoutBytes)
		require.Len(t, f.stdout, 1<<20)
	})
}

// A cancel is answered at once, gives the grace that was asked for and no more,
// and throws away nothing that was written.
func TestCancelGivesTheGraceThatWasAskedFor(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "16")
	s.gateway()
	for _, c := range []struct {
		name, script string
		grace        int64
		stdout       string
		signal       int // 0 for exit code 0
		least, most  float64
	}{
		{"ignores everything", "trap '' TERM INT HUP; echo before; printf partial; while :; do sleep 0.1; done", 1000, "before\npartial", 9, 990, 2500},
		{"saves its work, longer than the fence", "trap 'sleep 4; echo saved; exit 0' TERM; echo up; sleep 300 & wait", 30_000, "up\nsaved\n", 0, 4000, 7000},
		{"ends at once", "echo up; exec sleep 300", 30_000, "up\n", 15, 0, 1500},
		{"burns the processor", "trap '' TERM; echo up; while :; do :; done", 500, "up\n", 9, 490, 2500},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := s.on(t)
			name := strings.NewReplacer(" ", "-", ",", "").Replace(c.name)
			r := limited(60_000, c.grace, "sh", "-c", c.script)
			var out []byte
			ready := c.stdout[:strings.Index(c.stdout, "\n")+1]
			f, up := s.submitWatched(name, r, func(ev wire.Event) bool {
				if ev.Type == wire.EventStdout {
					out = append(out, ev.Data...)
				}
				return strings.HasPrefix(string(out), ready)
			})
			s.within(up, "no output of %s", name)
			began := time.Now()
			require.Less(t, s.cancel(name), 900*time.Millisecond, "the answer waits for the end")
			f.wait().proven()
			took := float64(time.Since(began).Milliseconds())
			require.Equal(t, wire.Cancelled, f.result.Outcome, "%s", f.raw)
			require.Equal(t, c.stdout, string(f.stdout))
			if c.signal == 0 {
				require.Equal(t, 0, *f.result.ExitCode, "%s", f.raw)
			} else {
				require.Equal(t, c.signal, f.result.Signal.Number, "%s", f.raw)
			}
			require.GreaterOrEqual(t, took, c.least)
			require.Less(t, took, c.most, "%s", f.raw)
			require.Equal(t, 1, f.result.Attempt)
		})
	}
	t.Run("cancel and end cross", func(t *testing.T) {
		t.Parallel()
		s := s.on(t)
		once, n := s.census(), soak(60, 1000)
		type crossing struct {
			f     *followed
			state wire.JobState
		}
		all := make(chan crossing, n)
		const lanes = 4
		var running sync.WaitGroup
		for lane := range lanes {
			running.Go(func() {
				for i := lane; i < n; i += lanes {
					name := id("cross-%d", i)
					f, _ := s.started(name, shell("sleep 0.05"))
					<-time.NewTimer(time.Duration(30+i%40) * time.Millisecond).C
					state, err := s.client().Cancel(t.Context(), name)
					if err != nil {
						t.Errorf("cancel: %v", err)
						return
					}
					all <- crossing{f: f, state: state.State}
				}
			})
		}
		running.Wait()
		close(all)
		seen := map[wire.Outcome]int{}
		for c := range all {
			c.f.wait().proven()
			seen[c.f.result.Outcome]++
			switch c.state {
			case wire.JobDone:
				require.Equal(t, wire.Exited, c.f.result.Outcome, "the answer was: done; %s", c.f.raw)
			case wire.JobCancelled, wire.JobCancelling, wire.JobRunning, wire.JobQueued, wire.JobUnknown:
				require.Contains(t, []wire.JobState{wire.JobCancelling, wire.JobRunning}, c.state)
				require.Contains(t, []wire.Outcome{wire.Exited, wire.Cancelled}, c.f.result.Outcome, "%s", c.f.raw)
			}
			once.once(c.f.id, 1)
		}
		t.Logf("%v", seen)
		require.Equal(t, n, seen[wire.Exited]+seen[wire.Cancelled])
	})
}

// The end of its worker gives a job the same grace as a cancel: SIGTERM, the time that was
// asked for, and all that the program says until then.
func TestShutdownGivesTheGraceThatWasAskedFor(t *testing.T) {
	t.Parallel()
	// The longest grace that a stopping worker gives is a part of the ack wait.
	s, _ := newBrokerStack(t, withAckWait("30s"), nil)
	w := s.worker("w1", "--slots", "2", "--drain", "100ms")
	var out []byte
	r := limited(60_000, 20_000, "sh", "-c", "trap 'sleep 2; echo saved; exit 0' TERM; echo up; sleep 300 & wait")
	f, up := s.submitWatched("saves", r, func(ev wire.Event) bool {
		if ev.Type == wire.EventStdout {
			out = append(out, ev.Data...)
		}
		return bytes.HasPrefix(out, []byte("up\n"))
	})
	s.within(up, "no output")
	began := time.Now()
	w.signal(syscall.SIGTERM)
	f.wait().proven()
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second, "%s %q", f.raw, f.stdout)
	require.Equal(t, "up\nsaved\n", string(f.stdout), "%s", f.raw)
	require.Equal(t, 0, *f.result.ExitCode, "%s", f.raw)
	require.Equal(t, []any{wire.Lost, wire.ReasonShutdown}, []any{f.result.Outcome, f.result.Reason}, "%s", f.raw)
	s.within(w.done, "the worker does not end")
}

// A sandbox whose first process dies takes its program along, the job is lost
// with that reason, at once, and the next job has another sandbox.
func TestSandboxThatDiesUnderItsJob(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "2")
	var begun wire.Started
	f, up := s.submitWatched("widow", shell("echo up; exec sleep 100"), func(ev wire.Event) bool {
		if ev.Type == wire.EventStarted {
			b, err := wire.DecodeStarted(ev.Data)
			if err != nil {
				t.Errorf("started event: %v", err)
				return true
			}
			begun = *b
		}
		return ev.Type == wire.EventStdout
	})
	s.within(up, "not started")
	children := childrenOf(t, w.cmd.Process.Pid)
	require.NotEmpty(t, children)
	began := time.Now()
	killed := false
	for _, pid := range children {
		if inLease(pid, begun.Lease) {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			killed = true
		}
	}
	require.True(t, killed, "no init of lease %s among %v", begun.Lease, children)
	f.wait()
	require.Less(t, time.Since(began), 3*time.Second)
	require.Equal(t, []any{wire.Lost, wire.ReasonSandboxGone, wire.StartYes}, []any{f.result.Outcome, f.result.Reason, f.result.StartState}, "%s", f.raw)
	require.Nil(t, f.result.ExitCode)
	require.NotEqual(t, wire.Reusable, f.result.Lease.Disposition)
	g := s.run("next", "echo", "ok").exited(0)
	require.NotEqual(t, begun.Lease, g.result.Lease.ID)
	s.queueEmpty()
}

// Jobs of every outcome leave no descriptor and no goroutine behind.
func TestJobsLeaveNothingInTheWorker(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "8")
	s.gateway()
	round := func(from, n int) {
		t.Helper()
		var all []*followed
		for i := from; i < from+n; i++ {
			name := id("leak-%d", i)
			switch i % 5 {
			case 0, 1:
				all = append(all, s.submit(name, shell("echo out; sleep 60 & exit 3")))
			case 2:
				all = append(all, s.submit(name, wire.Request{Argv: []string{"nosuch"}}))
			case 3:
				all = append(all, s.submit(name, limited(50, 50, "sleep", "60")))
			case 4:
				f, _ := s.started(name, wire.Request{Argv: []string{"sleep", "60"}})
				s.cancel(name)
				all = append(all, f)
			}
		}
		for _, f := range all {
			f.wait().proven()
		}
		s.queueEmpty()
		require.Eventually(t, func() bool { return w.metric(t, "sallyport_slots_used") == 0 }, patience, 20*time.Millisecond)
	}
	// All slots at once, so that the pool has as many leases as it will ever have.
	var full []*followed
	for i := range 8 {
		full = append(full, s.submit(id("full-%d", i), wire.Request{Argv: []string{"sleep", "1"}}))
	}
	for _, f := range full {
		f.wait().exited(0)
	}
	round(0, 20)
	// A lease keeps files open for its whole life; how many leases there are depends
	// on how many of them happen to be reset at once.
	const perLease = 20
	spare := func() float64 {
		return float64(descriptors(t, w.cmd.Process.Pid)) - perLease*w.metric(t, "sallyport_leases")
	}
	files, routines := spare(), w.metric(t, "go_goroutines")-w.metric(t, "sallyport_leases")
	round(20, soak(60, 5000))
	// Of control groups, only those of leases that are there.
	require.Eventually(t, func() bool {
		named := map[string]bool{}
		for _, instance := range s.instances() {
			for _, group := range groupsOf(t, instance) {
				named[filepath.Base(group)] = true
			}
		}
		return float64(len(named)) <= w.metric(t, "sallyport_leases")
	}, patience, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		return spare() < files+10 && w.metric(t, "go_goroutines")-w.metric(t, "sallyport_leases") < routines+10
	}, 10*time.Second, 50*time.Millisecond, "descriptors beside leases were %v and are %v, goroutines %v and %v",
		files, spare(), routines, w.metric(t, "go_goroutines"))
}

// The environment of a job is what is written down, whatever the worker's own is.
func TestEnvironmentIsWrittenDown(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "zzz")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "zzz")
	t.Setenv("LD_PRELOAD_X", "zzz")
	s := newStack(t).apply()
	s.worker("w1", "--slots", "2") // with a canary, too
	const base = "HOME=/workspace\nLANG=C.UTF-8\nLOGNAME=job\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nTMPDIR=/tmp\nUSER=job\n"
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"absent": {nil, base},
		"empty":  {map[string]string{}, base},
		"one":    {map[string]string{"A": "1"}, "A=1\n" + base},
	} {
		f := s.submit("env-"+name, wire.Request{Argv: []string{"sh", "-c", "env -u PWD -u OLDPWD -u _ -u SHLVL | sort; tr '\\0' '\\n' </proc/1/environ"}, Env: c.env}).wait()
		require.Equal(t, c.want, string(f.stdout), name)
		require.NotContains(t, string(f.stderr), "zzz")
	}
}

// What a worker was started with by its service manager, or by hand, is not what its
// jobs run with.
func TestSettingsOfTheWorkerStayOutside(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	// Signals ignored by nohup and blocked, a closed umask, many files, no random
	// addresses, less killed for memory where that is allowed, a descriptor left open.
	wrapper := []string{"/bin/sh", "-c", `umask 077; ulimit -Sn 5000; ulimit -Sc unlimited 2>/dev/null; echo -900 2>/dev/null >/proc/self/oom_score_adj
		exec 7</etc/passwd; trap '' HUP USR1 USR2 PIPE CHLD
		exec nohup setarch -R perl -MPOSIX -e 'sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGINT, SIGTERM, SIGUSR1, SIGCHLD, 34)); exec @ARGV or die' "$@"`, "sh"}
	s.workerThrough(nil, wrapper, "--require", "namespaces", "--slots", "2")
	f := s.run("look", "sh", "-c", `grep -E '^Sig(Blk|Ign)|^NoNewPrivs' /proc/self/status | tr -d '\t'; umask; ulimit -n; ulimit -c
		cat /proc/self/oom_score_adj /proc/self/personality; ls /proc/self/fd | tr '\n' ' '; yes | head -1`).exited(0)
	// Descriptor 3 is the one by which ls reads the directory.
	require.Equal(t, "SigBlk:0000000000000000\nSigIgn:0000000000000000\nNoNewPrivs:1\n0022\n1024\n0\n1000\n00000000\n0 1 2 3 y\n",
		string(f.stdout), "%s", f.stderr)
}

// Nothing of the network is reachable from a job: not the server that it came from, not
// the worker's own port, not this host, and no name. All of it fails at once.
func TestJobsReachNoNetwork(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "2")
	_, broker, err := net.SplitHostPort(strings.TrimPrefix(s.url, "nats://"))
	require.NoError(t, err)
	_, health, err := net.SplitHostPort(w.http)
	require.NoError(t, err)
	targets := []string{"169.254.169.254 80", "8.8.8.8 53", "::1 " + broker}
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} {
		targets = append(targets, host+" "+broker, host+" "+health)
	}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			targets = append(targets, ip.IP.String()+" "+broker, ip.IP.String()+" "+health)
		}
	}
	script := `use Socket qw(:all); $SIG{ALRM} = sub { print "hangs\n"; exit 1 }; alarm 10;
		while (<STDIN>) { my ($host, $port) = split; my $six = $host =~ /:/;
			for my $type (SOCK_STREAM, SOCK_DGRAM) { socket(my $s, $six ? AF_INET6 : AF_INET, $type, 0) or next;
				my $to = $six ? pack_sockaddr_in6($port, inet_pton(AF_INET6, $host)) : pack_sockaddr_in($port, inet_aton($host));
				print "reached $host $port\n" if connect($s, $to) && ($type == SOCK_STREAM || defined send($s, "x", 0)) } }
		print "resolved\n" if gethostbyname("example.com") || gethostbyname("nats.demo.internal");
		print "own name ", inet_ntoa(scalar gethostbyname("localhost")), "\n"`
	f := s.submit("reach", wire.Request{Argv: []string{"perl", "-e", script}, Stdin: new(strings.Join(targets, "\n"))}).wait().exited(0)
	require.Equal(t, "own name 127.0.0.1\n", string(f.stdout), "%s", f.stderr)
}

// Whatever fails before a program's first instruction is no exit code of the program's.
func TestWhatDoesNotStartIsNoExit(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "4")
	script := func(text string) wire.File { return wire.File{Path: "job", Text: &text, Mode: "0755"} }
	for _, c := range []struct {
		name    string
		request wire.Request
		reason  wire.Reason
		code    int // 0 for none
		says    string
	}{
		{"no interpreter", wire.Request{Argv: []string{"./job"}, Files: []wire.File{script("#!/no/such/interpreter\n")}}, wire.ReasonBadInterpreter, 126, "job"},
		{"no first line", wire.Request{Argv: []string{"./job"}, Files: []wire.File{script("touch pwn\n")}}, wire.ReasonBadFormat, 126, "job"},
		{"another processor", wire.Request{Argv: []string{"./job"}, Files: []wire.File{script("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\x14\x00" + strings.Repeat("\x00", 100))}}, wire.ReasonBadFormat, 126, "job"},
		{"no directory", wire.Request{Argv: []string{"true"}, Cwd: "/no/such"}, wire.ReasonBadCwd, 0, "/no/such"},
		{"a link out", wire.Request{Argv: []string{"true"}, Cwd: "/proc/1/root"}, wire.ReasonBadCwd, 0, "/proc/1/root"},
		{"a file", wire.Request{Argv: []string{"true"}, Cwd: "job", Files: []wire.File{script("")}}, wire.ReasonBadCwd, 0, "/workspace/job"},
	} {
		c.request.Collect = []string{"pwn"}
		f := s.submit(strings.ReplaceAll(c.name, " ", "-"), c.request).wait().proven()
		require.Equal(t, []any{wire.NotStarted, c.reason, wire.StartNo, 1}, []any{f.result.Outcome, f.result.Reason, f.result.StartState, f.result.Attempt}, "%s: %s", c.name, f.raw)
		require.Contains(t, f.result.Message, c.says)
		require.Nil(t, f.result.Signal)
		require.Empty(t, f.result.Files, "%s: %s", c.name, f.raw)
		if c.code == 0 {
			require.Nil(t, f.result.ExitCode)
		} else {
			require.Equal(t, c.code, *f.result.ExitCode)
		}
	}
	s.run("one", "sh", "-c", "exit 1").exited(1)
}

// A worker that has no control groups runs no job without the limit that it asks for.
func TestLimitThatCannotBeEnforced(t *testing.T) {
	t.Parallel()
	const user = 65534
	s := newUserStack(t, workerConfig, user)
	w := s.startUser(user, "w", "--slots", "2")
	w.waitReady()
	r := wire.Request{Argv: []string{"sh", "-c", "exit 1"}}
	r.Limits.MemoryBytes = new(int64(64 << 20))
	f := s.submit("limited", r).wait()
	if f.result.Outcome == wire.Exited { // a host on which this user has control groups
		t.Log("not tested: an ordinary user can limit memory here")
		return
	}
	require.Equal(t, []any{wire.NotStarted, wire.ReasonUnenforceable, wire.StartNo}, []any{f.result.Outcome, f.result.Reason, f.result.StartState}, "%s", f.raw)
	require.Nil(t, f.result.ExitCode)
	require.Contains(t, f.result.Message, "memory_bytes")
	s.run("unlimited", "sh", "-c", "exit 1").exited(1)
	w.stop()
}

// A fork bomb meets its limit, ends with its job, and neither the jobs beside it nor the
// next one in its sandbox notice.
func TestForkBombBesideOthers(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "3")
	for i, bomb := range []string{":(){ :|:& };:", ":(){ :|:& };:; while :; do wait; done", "f(){ f & f; }; f"} {
		r := limited(1500, 200, "bash", "-c", bomb)
		r.Limits.Pids = new(int64(64))
		f := s.submit(id("bomb-%d", i), r)
		for n := range 10 {
			s.run(id("beside-%d-%d", i, n), "sh", "-c", "echo ok; exit 4").exited(4)
		}
		f.wait().proven()
		require.Contains(t, []wire.Outcome{wire.Exited, wire.TimedOut, wire.OOM, wire.Signaled}, f.result.Outcome, "%s", f.raw)
		require.Equal(t, wire.Reusable, f.result.Lease.Disposition, "%s", f.raw)
	}
	for n := range 6 {
		s.run(id("after-%d", n), "sh", "-c", "ls -d /proc/[0-9]* | wc -l").exited(0)
	}
}

// A memory limit that holds no program is refused; above that a job ends by itself or
// for want of memory, and its sandbox survives.
func TestLittleMemory(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "4")
	n := soak(3, 50)
	var all []*followed
	for i := range n {
		for _, mib := range []int64{1, 4, 16} {
			for name, argv := range map[string][]string{"true": {"true"}, "hog": {"perl", "-e", `$x = "x" x 400_000_000; print "all"`}} {
				r := wire.Request{Argv: argv}
				r.Limits.MemoryBytes = new(mib << 20)
				f := s.submit(id("%s-%d-%d", name, mib, i), r)
				all = append(all, f)
				f.wait()
				got := []any{f.result.Outcome, f.result.Reason}
				switch {
				case f.result.Reason == wire.ReasonUnenforceable:
				case mib == 1:
					require.Equal(t, []any{wire.InvalidJob, wire.ReasonField}, got, "%s", f.raw)
				case name == "hog":
					require.Equal(t, []any{wire.OOM, wire.Reason("")}, got, "%s", f.raw)
					require.Empty(t, f.stdout)
				default:
					f.exited(0)
				}
			}
		}
	}
	require.NotContains(t, w.log.String(), `"level":"error"`)
	require.Equal(t, 0.0, w.metric(t, "sallyport_leases_quarantined_total"))
	require.Len(t, all, 6*n)
}
