package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/wire"
)

// next has the next call of an operation meet something, later ones the next.
func (r *remote) next(op createostest.Op, each ...createostest.Action) {
	for i, then := range each {
		r.api.Script(createostest.Rule{Op: op, Nth: i + 1, Then: []createostest.Action{then}})
	}
}

// gone waits for the quarantine record of the job's lease to say that it is destroyed.
func (r *remote) gone(f *followed) *wire.Quarantine {
	r.t.Helper()
	require.Equal(r.t, wire.Quarantined, f.result.Lease.Disposition, "%s", f.raw)
	q := r.quarantine(f.result.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	require.NotEmpty(r.t, q.Evidence)
	require.Equal(r.t, f.id, q.Job)
	return q
}

// neverInQuarantine asserts that there is no record of a lease.
func (r *remote) neverInQuarantine(f *followed) {
	r.t.Helper()
	for subject := range r.ledger() {
		require.False(r.t, strings.HasPrefix(subject, "exec.quarantine.") && strings.HasSuffix(subject, "."+f.result.Lease.ID), "%s", f.raw)
	}
}

// What the service can do to a single sandbox, and what a publisher sees of it.
func TestCreateOSFaults(t *testing.T) {
	t.Parallel()
	r := newRemote(t, func(c *createostest.Config) { c.JournalBytes = 64 << 10 })
	w := r.worker("w1", "--slots", "32")
	r.reap()
	r.gateway()
	r.streams(t)
	r.silence(t)
	r.creations(t)
	t.Run("sandboxes", func(t *testing.T) {
		for name, test := range map[string]func(r *remote, id string) *followed{
			"delete-lies": deleteLies, "delete-refuses": deleteRefuses, "delete-fails": deleteFails, "delete-hangs": deleteHangs, "deleted-elsewhere": deletedElsewhere,
			"gone-already": goneAlready, "vanishes": vanishes, "vanishes-idle": vanishesIdle, "never-ends": neverEnds,
			"tree-lags": treeLags, "evicted-running": evictedRunning, "cancelled": cancelledRemotely,
			"wall": wallRemotely, "quiet": quiet, "leftover": leftover,
		} {
			if strings.HasPrefix(name, "delete-") && name != "delete-lies" && name != "delete-fails" && !soaking {
				continue // the pool tries for up to half a minute
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := test(r.with(t), name)
				require.LessOrEqual(t, r.guests.runs(f.id), f.result.Attempt)
			})
		}
	})
	r.api.Unscript()
	w.stop()
	require.Zero(t, w.cmd.ProcessState.ExitCode(), "%s", w.log)
	r.balanced()
}

// A DELETE that is answered and not done is seen through.
func deleteLies(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 20_000, 200, "await:"+id, "exit:3"))
	box := r.boxOf(id)
	r.at(box, createostest.DeleteSandbox, 1, createostest.LieDeleted())
	r.guests.open(id)
	f.wait().exited(3)
	require.Equal(r.t, wire.Destroyed, f.result.Lease.Disposition)
	r.ends(box)
	require.GreaterOrEqual(r.t, len(r.calls(box, createostest.DeleteSandbox)), 2)
	return f
}

// ends waits until the service has no such sandbox any more.
func (r *remote) ends(box string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, b := range r.api.Sandboxes() {
			if b.ID == box {
				return !b.Live()
			}
		}
		return false
	}, patience, 10*time.Millisecond, "sandbox %s is left", box)
}

// A DELETE that is refused for a while puts the lease into quarantine, after the
// result, and the reaper goes on until it works.
func deleteRefuses(r *remote, id string) *followed {
	return destroyedLate(r, id, createostest.RefuseDelete())
}

// So does one that is never answered.
func deleteHangs(r *remote, id string) *followed {
	return destroyedLate(r, id, createostest.Hang())
}

// So do all other failures, one after the other.
func deleteFails(r *remote, id string) *followed {
	return destroyedLate(r, id,
		createostest.Status(http.StatusInternalServerError, ""), createostest.Status(http.StatusServiceUnavailable, ""),
		createostest.Status(http.StatusUnauthorized, ""), createostest.CutBefore())
}

func destroyedLate(r *remote, id string, failures ...createostest.Action) *followed {
	f := r.submit(id, r.guest(id, "default", 20_000, 200, "await:"+id, "exit:3"))
	box := r.boxOf(id)
	var failing atomic.Bool
	failing.Store(true)
	for i, failure := range failures {
		r.api.Script(createostest.Rule{
			Op: createostest.DeleteSandbox, Times: -1, Then: []createostest.Action{failure},
			When: func(c createostest.Call) bool {
				return c.Sandbox == box && failing.Load() && c.Seq%len(failures) == i
			},
		})
	}
	r.guests.open(id)
	f.wait().exited(3) // whatever becomes of its sandbox
	require.Equal(r.t, wire.Destroyed, f.result.Lease.Disposition, "the result does not wait for it")
	q := r.quarantine(f.result.Lease.ID, func(*wire.Quarantine) bool { return true })
	require.Equal(r.t, []any{wire.InQuarantine, wire.QuarantineDestroyFailed, "default", id}, []any{q.State, q.Reason, q.Tenant, q.Job})
	require.NotEmpty(r.t, q.Host)
	require.False(r.t, q.FirstSeen.IsZero())
	failing.Store(false)
	r.quarantine(f.result.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.Gone })
	r.ends(box)
	return f
}

// A sandbox that somebody else removes is gone, not stuck: whatever the service calls it.
func deletedElsewhere(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 20_000, 200, "await:"+id, "exit:3"))
	box := r.boxOf(id)
	r.at(box, createostest.DeleteSandbox, 1, createostest.CommitThen(http.StatusNotFound, ""))
	r.guests.open(id)
	f.wait().exited(3)
	r.ends(box)
	r.neverInQuarantine(f)
	return f
}

func goneAlready(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 20_000, 200, "await:"+id, "exit:3"))
	box := r.boxOf(id)
	r.at(box, createostest.DeleteSandbox, -1, createostest.CommitThen(http.StatusGone, ""))
	r.guests.open(id)
	f.wait().exited(3)
	r.ends(box)
	r.settled(f)
	return f
}

// settled waits until the books say that the job's lease has ended.
func (r *remote) settled(f *followed) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for subject, state := range r.ledger() {
			if strings.HasSuffix(subject, "."+f.result.Lease.ID) && state != string(wire.Gone) {
				return false
			}
		}
		return true
	}, patience, 20*time.Millisecond, "the lease of %s has no end in the books", f.id)
	r.neverInQuarantine(f)
}

// A sandbox that vanishes under its job is told as such, at once, and its job runs
// again where it may. There is nothing to put into quarantine.
func vanishes(r *remote, id string) *followed {
	request := r.guest(id, "default", 60_000, 200, "lines:4", "await:"+id, "exit:3")
	request.Retry.IfLost = true
	f := r.submit(id, request)
	other := r.submit(id+"-once", r.guest(id+"-once", "default", 60_000, 200, "lines:4", "forever"))
	box := r.boxOf(id)
	r.vanish(r.boxOf(other.id))
	began := time.Now()
	other.wait()
	require.Less(r.t, time.Since(began), 20*time.Second, "not only when its time is over")
	require.Equal(r.t, []any{wire.Lost, wire.ReasonSandboxGone, wire.StartYes}, []any{other.result.Outcome, other.result.Reason, other.result.StartState}, "%s", other.raw)
	require.Nil(r.t, other.result.ExitCode, "%s", other.raw)
	other.proven()
	r.settled(other)
	r.vanish(box)
	require.Eventually(r.t, func() bool { return r.guests.runs(id) == 2 }, patience, 10*time.Millisecond)
	r.guests.open(id)
	f.wait().exited(3)
	require.Equal(r.t, 2, f.result.Attempt)
	return f
}

// vanish ends a sandbox, which is not there any more when its last process dies.
func (r *remote) vanish(box string) {
	r.t.Helper()
	r.at(box, createostest.GetSandbox, -1, createostest.Status(http.StatusNotFound, ""))
	require.NoError(r.t, r.api.Vanish(box))
}

// One that vanishes while nothing runs in it costs its next job no more than time.
func vanishesIdle(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "kept", 20_000, 200, "await:"+id))
	box := r.boxOf(id)
	r.guests.open(id)
	f.wait().exited(0)
	require.Equal(r.t, wire.Reusable, f.result.Lease.Disposition, "%s", f.raw)
	// Its reset is over when its processes' records are.
	require.Eventually(r.t, func() bool { return len(r.calls(box, createostest.DeleteProcess)) >= 2 }, patience, 5*time.Millisecond)
	require.NoError(r.t, r.api.Vanish(box))
	next := r.submit(id+"-next", r.guest(id+"-next", "kept", 20_000, 200, "lines:2", "exit:9")).wait().exited(9)
	require.NotEqual(r.t, f.result.Lease.ID, next.result.Lease.ID)
	require.Equal(r.t, 1, r.guests.runs(next.id))
	return next
}

// A process that nothing ends has its result in time, and its sandbox goes when it can.
func neverEnds(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 300, 200, "lines:2", "stuck"))
	r.boxOf(id)
	f.wait()
	require.Equal(r.t, []any{wire.TimedOut, wire.Unproven}, []any{f.result.Outcome, f.result.Containment.Verdict}, "%s", f.raw)
	require.Equal(r.t, wire.Quarantined, f.result.Lease.Disposition)
	r.quarantine(f.result.Lease.ID, func(q *wire.Quarantine) bool { return q.State == wire.InQuarantine })
	r.guests.open(id)
	q := r.gone(f)
	require.Equal(r.t, wire.QuarantineUnproven, q.Reason)
	return f
}

// A tree that is not gone at once is asked about until it is.
func treeLags(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 300, 100, "forever"))
	box := r.boxOf(id)
	r.at(box, createostest.DeleteProcess, 3, createostest.TreeExitedFalse())
	f.wait().proven()
	require.Equal(r.t, wire.TimedOut, f.result.Outcome, "%s", f.raw)
	require.Len(r.t, r.calls(box, createostest.DeleteProcess), 4)
	return f
}

// Where the service has thrown output away and the program goes on, it is ended, since
// nobody could follow it.
func evictedRunning(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 20_000, 200, "flood:4096", "forever")).wait().proven()
	require.Equal(r.t, wire.Lost, f.result.Outcome, "%s", f.raw)
	require.Nil(r.t, f.result.ExitCode, "%s", f.raw)
	r.cutShort(f, 0)
	return f
}

// cutShort asserts that the output of a flood behind n lines is a declared prefix.
func (r *remote) cutShort(f *followed, n int) {
	r.t.Helper()
	o := f.result.Output
	stdout, stderr := lines(f.id, n)
	require.Equal(r.t, stderr, string(f.stderr))
	flood, whole := strings.CutPrefix(string(f.stdout), stdout)
	require.True(r.t, whole, "%s", f.raw)
	require.True(r.t, o.Truncated, "%s", f.raw)
	require.NotNil(r.t, o.Unread, "%s", f.raw)
	require.Positive(r.t, o.Unread.First)
	require.NotEmpty(r.t, o.Unread.Reason)
	require.Equal(r.t, int64(len(f.stdout)), o.StdoutBytes)
	require.Less(r.t, len(flood), 4096<<10)
	require.Zero(r.t, len(flood)%1024, "whole pieces")
	for i := range len(flood) / 1024 {
		require.Equal(r.t, fmt.Sprintf("%1023d\n", i), flood[i<<10:(i+1)<<10])
	}
}

// A cancel's grace period reaches the program, with the promised signal, and its last
// words arrive.
func cancelledRemotely(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 60_000, 20_000, "trap:700"))
	box := r.boxOf(id)
	began := time.Now()
	r.cancel(id)
	f.wait().proven()
	require.GreaterOrEqual(r.t, time.Since(began), 700*time.Millisecond)
	require.Equal(r.t, wire.Cancelled, f.result.Outcome, "%s", f.raw)
	require.Equal(r.t, 0, *f.result.ExitCode)
	require.Equal(r.t, "saved\n", string(f.stdout))
	require.Regexp(r.t, `^grace_ms=(19|20)\d\d\d$`, r.calls(box, createostest.DeleteProcess)[0].Query)
	return f
}

func wallRemotely(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "kept", 400, 100, "lines:3", "forever")).wait().proven()
	require.Equal(r.t, wire.TimedOut, f.result.Outcome, "%s", f.raw)
	require.Equal(r.t, "SIGTERM", f.result.Signal.Name)
	stdout, stderr := lines(id, 3)
	require.Equal(r.t, []string{stdout, stderr}, []string{string(f.stdout), string(f.stderr)})
	return f
}

// Silence is no sign of death: longer than a stream may be silent, without heartbeats.
func quiet(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "default", 60_000, 200, "lines:2", "await:"+id, "lines:2", "exit:4"))
	box := r.boxOf(id)
	require.Eventually(r.t, func() bool { return len(r.calls(box, createostest.Connect)) > 1 }, patience, 20*time.Millisecond)
	r.guests.open(id)
	f.wait().exited(4)
	stdout, _ := lines(id, 2)
	require.Equal(r.t, stdout+stdout, string(f.stdout))
	return f
}

// A child that outlives its program is ended, with proof, and is not the program's end.
func leftover(r *remote, id string) *followed {
	f := r.submit(id, r.guest(id, "kept", 60_000, 200, "leave", "exit:6"))
	f.wait().exited(6)
	return f
}

// streams is what can be wrong with an output stream; one job at a time, since nobody
// knows the sandbox before it is connected.
func (r *remote) streams(t *testing.T) {
	const n = 17
	run := func(r *remote, id string) *followed {
		return r.submit(id, r.guest(id, "default", 20_000, 200, fmt.Sprintf("lines:%d", n), "exit:3")).wait()
	}
	whole := func(f *followed) {
		f.t.Helper()
		stdout, stderr := lines(f.id, n)
		require.Equal(f.t, []string{stdout, stderr}, []string{string(f.stdout), string(f.stderr)})
		require.False(f.t, f.result.Output.Truncated, "%s", f.raw)
	}
	for name, c := range map[string]struct {
		script func(r *remote)
		check  func(f *followed)
	}{
		"ends-without-an-exit": {
			func(r *remote) {
				r.next(createostest.Connect, createostest.EndStream().After(8), createostest.EndStream(), createostest.NoExit())
			},
			func(f *followed) { whole(f.exited(3)) },
		},
		"never-has-an-exit": {
			func(r *remote) {
				r.api.Script(createostest.Rule{Op: createostest.Connect, Times: -1, Then: []createostest.Action{createostest.NoExit()}})
			},
			func(f *followed) { whole(f.exited(3)) },
		},
		"exit-without-a-code": {
			func(r *remote) { r.next(createostest.Connect, createostest.Line(`{"type":"exit"}`).After(8)) },
			func(f *followed) {
				require.Equal(f.t, wire.Lost, f.result.Outcome, "%s", f.raw)
				require.Nil(f.t, f.result.ExitCode, "%s", f.raw)
			},
		},
		"process-unknown": {
			func(r *remote) {
				r.next(createostest.Connect, createostest.EndStream().After(8))
				for _, op := range []createostest.Op{createostest.Connect, createostest.GetProcess, createostest.Wait, createostest.DeleteProcess} {
					nth := 1
					if op == createostest.Connect {
						nth = 2
					}
					r.api.Script(createostest.Rule{Op: op, Nth: nth, Times: -1, Then: []createostest.Action{createostest.Status(http.StatusNotFound, "")}})
				}
			},
			func(f *followed) {
				require.Equal(f.t, wire.Lost, f.result.Outcome, "%s", f.raw)
				require.Nil(f.t, f.result.ExitCode, "%s", f.raw)
				require.True(f.t, f.result.Output.Truncated && f.result.Output.Unread != nil, "%s", f.raw)
			},
		},
		"replays-from-the-start": {
			func(r *remote) {
				for i, after := range []int{6, 10, 15} {
					then := []createostest.Action{createostest.Duplicate(1), createostest.ResetMidLine().After(after)}
					r.api.Script(createostest.Rule{Op: createostest.Connect, Nth: i + 1, Then: then})
				}
			},
			func(f *followed) { whole(f.exited(3)) },
		},
		"falls-silent": {
			func(r *remote) { r.next(createostest.Connect, createostest.Silent(time.Minute).After(8)) },
			func(f *followed) {
				whole(f.exited(3))
				require.Less(f.t, f.result.Usage.WallMS, int64(20_000), "not only when its time is over: %s", f.raw)
			},
		},
		"gap": {
			func(r *remote) { r.next(createostest.Connect, createostest.Gap(9)) },
			func(f *followed) {
				require.Equal(f.t, wire.Lost, f.result.Outcome, "%s", f.raw)
				require.True(f.t, f.result.Output.Truncated && f.result.Output.Unread != nil, "%s", f.raw)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.with(t)
			c.script(r)
			defer r.api.Unscript()
			f := run(r, name)
			stdout, stderr := lines(name, n)
			require.Equal(t, stdout[:len(f.stdout)], string(f.stdout), "%s", f.raw)
			require.Equal(t, stderr[:len(f.stderr)], string(f.stderr), "%s", f.raw)
			require.Equal(t, 1, r.guests.runs(name))
			f.proven()
			c.check(f)
		})
	}
}

// silence is a stream that says nothing any more, without an end, because its sandbox
// has gone.
func (r *remote) silence(t *testing.T) {
	t.Run("falls-silent-and-is-gone", func(t *testing.T) {
		r := r.with(t)
		r.next(createostest.Connect, createostest.Silent(time.Minute).After(5))
		defer r.api.Unscript()
		f := r.submit("silence", r.guest("silence", "default", 60_000, 200, "lines:2", "forever"))
		require.NoError(t, r.api.Vanish(r.boxOf("silence")))
		began := time.Now()
		f.wait().proven()
		require.Less(t, time.Since(began), 20*time.Second, "not only when its time is over")
		require.Equal(t, []any{wire.Lost, wire.ReasonSandboxGone}, []any{f.result.Outcome, f.result.Reason}, "%s", f.raw)
		require.Nil(t, f.result.ExitCode)
		r.settled(f)
	})
}

// creations is what can be wrong with the making of a sandbox: it is not the job's
// failure, takes none of its time, and leaves nothing.
func (r *remote) creations(t *testing.T) {
	tried := 0
	for name, then := range map[string][]createostest.Action{
		"slow":             {createostest.Delay(900 * time.Millisecond)},
		"502-after":        {createostest.CommitThen(http.StatusBadGateway, "")},
		"cut-after":        {createostest.CutAfterCommit()},
		"malformed-id":     {createostest.MalformedID("")},
		"no-json":          {createostest.CommitThen(http.StatusCreated, "<html>")},
		"hangs":            {createostest.Hang()},
		"404":              {createostest.Status(http.StatusNotFound, "")},
		"429":              {createostest.RetryAfter(http.StatusTooManyRequests, time.Second)},
		"500":              {createostest.Status(http.StatusInternalServerError, "")},
		"402-no-credit":    {createostest.Status(http.StatusPaymentRequired, "")},
		"redirect":         {createostest.Redirect("http://192.0.2.1/")},
		"late-by-a-little": {createostest.Delay(4500 * time.Millisecond)}, // than createos_timeout
	} {
		if !soaking && (tried == 4 || name == "hangs" || name == "late-by-a-little") {
			continue // others each time, and none that waits for the time-out
		}
		tried++
		t.Run(name, func(t *testing.T) {
			r := r.with(t)
			made := len(r.api.Sandboxes())
			r.next(createostest.CreateSandbox, then...)
			defer r.api.Unscript()
			f := r.submit(name, r.guest(name, "default", 800, 200, "lines:2", "exit:1")).wait().exited(1)
			require.Equal(t, 1, f.result.Attempt)
			require.Equal(t, 1, r.guests.runs(name))
			switch name {
			case "502-after", "cut-after", "malformed-id", "no-json":
				// Nobody was told of one of the two: it is found by its name.
				boxes := r.api.Sandboxes()[made:]
				require.Len(t, boxes, 2)
				require.Equal(t, "sallyport-"+f.result.Lease.ID, boxes[1].Name)
				require.Eventually(t, func() bool {
					return r.ledger()["exec.lease.createos."+strings.TrimPrefix(boxes[0].Name, "sallyport-")] == string(wire.Gone)
				},
					patience, 20*time.Millisecond)
				r.ends(boxes[0].ID)
			}
			if name == "slow" {
				require.GreaterOrEqual(t, f.result.Timing.LeaseMS, 900.0)
				require.Less(t, f.result.Timing.RunMS, 800.0)
			}
		})
	}
	// Output that the service has thrown away is declared, and the exit code counts where
	// the program had ended before anybody noticed.
	t.Run("evicted", func(t *testing.T) {
		r := r.with(t)
		r.next(createostest.Connect, createostest.Silent(700*time.Millisecond).After(5))
		defer r.api.Unscript()
		f, begun := r.submitWatched("evicted", r.guest("evicted", "default", 20_000, 200, "lines:2", "await:evicted", "flood:4096", "exit:7"),
			func(ev wire.Event) bool { return ev.Type == wire.EventStderr })
		r.within(begun, "no output comes")
		r.guests.open("evicted")
		r.cutShort(f.wait().exited(7), 2)
	})
	t.Run("refused", func(t *testing.T) {
		r := r.with(t)
		r.next(createostest.CreateSandbox, createostest.Status(http.StatusBadRequest, ""))
		f := r.submit("refused", r.guest("refused", "default", 1000, 200, "exit:1")).wait()
		require.Equal(t, []any{wire.NotStarted, wire.ReasonNoSandbox, wire.StartNo}, []any{f.result.Outcome, f.result.Reason, f.result.StartState}, "%s", f.raw)
		require.Nil(t, f.result.ExitCode)
	})
}
