package createos_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// What a hostile request is made of arrives as it is, and only where it belongs.
func TestHostileArguments(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	hostile := []string{`$(touch /tmp/pwned)`, "`id`", `'; touch /tmp/pwned; '`, `"`, `\`, "a\nb", "", "-n", "*", "☃"}
	value := `$(touch /tmp/pwned)'"; x`
	process := sandbox.Process{
		Argv: append([]string{"/bin/sh", "-c", `printf '%s|' "$@"; echo; echo "$V"; pwd; cat; test ! -e /tmp/pwned && echo safe`, "sh"}, hostile...),
		Env:  []string{"PATH=/usr/bin:/bin", "V=" + value}, Cwd: "/tmp/with 'space $(x)", Stdin: strings.NewReader("top secret input\n"),
	}
	_, _ = r.run(box, shell(`mkdir -p "/tmp/with 'space \$(x)"`))
	require.NoError(t, box.Reset(r.ctx()))
	process.Files = nil
	run, sink := r.start(box, sandbox.Process{Argv: []string{"/bin/sh", "-c", "true"}})
	_, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.Empty(t, sink.out())
	require.NoError(t, box.Reset(r.ctx()))
	r.ForgetCalls()
	process.Cwd = ""
	end, sink := r.run(box, process)
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Equal(t, strings.Join(hostile, "|")+"|\n"+value+"\n/workspace\ntop secret input\nsafe\n", sink.out())
	creation := body(t, r.Calls(createostest.CreateProcess)[0])
	require.NotContains(t, creation, "env", "the API's field is not used")
	require.NotContains(t, fmt.Sprint(creation), "top secret")
	require.Zero(t, r.count(createostest.Input), "what is small is uploaded")
	r.destroy(box)
}

func TestACwdWithHostileName(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	const dir = "with 'space $(x)"
	process := sandbox.Process{Argv: []string{"/bin/pwd"}, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/workspace/" + dir}
	process.Files = []sandbox.File{{Path: dir + "/file", Content: strings.NewReader("x")}}
	_, sink := r.run(box, process)
	require.Equal(t, "/workspace/"+dir+"\n", sink.out())
	r.destroy(box)
}

func TestBadProcessesAreRefusedWithoutACall(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.ForgetCalls()
	for name, p := range map[string]sandbox.Process{
		"no argv":          {},
		"empty program":    {Argv: []string{""}},
		"NUL in argv":      {Argv: []string{"a\x00"}},
		"no UTF-8":         {Argv: []string{"a", "\xff"}},
		"= in program":     {Argv: []string{"a=b"}},
		"; in env name":    {Argv: []string{"a"}, Env: []string{"A;B=c"}},
		"digit first":      {Argv: []string{"a"}, Env: []string{"1A=c"}},
		"NUL in env":       {Argv: []string{"a"}, Env: []string{"A=\x00"}},
		"no UTF-8 in env":  {Argv: []string{"a"}, Env: []string{"A=\xff"}},
		"no env value":     {Argv: []string{"a"}, Env: []string{"A"}},
		"NUL in cwd":       {Argv: []string{"a"}, Cwd: "/\x00"},
		"a limit":          {Argv: []string{"a"}, Limits: sandbox.Limits{Pids: 1}},
		"escaping file":    {Argv: []string{"a"}, Files: []sandbox.File{{Path: "../x", Content: strings.NewReader("")}}},
		"absolute file":    {Argv: []string{"a"}, Files: []sandbox.File{{Path: "/etc/passwd", Content: strings.NewReader("")}}},
		"no UTF-8 in file": {Argv: []string{"a"}, Files: []sandbox.File{{Path: "\xff", Content: strings.NewReader("")}}},
	} {
		_, err := box.Prepare(r.ctx(), p, &recorder{})
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err), name)
	}
	_, err := box.Prepare(r.ctx(), shell("true"), nil)
	r.kind(sandbox.Refused, err)
	require.Empty(t, r.Calls())
	r.destroy(box)
}

// TestReplay: what is torn apart by connections comes together, byte for byte.
func TestReplay(t *testing.T) {
	t.Parallel()
	for name, then := range map[string][]createostest.Action{
		"reset mid-line":     {createostest.ResetMidLine().After(2)},
		"end between frames": {createostest.EndStream().After(2)},
		"cut body":           {createostest.CutBody(300)},
		"cut wire":           {createostest.CutWire(500)},
		"duplicates":         {createostest.Duplicate(1).After(3)},
		"heartbeats":         {createostest.Line(`{"type":"heartbeat"}`), createostest.Line(""), createostest.Line(`{"type":"heartbeat"}`).After(3)},
		"no exit frame":      {createostest.NoExit()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.Script(createostest.Rule{Op: createostest.Connect, Then: then})
			// The three bytes of a character leave one by one, and what is no UTF-8 does, too.
			end, sink := r.run(box, shell(`printf '\342'; sleep 0.02; printf '\202'; sleep 0.02; printf '\254'; echo warning >&2; sleep 0.02; printf '\377\000\342'; exit 7`))
			require.Equal(t, &sandbox.Exit{Code: 7}, end.Exit)
			require.Equal(t, "€\xff\x00\xe2", sink.out())
			require.Equal(t, "warning\n", sink.err())
			require.Nil(t, end.OutputLost)
			require.Equal(t, 1, r.count(createostest.CreateProcess))
			if name == "reset mid-line" {
				require.Equal(t, []string{"after=0", "after=2"}, queries(r.Calls(createostest.Connect)))
			}
			r.destroy(box)
		})
	}
}

func queries(calls []createostest.Call) (q []string) {
	for _, c := range calls {
		q = append(q, c.Query)
	}
	return q
}

// TestBrokenStreams: whoever breaks the protocol is not read on, the process is ended, and
// what was delivered before stays.
func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	const ready = 3 // frames at least: the process waits, and its mark on each stream
	for name, c := range map[string]struct {
		then createostest.Action
		kind sandbox.Kind
		want string
	}{
		"gap":            {createostest.Line(data(9, "x")).After(ready), sandbox.Protocol, "has a gap"},
		"bad JSON":       {createostest.BadJSON().After(ready), sandbox.Protocol, "invalid frame"},
		"unknown type":   {createostest.UnknownType().After(ready), sandbox.Protocol, "unknown event"},
		"no status":      {createostest.Line(`{"type":"exit"}`).After(ready), sandbox.Protocol, "without an exit status"},
		"pty":            {createostest.Line(strings.Replace(data(4, "x"), "stdout", "pty", 1)).After(ready), sandbox.Protocol, "invalid output"},
		"bad base64":     {createostest.Line(strings.Replace(data(4, "x"), `eA==`, `eA=`, 1)).After(ready), sandbox.Protocol, "invalid output"},
		"bad sequence":   {createostest.Line(data(0, "x")).After(ready), sandbox.Protocol, "invalid sequence"},
		"oversize":       {createostest.Line(data(4, strings.Repeat("x", 1<<20))).After(ready), sandbox.Protocol, "too large"},
		"endless line":   {createostest.Line(strings.Repeat("x", 3<<20)).After(ready), sandbox.Protocol, "too large"},
		"error":          {createostest.ErrorFrame("boom, ask bob@example.com").After(ready), sandbox.Protocol, "reported an error"},
		"evicted":        {createostest.ErrorFrame("output_offset_expired").After(ready), sandbox.Gone, "evicted"},
		"half, then end": {createostest.Line(`{"type":"da`).After(ready), sandbox.Protocol, "invalid frame"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.on(createostest.Connect, c.then)
			run, sink := r.start(box, shell("sleep 0.1; echo ready; sleep 1000"))
			end, err := run.Wait(r.ctx())
			r.kind(c.kind, err)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "bob")
			require.True(t, end.Proof.Proven, "it was ended, with proof")
			require.Equal(t, sandbox.EvidenceTreeExited, end.Proof.Evidence[0].Kind)
			require.Nil(t, end.Exit, "the end that we made is not the program's own")
			require.Equal(t, sandbox.StartedYes, end.Started)
			require.True(t, strings.HasPrefix("ready\n", sink.out()), "delivered is delivered")
			require.True(t, c.kind != sandbox.Gone || end.OutputLost != nil)
			if end.OutputLost != nil {
				require.Equal(t, uint64(4), end.OutputLost.First)
			}
			require.Contains(t, r.Calls(createostest.DeleteProcess)[0].Query, "grace_ms=")
			require.Equal(t, 1, r.count(createostest.CreateProcess))
			require.Equal(t, 1, r.count(createostest.Connect))
			require.Empty(t, r.LiveProcesses())
			r.destroy(box)
		})
	}
}

func data(seq int, text string) string {
	return fmt.Sprintf(`{"type":"data","seq":%d,"stream":"stdout","data_base64":%q}`, seq, base64.StdEncoding.EncodeToString([]byte(text)))
}

// A half line at a clean end is a broken stream; before a reset it is replayed.
func TestAHalfLineAtACleanEndIsFatal(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.on(createostest.Connect, createostest.HalfLine().After(3))
	run, _ := r.start(box, shell("while :; do echo ready; sleep 0.05; done"))
	_, err := run.Wait(r.ctx())
	r.kind(sandbox.Protocol, err)
	require.ErrorContains(t, err, "invalid frame")
	r.destroy(box)
}

// Output that was evicted is declared, and where the program had ended by itself its exit
// code still counts.
func TestEvictedOutputIsDeclared(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.ReconnectDelay = time.Second })
	box := r.create()
	r.on(createostest.Connect, createostest.EndStream().After(3))
	r.Script(createostest.Rule{Op: createostest.Connect, Nth: 2, Then: []createostest.Action{createostest.Evict(6)}})
	run, sink := r.start(box, shell("sleep 0.1; echo ready; sleep 0.03; echo lost; sleep 0.01; echo lost; sleep 0.01; echo more; exit 3"))
	end, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.True(t, end.Proof.Proven)
	require.Equal(t, &sandbox.Exit{Code: 3}, end.Exit)
	require.True(t, strings.HasPrefix("ready\n", sink.out()), sink.out())
	require.Equal(t, uint64(4), end.OutputLost.First)
	require.GreaterOrEqual(t, end.OutputLost.Last, uint64(5))
	require.Equal(t, "output was evicted before it could be read", end.OutputLost.Reason)
	r.destroy(box)
}

func TestEvictionOfARunningProcessEndsIt(t *testing.T) {
	t.Parallel()
	for name, rules := range map[string][]createostest.Rule{
		"410": {
			{Op: createostest.Connect, Then: []createostest.Action{createostest.EndStream().After(3)}},
			{Op: createostest.Connect, Nth: 2, Times: -1, Then: []createostest.Action{createostest.Status(410, "")}},
		},
		"frame": {{Op: createostest.Connect, Then: []createostest.Action{createostest.ErrorFrame("output_offset_expired").After(3)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.Script(rules...)
			run, _ := r.start(box, shell("sleep 0.1; echo ready; sleep 1000"))
			end, err := run.Wait(r.ctx())
			r.kind(sandbox.Gone, err)
			require.ErrorContains(t, err, "evicted")
			require.True(t, end.Proof.Proven)
			require.Nil(t, end.Exit)
			require.Equal(t, uint64(4), end.OutputLost.First)
			require.Equal(t, 1, r.count(createostest.DeleteProcess))
			r.destroy(box)
		})
	}
}

// One reconnection too many, and the end is learned from the process's state: then nothing
// is lost that the journal has.
func TestTheEndIsRecoveredWithoutAStream(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]createostest.Action{
		"no exit frame": createostest.NoExit(),
		"refused":       createostest.Status(503, ""),
		"too many":      createostest.RetryAfter(429, 0),
		"cut":           createostest.CutBefore(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.deafen(1, 3, then)
			run, sink := r.start(box, shell("echo one; sleep 0.05; echo two; exit 5"))
			end, err := run.Wait(r.ctx())
			require.NoError(t, err)
			require.Equal(t, &sandbox.Exit{Code: 5}, end.Exit)
			require.Equal(t, "one\ntwo\n", sink.out())
			require.Nil(t, end.OutputLost)
			require.Equal(t, sandbox.EvidenceTreeExited, end.Proof.Evidence[0].Kind)
			r.destroy(box)
		})
	}
}

func prepare(r *rig, box sandbox.Sandbox, p sandbox.Process) (sandbox.Run, *recorder, error) {
	r.Helper()
	sink := &recorder{}
	run, err := box.Prepare(r.ctx(), p, sink)
	return run, sink, err
}

// deafen ends the first output stream after some frames, and does something to the next
// connections.
func (r *rig) deafen(frames, times int, then createostest.Action) {
	r.on(createostest.Connect, createostest.EndStream().After(frames))
	r.Script(createostest.Rule{Op: createostest.Connect, Nth: 2, Times: times, Then: []createostest.Action{then}})
}

// The budget of reconnections is renewed by progress, and has a cap all the same.
func TestReconnectsEnd(t *testing.T) {
	t.Parallel()
	t.Run("without progress", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		box := r.create()
		r.deafen(3, -1, createostest.Status(500, ""))
		r.always(createostest.Wait, createostest.Status(500, ""))
		run, _ := r.start(box, shell("sleep 0.1; echo ready; sleep 1000"))
		end, err := run.Wait(r.ctx())
		r.kind(sandbox.Unavailable, err)
		require.True(t, end.Proof.Proven)
		require.Nil(t, end.Exit)
		require.Equal(t, 1+3, r.count(createostest.Connect), "three more")
		require.Equal(t, 1, r.count(createostest.DeleteProcess))
		r.destroy(box)
	})
	t.Run("with progress", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		box := r.create()
		r.always(createostest.Connect, createostest.EndStream().After(1))
		end, sink := r.run(box, shell("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.02; done"))
		require.Equal(t, &sandbox.Exit{}, end.Exit)
		require.Equal(t, "1\n2\n3\n4\n5\n6\n7\n8\n9\n", sink.out())
		require.Greater(t, r.count(createostest.Connect), 8)
		r.destroy(box)
	})
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		r := setup(t, func(_ *serverConfig, c *config) { c.ReconnectDelay = time.Millisecond })
		box := r.create()
		r.always(createostest.Connect, createostest.EndStream().After(1))
		run, _ := r.start(box, shell("while :; do echo x; sleep 0.002; done"))
		end, err := run.Wait(r.ctx())
		r.kind(sandbox.Protocol, err)
		require.ErrorContains(t, err, "ended without an exit status")
		require.True(t, end.Proof.Proven)
		require.LessOrEqual(t, r.count(createostest.Connect), 101)
		r.destroy(box)
	})
}

// What the journal has more than could be read is declared.
func TestOutputThatCannotBeReplayedIsDeclared(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.deafen(1, -1, createostest.Status(503, ""))
	run, sink := r.start(box, shell("echo one; exit 5"))
	end, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.Equal(t, &sandbox.Exit{Code: 5}, end.Exit)
	require.True(t, end.Proof.Proven)
	require.NotNil(t, end.OutputLost)
	require.GreaterOrEqual(t, end.OutputLost.Last, end.OutputLost.First)
	require.NotEmpty(t, end.OutputLost.Reason)
	require.Empty(t, sink.out())
	require.NotEqual(t, sandbox.StartedNo, end.Started)
	r.destroy(box)
}

func TestAnInvalidJournalIsNoEnd(t *testing.T) {
	t.Parallel()
	for _, journal := range []string{`{}`, `{"newest_seq":0}`, `{"newest_seq":-1}`, `{"newest_seq":1.5}`, `null`, `"x"`} {
		r := setup(t)
		box := r.create()
		r.deafen(3, -1, createostest.Status(503, ""))
		run, _, err := prepare(r, box, shell("sleep 0.1; echo x"))
		require.NoError(t, err)
		id := r.Sandboxes()[0].Processes[0]
		r.on(createostest.Wait, createostest.Status(200, fmt.Sprintf(`{"status":"success","data":{"process_id":%q,"leader_exited":true,"tree_exited":true,"exit_code":0,"output":%s}}`, id, journal)))
		require.NoError(t, run.Open(r.ctx()))
		_, err = run.Wait(r.ctx())
		r.kind(sandbox.Protocol, err)
		require.ErrorContains(t, err, "journal is invalid", journal)
		r.destroy(box)
	}
}

// The exit frame is not believed about the output: what the journal has more is read.
func TestAnExitThatComesTooEarly(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.deafen(1, 1, createostest.ExitEarly())
	end, sink := r.run(box, shell("echo head; sleep 0.05; echo tail; exit 2"))
	require.Equal(t, &sandbox.Exit{Code: 2}, end.Exit)
	require.Nil(t, end.OutputLost)
	require.Equal(t, "head\ntail\n", sink.out())
	require.Equal(t, 3, r.count(createostest.Connect))
	r.destroy(box)
}

// A silent stream leads to a look at the process, and to another connection.
func TestASilentStreamIsLookedInto(t *testing.T) {
	t.Parallel()
	r := setup(t, func(s *serverConfig, c *config) { c.IdleTimeout, s.Heartbeat = 150*time.Millisecond, time.Hour })
	box := r.create()
	end, sink := r.run(box, shell("echo one; sleep 0.5; echo two"))
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Equal(t, "one\ntwo\n", sink.out())
	require.GreaterOrEqual(t, r.count(createostest.GetProcess), 2)
	require.Greater(t, r.count(createostest.Connect), 2)
	// Heartbeats are life.
	r = setup(t, func(s *serverConfig, c *config) { c.IdleTimeout, s.Heartbeat = time.Second, 100*time.Millisecond })
	box2 := r.create()
	r.run(box2, shell("sleep 1.5"))
	require.Equal(t, 1, r.count(createostest.Connect))
	r.destroy(box2)
}

// A run that is out of time is ended; what it wrote before stays, and nothing is sent with
// a context that is over.
func TestTerminateKeepsWhatWasDelivered(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, sink := r.running(box)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := run.Wait(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	proof, err := run.Terminate(r.ctx(), time.Second)
	require.NoError(t, err)
	require.True(t, proof.Proven)
	end, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.Equal(t, &sandbox.Exit{Signal: 15}, end.Exit)
	require.Nil(t, end.OutputLost)
	require.Equal(t, "ready\n", sink.out())
	calls := r.Calls()
	require.Equal(t, 1, r.count(createostest.DeleteProcess))
	require.Equal(t, createostest.DeleteProcess, calls[len(calls)-1].Op, "it is the last call")
	r.destroy(box)
}

func TestAnUnprovenEndSaysSo(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]createostest.Action{
		"503": createostest.Status(503, ""), "tree not exited": createostest.TreeExitedFalse(), "hang": createostest.Hang(),
		"cut": createostest.CutBefore(), "no JSON": createostest.CommitThen(200, "{"), "401": createostest.Status(401, ""),
		"no word": createostest.Status(200, `{"status":"success","data":{"process_id":"x"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(_ *serverConfig, c *config) { c.CleanupTimeout = 300 * time.Millisecond })
			box := r.create()
			run, _ := r.running(box)
			r.always(createostest.DeleteProcess, then)
			r.on(createostest.Connect, createostest.ErrorFrame("x"))
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			proof, err := run.Terminate(ctx, 0)
			r.kind(sandbox.Ambiguous, err)
			require.ErrorContains(t, err, "termination of the process is unconfirmed")
			require.False(t, proof.Proven)
			require.Error(t, box.Reset(r.ctx()), "it is not used again")
			_, err = box.Prepare(r.ctx(), shell("true"), &recorder{})
			require.Error(t, err)
			require.Zero(t, r.count(createostest.PauseSandbox))
			r.destroy(box)
			end, err := run.Wait(r.ctx())
			require.NoError(t, err)
			require.True(t, end.Proof.Proven, "the sandbox's end is the run's")
		})
	}
}

// An error frame and an end that cannot be confirmed: the doubt is what counts.
func TestTheDoubtReplacesTheError(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.CleanupTimeout = 100 * time.Millisecond })
	box := r.create()
	r.on(createostest.Connect, createostest.ErrorFrame("x").After(3))
	r.always(createostest.DeleteProcess, createostest.Status(503, ""))
	run, _ := r.start(box, shell("sleep 0.1; echo ready; sleep 1000"))
	end, err := run.Wait(r.ctx())
	r.kind(sandbox.Ambiguous, err)
	require.ErrorContains(t, err, "termination of the process is unconfirmed")
	require.False(t, end.Proof.Proven)
	require.Nil(t, end.Exit)
	r.destroy(box)
}

func TestAProcessThatIsNotFoundIsGone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, _ := r.running(box)
	r.on(createostest.DeleteProcess, createostest.Status(404, ""))
	proof, err := run.Terminate(r.ctx(), 0)
	require.NoError(t, err)
	require.Equal(t, sandbox.EvidenceNotFound, proof.Evidence[0].Kind)
	r.destroy(box)
}

func TestSignalsAreExits(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	end, _ := r.run(box, shell("kill -USR1 $$"))
	require.Equal(t, &sandbox.Exit{Signal: 10}, end.Exit)
	r.destroy(box)
}

func TestStdin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		input  string
		piped  bool
	}{
		"empty":                {"cat; echo end", "", false},
		"small":                {"cat; echo end", "x\n", false},
		"unread":               {"echo end", "x\n", false},
		"large":                {"wc -c; echo end", strings.Repeat("x", 9<<20), true},
		"large, read a little": {"head -c 2; echo; echo end", strings.Repeat("x", 9<<20), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			process := shell(c.script + "; ls -A /tmp/.sallyport")
			process.Stdin = strings.NewReader(c.input)
			end, sink := r.run(box, process)
			require.Equal(t, &sandbox.Exit{}, end.Exit)
			require.True(t, strings.HasSuffix(sink.out(), "end\nmarker\n"), "%q: nothing of ours is left when it starts", sink.out())
			require.Equal(t, c.piped, r.count(createostest.Input) > 0)
			for _, call := range r.Calls(createostest.Input) {
				require.LessOrEqual(t, call.BodyBytes, int64(360<<10), "at most 256 KiB a call")
			}
			if name == "large" {
				require.Contains(t, sink.out(), fmt.Sprint(9<<20))
			}
			r.destroy(box)
		})
	}
}

func TestStdinCloseThatFails(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.on(createostest.CloseStdin, createostest.Status(409, ""))
	end, _ := r.run(box, shell("cat"))
	require.Equal(t, &sandbox.Exit{}, end.Exit, "it was closed before")
	require.NoError(t, box.Reset(r.ctx()))
	r.on(createostest.CloseStdin, createostest.Status(500, ""))
	process := shell("cat")
	process.Stdin = strings.NewReader("x")
	_, err := box.Prepare(r.ctx(), process, &recorder{})
	r.kind(sandbox.Ambiguous, err)
	require.Eventually(t, func() bool { return len(r.LiveProcesses()) == 0 }, patience, time.Millisecond, "the process is ended")
	_, err = box.Prepare(r.ctx(), process, &recorder{})
	r.kind(sandbox.Unavailable, err)
	r.destroy(box)
}

// Uploaded input is removed although its process came to nothing.
func TestStagedInputIsRemoved(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	process := shell("true")
	process.Stdin = strings.NewReader("secret")
	run, _, err := prepare(r, box, process)
	require.NoError(t, err)
	_, err = run.Terminate(r.ctx(), 0)
	require.NoError(t, err)
	end, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.Equal(t, sandbox.StartedNo, end.Started)
	require.Contains(t, string(r.Calls(createostest.Exec)[1].Body), "/bin/rm")
	r.destroy(box)
}

func TestTheGate(t *testing.T) {
	t.Parallel()
	t.Run("is attached before it opens", func(t *testing.T) {
		t.Parallel()
		r := setup(t)
		box := r.create()
		r.ForgetCalls()
		r.run(box, shell("true"))
		require.Equal(t, []createostest.Op{
			createostest.CreateProcess, createostest.CloseStdin, createostest.Connect, createostest.PutFile, createostest.Wait,
		}, sortedStart(r.ops()))
		r.destroy(box)
	})
	t.Run("gives up", func(t *testing.T) {
		t.Parallel()
		r := setup(t, func(_ *serverConfig, c *config) { c.GateTimeout = time.Second })
		box := r.create()
		run, sink, err := prepare(r, box, shell("echo never"))
		require.NoError(t, err)
		end, err := run.Wait(r.ctx())
		require.NoError(t, err)
		require.True(t, end.Proof.Proven)
		require.Equal(t, sandbox.StartedNo, end.Started)
		r.kind(sandbox.Refused, run.Open(r.ctx()))
		require.Empty(t, sink.out())
		r.destroy(box)
	})
	for name, c := range map[string]struct {
		rule createostest.Rule
		kind sandbox.Kind // 0: it opens
	}{
		"lost answer":    {createostest.Rule{Op: createostest.PutFile, Then: []createostest.Action{createostest.CutAfterCommit()}}, 0},
		"502, then good": {createostest.Rule{Op: createostest.PutFile, Times: 2, Then: []createostest.Action{createostest.Status(502, "")}}, 0},
		"in doubt":       {createostest.Rule{Op: createostest.PutFile, Times: -1, Then: []createostest.Action{createostest.Status(502, "")}}, sandbox.Ambiguous},
		"refused":        {createostest.Rule{Op: createostest.PutFile, Times: -1, Then: []createostest.Action{createostest.Status(400, "")}}, sandbox.Refused},
		"too many":       {createostest.Rule{Op: createostest.PutFile, Times: -1, Then: []createostest.Action{createostest.RetryAfter(429, 0)}}, sandbox.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			run, sink, err := prepare(r, box, shell("echo ran"))
			require.NoError(t, err)
			r.Script(c.rule)
			err = run.Open(r.ctx())
			if c.kind == 0 {
				require.NoError(t, err)
				end, err := run.Wait(r.ctx())
				require.NoError(t, err)
				require.Equal(t, sandbox.StartedYes, end.Started)
				require.Equal(t, "ran\n", sink.out())
				r.destroy(box)
				return
			}
			r.kind(c.kind, err)
			_, err = run.Terminate(r.ctx(), 0)
			require.NoError(t, err)
			end, err := run.Wait(r.ctx())
			require.NoError(t, err)
			require.Equal(t, sandbox.StartedNo, end.Started, "all output is there, without the program's mark")
			require.Nil(t, end.Exit)
			r.destroy(box)
		})
	}
}

// sortedStart puts the two calls that go out side by side in order.
func sortedStart(ops []createostest.Op) []createostest.Op {
	if len(ops) > 2 && ops[1] == createostest.Connect {
		ops[1], ops[2] = ops[2], ops[1]
	}
	return ops
}

func TestLeftoverIsEndedWithProof(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	end, _ := r.run(box, shell("setsid sleep 1000 >/dev/null 2>&1 & exit 4"))
	require.Equal(t, &sandbox.Exit{Code: 4}, end.Exit)
	require.True(t, end.Leftover)
	require.Equal(t, 1, r.count(createostest.DeleteProcess))
	require.Empty(t, r.LiveProcesses())
	r.destroy(box)
}

// An exit frame is no proof: without the tree's end the run is in doubt.
func TestAnExitIsNoProof(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.CleanupTimeout = 200 * time.Millisecond })
	box := r.create()
	r.always(createostest.Wait, createostest.Status(408, ""))
	r.always(createostest.DeleteProcess, createostest.TreeExitedFalse())
	run, sink := r.start(box, shell("echo done"))
	end, err := run.Wait(r.ctx())
	r.kind(sandbox.Ambiguous, err)
	require.False(t, end.Proof.Proven)
	require.Equal(t, &sandbox.Exit{}, end.Exit, "it is known all the same")
	require.Equal(t, "done\n", sink.out())
	require.Error(t, box.Reset(r.ctx()))
	r.destroy(box)
}

func TestConcurrentTerminates(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, _ := r.running(box)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if _, err := run.Terminate(r.ctx(), time.Hour); err != nil {
				t.Errorf("terminate: %v", err)
			}
		})
		all.Go(func() {
			if _, err := box.Destroy(r.ctx()); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	all.Wait()
	require.False(t, r.Sandboxes()[0].Live())
}

func TestAStdinSourceThatFailsIsAnEnd(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	process := shell("cat")
	process.Stdin = iotest.ErrReader(errTold)
	end, sink := r.run(box, process)
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Empty(t, sink.out())
	r.destroy(box)
}

// The service's words stand in no error, and its redirects lead nowhere.
func TestErrorBodiesStayOut(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 404, 409, 500, 503, 301} {
		var keys []string
		p := answers(t, func(w http.ResponseWriter, r *http.Request) {
			keys = append(keys, r.Header.Get("X-Api-Key"))
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(status)
			say(w, `{"status":"fail","data":"the quota of bob@example.com"}`)
		})
		_, err := p.Create(t.Context(), sandbox.Spec{Lease: lease()})
		require.ErrorContains(t, err, fmt.Sprintf("HTTP %d to the sandbox lifecycle", status))
		require.NotContains(t, err.Error(), "bob")
		require.NotContains(t, err.Error(), "127.0.0.1")
		require.NotContains(t, err.Error(), testKey)
		require.Equal(t, []string{testKey}, keys)
	}
	p := answers(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, err := p.Create(t.Context(), sandbox.Spec{Lease: lease()})
	require.ErrorContains(t, err, "the connection failed")
	require.NotContains(t, err.Error(), "127.0.0.1")
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	p := answers(t, func(w http.ResponseWriter, _ *http.Request) {
		say(w, `{"status":"success","data":{"x":"`)
		for range 9 << 10 {
			say(w, strings.Repeat("x", 1<<10))
		}
		say(w, `"}}`)
	})
	_, err := p.Inventory(t.Context())
	require.ErrorContains(t, err, "too large")
	require.Equal(t, sandbox.Protocol, sandbox.KindOf(err))
}

func TestADeadlineIncludesTheBody(t *testing.T) {
	t.Parallel()
	p := answers(t, func(w http.ResponseWriter, r *http.Request) {
		say(w, `{"status":`)
		w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // it is one
		<-r.Context().Done()
	}, func(c *config) { c.RequestTimeout = 50 * time.Millisecond })
	_, err := p.Create(t.Context(), sandbox.Spec{Lease: lease()})
	require.ErrorContains(t, err, "no answer in time")
	require.Equal(t, sandbox.Ambiguous, sandbox.KindOf(err))
}

func TestRetryAfterIsForEverybody(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.on(createostest.ListSandboxes, createostest.RetryAfter(429, time.Second))
	begin := time.Now()
	_, err := r.p.Inventory(r.ctx())
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), time.Second)
}

// A connection without a body is no stream.
func TestAnEmptyStreamIsNoStream(t *testing.T) {
	t.Parallel()
	for _, then := range []createostest.Action{createostest.Status(204, ""), createostest.Status(200, " ")} {
		r := setup(t)
		box := r.create()
		r.always(createostest.Connect, then)
		_, err := box.Prepare(r.ctx(), shell("true"), &recorder{})
		require.Error(t, err)
		require.NotEqual(t, sandbox.Refused, sandbox.KindOf(err))
		require.Eventually(t, func() bool { return len(r.LiveProcesses()) == 0 }, patience, time.Millisecond)
		r.destroy(box)
	}
}
