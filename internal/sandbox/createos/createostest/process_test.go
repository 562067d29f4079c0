package createostest_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// gate is a start script as a provider sends it: it waits for a file, then becomes
// the program.
const gate = `while [ ! -e /tmp/gate ]; do sleep 0.01; done
cd -- '/sallyport-workspace' || exit
exec env 'A=it'\''s' 'sh' '-c' 'echo "$A $PWD"; cat; echo err >&2; exit 7' </tmp/stdin`

func TestStartScriptBehindAGate(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	c.exec(box, "mkdir -p /sallyport-workspace")
	c.do("PUT", files(box, "/tmp/stdin"), "in\n").ok()
	p := c.shell(box, gate)
	e := c.connect(p, 0)
	view := c.do("GET", p, nil).ok()
	require.Subset(t, view, object{"state": "running", "kind": "process", "leader_exited": false, "tree_exited": false, "signal": "", "cmd": "/bin/bash"})
	require.Equal(t, object{"oldest_seq": 0.0, "newest_seq": 0.0, "bytes": 0.0}, view["output"])
	c.do("POST", p+"/stdin/close", nil).ok()
	c.do("POST", p+"/stdin/close", nil).refused(http.StatusConflict)
	c.do("PUT", files(box, "/tmp/gate"), "").ok()
	stdout, stderr, exit, all := e.rest()
	require.Equal(t, "it's /sallyport-workspace\nin\n", stdout)
	require.Equal(t, "err\n", stderr)
	require.NotNil(t, exit)
	require.Equal(t, 7, *exit.ExitCode)
	for i, f := range all[:len(all)-1] {
		require.Equal(t, int64(i+1), f.Seq, "one sequence for both streams")
	}
	require.Equal(t, "exit", all[len(all)-1].Type)
	require.Zero(t, all[len(all)-1].Seq)

	view = c.do("GET", p+"/wait?scope=tree&timeout_ms=5000", nil).ok()
	require.Subset(t, view, object{"state": "exited", "exit_code": 7.0, "leader_exited": true, "tree_exited": true})
	require.Contains(t, view, "finished_at")
	list, isList := c.do("GET", box+"/processes", nil).ok()["processes"].([]any)
	require.True(t, isList)
	require.Len(t, list, 1, "the record stays")
	// Everything again, and from the middle.
	again, _, _, _ := c.connect(p, 0).rest()
	require.Equal(t, stdout, again)
	_, _, exit, all = c.connect(p, int64(len(all)-1)).rest()
	require.Len(t, all, 1)
	require.NotNil(t, exit)
	c.do("GET", p+"/connect?after=99", nil).refused(http.StatusBadRequest)
	c.do("DELETE", p+"?grace_ms=1000", nil).ok()
	c.do("DELETE", p+"?grace_ms=1000", nil).refused(http.StatusNotFound)
	c.do("GET", p+"/connect?after=0", nil).refused(http.StatusNotFound)
}

func TestProcessIsChecked(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox(object{"envs": object{"OK": ""}})
	for name, body := range map[string]object{
		"no command":   {"args": []string{"x"}},
		"undeclared":   {"cmd": "true", "env": object{"NOT": "x"}},
		"not there":    {"cmd": "/no/such"},
		"not in PATH":  {"cmd": "no-such-program"},
		"no directory": {"cmd": "true", "cwd": "/no/such"},
		"a directory":  {"cmd": "/tmp"},
		"a NUL":        {"cmd": "true", "args": []string{"a\x00b"}},
		"a terminal":   {"cmd": "true", "pty": object{"rows": 1, "cols": 1}},
		"a surprise":   {"cmd": "true", "surprise": 1},
	} {
		t.Run(name, func(*testing.T) { c.do("POST", box+"/processes", body).refused(http.StatusBadRequest) })
	}
	c.do("POST", box+"/processes", object{"cmd": "true", "env": object{"OK": "x"}, "cwd": "/tmp"}).ok()
	require.Len(t, c.Sandboxes()[0].Processes, 1, "what was refused left nothing")
	for _, path := range []string{"", "/connect", "/wait"} {
		c.do("GET", box+"/processes/proc-none"+path, nil).refused(http.StatusNotFound)
	}
	c.do("POST", box+"/processes/proc-none/stdin/close", nil).refused(http.StatusNotFound)
	for _, call := range c.Calls(createostest.CreateProcess) {
		require.Equal(t, call.Status == http.StatusOK, call.Created != "")
	}
}

// TestTree: tree_exited is about the whole tree, whatever session it went to.
func TestTree(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.shell(box, "(trap '' TERM HUP; setsid setsid sleep 600 >/dev/null 2>&1 </dev/null &) ; exit 3")
	view := c.do("GET", p+"/wait?scope=leader&timeout_ms=20000", nil).ok()
	require.Subset(t, view, object{"state": "exited", "exit_code": 3.0, "leader_exited": true, "tree_exited": false})
	_, _, exit, _ := c.connect(p, 0).rest()
	require.NotNil(t, exit, "the exit frame is about the leader")
	require.Equal(t, http.StatusRequestTimeout, c.do("GET", p+"/wait?scope=tree&timeout_ms=100", nil).code)
	require.Len(t, c.LiveProcesses(), 1)
	// It ends at KILL, not at TERM.
	begin := time.Now()
	view = c.do("DELETE", p+"?grace_ms=300", nil).ok()
	require.Equal(t, true, view["tree_exited"])
	require.GreaterOrEqual(t, time.Since(begin), 300*time.Millisecond)
	require.Empty(t, c.LiveProcesses())

	// One that ends by itself is gone, too.
	p = c.shell(box, "setsid sleep 0.2 & exit 0")
	c.do("GET", p+"/wait?scope=tree&timeout_ms=20000", nil).ok()
	require.Equal(t, true, c.do("GET", p, nil).ok()["tree_exited"])
}

func TestDeleteIsGentleFirst(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.shell(box, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done")
	e := c.connect(p, 0)
	require.Equal(t, "data", e.next().Type)
	view := c.do("DELETE", p+"?grace_ms=20000", nil).ok()
	require.Subset(t, view, object{"exit_code": 5.0, "tree_exited": true, "state": "exited"})
	stdout, _, exit, _ := e.rest()
	require.Equal(t, "bye\n", stdout)
	require.Equal(t, 5, *exit.ExitCode)

	// Without grace it is force at once, for all; a fork bomb has no chance either.
	p = c.shell(box, "trap '' TERM; for i in 1 2 3 4 5 6 7 8; do (trap '' TERM; setsid sh -c 'while :; do sleep 600 & wait; done' &); done; echo ready; wait; sleep 600")
	require.Equal(t, "data", c.connect(p, 0).next().Type)
	view = c.do("DELETE", p, nil).ok()
	require.Subset(t, view, object{"signal": "SIGKILL", "tree_exited": true})
	require.NotContains(t, view, "exit_code")
	require.Empty(t, c.LiveProcesses())
}

func TestSignals(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.shell(box, "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done")
	e := c.connect(p, 0)
	require.Equal(t, "data", e.next().Type)
	c.do("POST", p+"/signal", object{"signal": "SIGUSR1"}).ok()
	data, err := base64.StdEncoding.DecodeString(e.next().Data)
	require.NoError(t, err)
	require.Equal(t, "usr1\n", string(data))
	c.do("POST", p+"/signal", object{"signal": "SIGSTOP"}).refused(http.StatusBadRequest)
	c.do("POST", p+"/signal", object{"signal": "SIGHUP"}).ok()
	_, _, exit, _ := e.rest()
	require.Nil(t, exit.ExitCode)
	require.Equal(t, "SIGHUP", exit.Signal)
	c.do("POST", p+"/signal", object{"signal": "SIGTERM"}).refused(http.StatusConflict)
	c.do("POST", p+"/resize", object{"rows": 1, "cols": 1}).refused(http.StatusConflict)
}

func TestInput(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.start(box, "cat")
	input := func(data []byte) answer {
		return c.do("POST", p+"/input", object{"data_base64": base64.StdEncoding.EncodeToString(data)})
	}
	e := c.connect(p, 0)
	want := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	require.InDelta(t, 1, input(want).ok()["input_seq"], 0)
	require.InDelta(t, 2, input([]byte("end")).ok()["input_seq"], 0)
	input(append(want, 'x')).refused(http.StatusBadRequest)
	c.do("POST", p+"/input", object{"data_base64": "!"}).refused(http.StatusBadRequest)
	c.do("POST", p+"/stdin/close", object{}).ok()
	input([]byte("late")).refused(http.StatusConflict)
	stdout, _, exit, _ := e.rest()
	require.Equal(t, string(want)+"end", stdout)
	require.Zero(t, *exit.ExitCode)
	input([]byte("late")).refused(http.StatusConflict)

	// A program that does not read holds the call until its client goes.
	p = c.start(box, "sleep", "600")
	c.http.Timeout = 300 * time.Millisecond
	require.Error(t, input(want).err)
}

// TestJournal: the newest output is kept, the oldest is lost, and both are said.
func TestJournal(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{JournalBytes: 10 << 10})
	box := c.sandbox()
	p := c.start(box, "x", "flood:30", "forever")
	eventually(t, "all is written", func() bool {
		output := c.output(p)
		return output["newest_seq"] == 30.0 && output["oldest_seq"] == 21.0 && output["bytes"] == 30720.0
	})
	data, isObject := c.do("GET", p+"/connect?after=19", nil).refused(http.StatusGone).(object)
	require.True(t, isObject)
	require.Equal(t, "output_offset_expired", data["code"])
	require.InDelta(t, 21, data["oldest_available_seq"], 0)
	e := c.connect(p, 20)
	for seq := int64(21); seq <= 30; seq++ {
		require.Equal(t, seq, e.next().Seq)
	}
	c.do("DELETE", p, nil).ok()
	require.Equal(t, "exit", e.next().Type)
	require.Nil(t, e.next())
}

// TestEvictionUnderAReader: a stream whose place was evicted says so in a frame.
func TestEvictionUnderAReader(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{JournalBytes: 10 << 10})
	box := c.sandbox()
	c.Script(createostest.Rule{Op: createostest.Connect, Then: []createostest.Action{createostest.Silent(300 * time.Millisecond)}})
	p := c.start(box, "x", "await:/go", "flood:30")
	e := c.connect(p, 0)
	c.do("PUT", files(box, "/go"), "").ok()
	_, _, exit, all := e.rest()
	require.Nil(t, exit)
	require.Len(t, all, 1)
	require.Equal(t, "error", all[0].Type)
	require.Equal(t, "output_offset_expired", all[0].Error)
	require.Equal(t, int64(21), all[0].Oldest)
}

// TestHoldBack: where it is asked for, a process waits for whoever follows it.
func TestHoldBack(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{JournalBytes: 64 << 10, HoldBack: true})
	box := c.sandbox()
	p := c.shell(box, "while [ ! -e /go ]; do sleep 0.01; done; head -c 4000000 /dev/zero; echo end")
	e := c.connect(p, 0)
	c.do("PUT", files(box, "/go"), "").ok()
	held := func() bool { return c.output(p)["bytes"] != 0.0 }
	eventually(t, "it has begun", held)
	require.Equal(t, http.StatusRequestTimeout, c.do("GET", p+"/wait?timeout_ms=200", nil).code)
	stdout, _, exit, _ := e.rest()
	require.Len(t, stdout, 4000004)
	require.NotNil(t, exit)

	// A DELETE is not held up.
	c.do("DELETE", p, nil).ok()
	c.exec(box, "rm /go")
	p = c.shell(box, "while [ ! -e /go ]; do sleep 0.01; done; cat /dev/zero")
	e = c.connect(p, 0)
	c.do("PUT", files(box, "/go"), "").ok()
	eventually(t, "it has begun", held)
	require.Equal(t, true, c.do("DELETE", p, nil).ok()["tree_exited"])
	e.close()
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{Heartbeat: 10 * time.Millisecond})
	e := c.connect(c.start(c.sandbox(), "x", "forever"), 0)
	for range 3 {
		require.Equal(t, "heartbeat", e.next().Type)
	}
}

// TestExitComesAfterTheOutput: what the leader wrote is before its exit frame, and a
// child that keeps writing does not hold the frame up.
func TestExitComesAfterTheOutput(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	for range 20 {
		stdout, stderr, exit, _ := c.connect(c.shell(box, "echo one; echo two >&2; printf end"), 0).rest()
		require.Equal(t, []string{"one\nend", "two\n"}, []string{stdout, stderr})
		require.NotNil(t, exit)
	}
	p := c.shell(box, "yes & exit 4")
	begin := time.Now()
	c.do("GET", p+"/wait?timeout_ms=20000", nil).ok()
	require.Less(t, time.Since(begin), 15*time.Second)
	require.Equal(t, true, c.do("DELETE", p, nil).ok()["tree_exited"])
}

// TestPauseStops: what is paused does nothing, and goes on afterwards.
func TestPauseStops(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	p := c.shell(box, "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; [ -e /tmp/stop ] && exit 9; done")
	eventually(t, "it counts", func() bool { return c.do("GET", files(box, "/tmp/count"), nil).code == http.StatusOK })
	c.do("POST", box+"/pause", nil).ok()
	for _, path := range []string{p, p + "/connect", box + "/processes", files(box, "/tmp/count")} {
		c.do("GET", path, nil).refused(http.StatusConflict)
	}
	stopped := func() (states []string) {
		for _, l := range c.LiveProcesses() {
			states = append(states, state(t, l.PID))
		}
		return states
	}
	require.Len(t, stopped(), 1)
	eventually(t, "it is stopped", func() bool { return strings.Trim(strings.Join(stopped(), ""), "T") == "" })
	c.do("POST", box+"/resume", nil).ok()
	c.do("PUT", files(box, "/tmp/stop"), "").ok()
	require.InDelta(t, 9, c.do("GET", p+"/wait?timeout_ms=20000", nil).ok()["exit_code"], 0)

	// A paused sandbox is destroyed like any other.
	c.shell(box, "sleep 600")
	c.do("POST", box+"/pause", nil).ok()
	c.do("DELETE", box, nil).ok()
	eventually(t, "it is gone", func() bool { return len(c.LiveProcesses()) == 0 && !c.Sandboxes()[0].Live() })
}

// TestSeveralAtOnce: processes of one sandbox see each other's files and processes.
func TestSeveralAtOnce(t *testing.T) {
	t.Parallel()
	c := withProcesses(t, createostest.Config{})
	box := c.sandbox()
	var all []string
	for i := range 5 {
		all = append(all, c.shell(box, fmt.Sprintf("while [ ! -e /tmp/go%d ]; do sleep 0.01; done; exit %d", i, i)))
	}
	// More for as long as a login shell forks.
	eventually(t, "five", func() bool { return c.exec(box, "pgrep -cf '[t]mp/go[0-9]'")["stdout"] == "5\n" })
	for i := 4; i >= 0; i-- {
		c.exec(box, fmt.Sprintf("touch /tmp/go%d", i))
		require.InDelta(t, i, c.do("GET", all[i]+"/wait?scope=tree&timeout_ms=20000", nil).ok()["exit_code"], 0)
	}
}
