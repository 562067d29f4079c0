package createostest_test

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

func rule(op createostest.Op, then ...createostest.Action) createostest.Rule {
	return createostest.Rule{Op: op, Then: then}
}

// cut says that the connection was reset, or ended before the answer.
func cut(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
}

func TestRulesMatch(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	box := c.sandbox()
	codes := func(n int) (got []int) {
		for range n {
			got = append(got, c.do("GET", box, nil).code)
		}
		return got
	}
	c.Script(createostest.Rule{Op: createostest.GetSandbox, Nth: 2, Times: 2, Then: []createostest.Action{createostest.Status(503, "")}})
	c.do("GET", "/v1/sandboxes", nil).ok()
	require.Equal(t, []int{200, 503, 503, 200}, codes(4))
	c.Script(createostest.Rule{Path: "/v1/sandboxes/*", Method: "GET", Times: -1, Then: []createostest.Action{createostest.Status(500, "")}})
	require.Equal(t, []int{500, 500}, codes(2))
	c.do("GET", box+"/processes", nil).ok()
	c.do("PATCH", box, object{}).ok()
	c.Unscript()
	require.Equal(t, []int{200}, codes(1))
	c.Script(createostest.Rule{When: func(call createostest.Call) bool { return call.Query == "x=1" }, Then: []createostest.Action{createostest.Status(418, "tea")}})
	require.Equal(t, []int{200}, codes(1))
	got := c.do("GET", box+"?x=1", nil)
	require.Equal(t, 418, got.code)
	require.Equal(t, "tea", string(got.body))
	require.Panics(t, func() { c.Script(createostest.Rule{Path: "["}) })
	var scripted, processed int
	for _, call := range c.Calls(createostest.GetSandbox) {
		require.NotEqual(t, call.Scripted, call.Processed)
		if call.Scripted {
			scripted++
		} else {
			processed++
		}
	}
	require.Equal(t, []int{5, 4}, []int{scripted, processed})
}

// TestAnswersInstead: the call is not processed.
func TestAnswersInstead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then  createostest.Action
		check func(t *testing.T, a answer)
	}{
		"status":       {createostest.Status(502, "<html>"), func(t *testing.T, a answer) { require.Equal(t, "<html>", string(a.body)) }},
		"envelope":     {createostest.Status(402, ""), func(_ *testing.T, a answer) { a.refused(402) }},
		"too many":     {createostest.RetryAfter(429, 1500*time.Millisecond), func(t *testing.T, a answer) { a.refused(429); require.Equal(t, "2", a.header.Get("Retry-After")) }},
		"no capacity":  {createostest.RetryAfter(503, 0), func(t *testing.T, a answer) { a.refused(503); require.Equal(t, "0", a.header.Get("Retry-After")) }},
		"redirect":     {createostest.Redirect("http://elsewhere.invalid/"), func(t *testing.T, a answer) { require.Equal(t, "http://elsewhere.invalid/", a.header.Get("Location")) }},
		"reset":        {createostest.CutBefore(), func(t *testing.T, a answer) { cut(t, a.err) }},
		"hang":         {createostest.Hang(), func(t *testing.T, a answer) { require.ErrorContains(t, a.err, "Timeout") }},
		"hang at once": {createostest.Status(200, ""), func(_ *testing.T, a answer) { a.ok() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := setup(t, createostest.Config{})
			c.http.Timeout = 2 * time.Second
			c.Script(rule(createostest.CreateSandbox, test.then))
			test.check(t, c.do("POST", "/v1/sandboxes", object{"shape": shape}))
			require.Empty(t, c.Sandboxes())
			require.False(t, c.Calls()[0].Processed)
		})
	}
}

// TestAnswersOtherwise: the call is processed, and its client does not know.
func TestAnswersOtherwise(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then  createostest.Action
		check func(t *testing.T, a answer)
	}{
		"no answer":    {createostest.CutAfterCommit(), func(t *testing.T, a answer) { cut(t, a.err) }},
		"never":        {createostest.HangAfterCommit(), func(t *testing.T, a answer) { require.ErrorContains(t, a.err, "Timeout") }},
		"502":          {createostest.CommitThen(502, ""), func(_ *testing.T, a answer) { a.refused(502) }},
		"no json":      {createostest.CommitThen(200, "{"), func(t *testing.T, a answer) { require.Equal(t, "{", string(a.body)) }},
		"half a body":  {createostest.CutBody(10), func(t *testing.T, a answer) { cut(t, a.err); require.Len(t, a.body, 10) }},
		"no body":      {createostest.CutBody(0), func(t *testing.T, a answer) { cut(t, a.err); require.Empty(t, a.body) }},
		"no byte":      {createostest.CutWire(0), func(t *testing.T, a answer) { cut(t, a.err); require.Zero(t, a.code) }},
		"half a line":  {createostest.CutWire(10), func(t *testing.T, a answer) { require.Error(t, a.err); require.Zero(t, a.code) }},
		"a bad id":     {createostest.MalformedID(""), func(t *testing.T, a answer) { require.Equal(t, "../escape", a.ok()["id"]) }},
		"another id":   {createostest.MalformedID("sb-other"), func(t *testing.T, a answer) { require.Equal(t, "sb-other", a.ok()["id"]) }},
		"slow":         {createostest.SlowBody(2000), func(_ *testing.T, a answer) { a.ok() }},
		"late for one": {createostest.Delay(3 * time.Second), func(t *testing.T, a answer) { require.ErrorContains(t, a.err, "Timeout") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := setup(t, createostest.Config{})
			c.http.Timeout = 2 * time.Second
			c.Script(rule(createostest.CreateSandbox, test.then))
			begin := time.Now()
			test.check(t, c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": "one"}))
			if name == "slow" {
				require.Greater(t, time.Since(begin), 200*time.Millisecond)
			}
			eventually(t, "it is there", func() bool { return len(c.Sandboxes()) == 1 && c.Sandboxes()[0].Status == "running" })
			require.Equal(t, c.Sandboxes()[0].ID, c.Calls(createostest.CreateSandbox)[0].Created)
			c.do("POST", "/v1/sandboxes", object{"shape": shape, "name": "one"}).refused(http.StatusConflict)
		})
	}
}

// TestDeletesThatLie: what is said and what is true.
func TestDeletesThatLie(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	box := c.sandbox()
	p := c.start(box, "x", "forever")
	c.Script(rule(createostest.DeleteProcess, createostest.LieDeleted()), rule(createostest.DeleteSandbox, createostest.LieDeleted()))
	require.Equal(t, true, c.do("DELETE", p, nil).ok()["tree_exited"])
	require.Equal(t, false, c.do("GET", p, nil).ok()["tree_exited"])
	require.Equal(t, "destroyed", c.do("DELETE", box, nil).ok()["status"])
	require.Equal(t, "running", c.do("GET", box, nil).ok()["status"])
	require.Len(t, c.LiveProcesses(), 1)

	c.Script(rule(createostest.DeleteProcess, createostest.RefuseDelete()), rule(createostest.DeleteSandbox, createostest.RefuseDelete()))
	c.do("DELETE", p, nil).refused(http.StatusConflict)
	c.do("DELETE", box, nil).refused(http.StatusConflict)
	require.Len(t, c.LiveProcesses(), 1)

	c.Script(createostest.Rule{Op: createostest.DeleteProcess, Times: 2, Then: []createostest.Action{createostest.TreeExitedFalse()}})
	require.Equal(t, false, c.do("DELETE", p, nil).ok()["tree_exited"])
	require.Empty(t, c.LiveProcesses())
	require.Equal(t, false, c.do("DELETE", p, nil).ok()["tree_exited"])
	require.Equal(t, true, c.do("DELETE", p, nil).ok()["tree_exited"])
	c.do("DELETE", p, nil).refused(http.StatusNotFound)

	c.Script(rule(createostest.CreateProcess, createostest.MalformedID("a/b")))
	require.Equal(t, "a/b", c.do("POST", box+"/processes", object{"cmd": "x", "args": []string{"forever"}}).ok()["process_id"])
	require.Len(t, c.LiveProcesses(), 1)
}

// TestStreamFaults: each on a process that wrote three pieces and exited with 5.
func TestStreamFaults(t *testing.T) {
	t.Parallel()
	data := func(seq int, text string) string {
		return `{"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(text)) + `","seq":` + string(rune('0'+seq)) + `,"stream":"stdout","type":"data"}`
	}
	one, two, three, exit := data(1, "one"), data(2, "two"), data(3, "three"), `{"exit_code":5,"type":"exit"}`
	big := `{"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 1<<20))) + `","seq":1,"stream":"stdout","type":"data"}`
	for name, test := range map[string]struct {
		then  createostest.Action
		after int64
		want  []string
		reset bool
	}{
		"nothing":          {createostest.Delay(0), 0, []string{one, two, three, exit}, false},
		"half line":        {createostest.HalfLine().After(1), 0, []string{one, two[:len(two)/2]}, false},
		"half first line":  {createostest.HalfLine(), 0, []string{one[:len(one)/2]}, false},
		"reset mid line":   {createostest.ResetMidLine().After(2), 0, []string{one, two, three[:len(three)/2]}, true},
		"clean end":        {createostest.EndStream().After(2), 0, []string{one, two}, false},
		"gap":              {createostest.Gap(2), 0, []string{one, three, exit}, false},
		"duplicate":        {createostest.Duplicate(1), 2, []string{one, two, three, exit}, false},
		"duplicate inside": {createostest.Duplicate(2).After(3), 0, []string{one, two, three, two, three, exit}, false},
		"restart":          {createostest.RestartCounters().After(2), 0, []string{one, two, data(1, "three"), exit}, false},
		"exit early":       {createostest.ExitEarly(), 0, []string{one, two, exit, three}, false},
		"no exit":          {createostest.NoExit(), 0, []string{one, two, three}, false},
		"bad base64":       {createostest.BadBase64().After(2), 0, []string{one, two, `{"data_base64":"!not-base64","seq":3,"stream":"stdout","type":"data"}`, exit}, false},
		"bad json":         {createostest.BadJSON().After(1), 0, []string{one, `{"type":"data","seq":`, two, three, exit}, false},
		"unknown type":     {createostest.UnknownType().After(3), 0, []string{one, two, three, `{"type":"surprise"}`, exit}, false},
		"error frame":      {createostest.ErrorFrame("internal").After(1), 0, []string{one, `{"error":"internal","type":"error"}`}, false},
		"big frame":        {createostest.BigFrame(), 0, []string{big, two, three, exit}, false},
		"cut body":         {createostest.CutBody(len(one) + 1 + 5), 0, []string{one, two[:5]}, true},
		"evicted":          {createostest.Evict(1), 1, []string{two, three, exit}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := setup(t, createostest.Config{})
			p := c.start(c.sandbox(), "x", "out:one", "out:two", "out:three", "exit:5")
			c.do("GET", p+"/wait", nil).ok()
			c.Script(rule(createostest.Connect, test.then))
			lines, err := c.connect(p, test.after).raw()
			if test.reset {
				cut(t, err)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, test.want, lines)
			c.Unscript()
			// The process is as it was.
			if name != "evicted" {
				lines, err = c.connect(p, 0).raw()
				require.NoError(t, err)
				require.Equal(t, []string{one, two, three, exit}, lines)
			} else {
				c.do("GET", p+"/connect?after=0", nil).refused(http.StatusGone)
			}
		})
	}
}

func TestSilence(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{Heartbeat: 5 * time.Millisecond})
	p := c.start(c.sandbox(), "x", "out:one", "await:/go", "out:two")
	c.Script(rule(createostest.Connect, createostest.Silent(300*time.Millisecond).After(1)))
	e := c.connect(p, 0)
	require.Equal(t, "data", e.next().Type)
	begin := time.Now()
	require.Equal(t, "heartbeat", e.next().Type)
	require.Greater(t, time.Since(begin), 200*time.Millisecond)
}

// TestCutAtEveryByte: every byte of an answer is a place where it can be cut, and what
// came before it arrives.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	// Otherwise the client repeats by itself what it asked on a connection that was
	// kept alive.
	c.http.Transport = &http.Transport{DisableKeepAlives: true}
	p := c.start(c.sandbox(), "x", "out:one", "err:two", "exit:5")
	c.do("GET", p+"/wait", nil).ok()
	c.connect(p, 0).rest()
	whole := c.Calls(createostest.Connect)[0].WireBytes
	require.Greater(t, whole, int64(200))
	for n := range whole {
		c.Script(rule(createostest.Connect, createostest.CutWire(n)))
		got := c.do("GET", p+"/connect?after=0", nil)
		require.Error(t, got.err, "%d", n)
		calls := c.Calls(createostest.Connect)
		require.Equal(t, n, calls[len(calls)-1].WireBytes)
		require.True(t, strings.HasPrefix(`{"data_base64":"b25l","seq":1,"stream":"stdout","type":"data"}`+"\n"+
			`{"data_base64":"dHdv","seq":2,"stream":"stderr","type":"data"}`+"\n"+`{"exit_code":5,"type":"exit"}`+"\n", string(got.body)))
	}
	c.Unscript()
	c.connect(p, 0).rest()
}

// TestCutSession: one cut in a whole conversation, wherever it falls.
func TestCutSession(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	talk := func() (cuts int) {
		box := c.do("POST", "/v1/sandboxes", object{"shape": shape})
		if box.err != nil {
			return 1
		}
		path := "/v1/sandboxes/" + text(box.ok()["id"])
		for _, a := range []answer{c.do("GET", path, nil), c.do("DELETE", path, nil)} {
			if a.err != nil {
				cuts++
			}
		}
		return cuts
	}
	before := c.WireBytes()
	require.Zero(t, talk())
	whole := c.WireBytes() - before
	for n := int64(0); n < whole; n += 7 {
		before := c.WireBytes()
		c.CutSession(n)
		// A client repeats an idempotent request by itself where its connection, kept
		// alive, was cut before the first byte of the answer.
		require.LessOrEqual(t, talk(), 1)
		require.GreaterOrEqual(t, c.WireBytes()-before, n)
	}
}

// TestHandler: without a listener of its own, a cut is an end.
func TestHandlerAlone(t *testing.T) {
	t.Parallel()
	s, err := createostest.New(createostest.Config{APIKey: key, Backend: createostest.Programs(program)})
	require.NoError(t, err)
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: time.Minute}
	listener, url := listen(t)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	s.Script(rule("", createostest.CutBefore()))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), "POST", url+"/v1/sandboxes", nil)
	require.NoError(t, err)
	_, err = client.Do(request) //nolint:bodyclose // there is none
	cut(t, err)
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
	require.NoError(t, s.Close())
}

// TestCloseEndsWhatHangs: nothing that a script or a client holds keeps the server.
func TestCloseEndsWhatHangs(t *testing.T) {
	t.Parallel()
	c := setup(t, createostest.Config{})
	box := c.sandbox()
	p := c.start(box, "x", "leave", "forever")
	c.Script(rule(createostest.GetSandbox, createostest.Hang()), rule(createostest.PatchSandbox, createostest.HangAfterCommit()),
		rule(createostest.GetFile, createostest.Delay(time.Hour)))
	answers := make(chan answer, 6)
	for _, call := range [][2]string{
		{"GET", box}, {"PATCH", box}, {"GET", files(box, "/x")}, {"GET", p + "/connect"}, {"GET", p + "/wait?timeout_ms=600000"},
	} {
		go func() { answers <- c.do(call[0], call[1], nil) }()
	}
	go func() {
		answers <- c.do("POST", box+"/exec", object{"cmd": "x", "args": []string{"forever"}})
	}()
	eventually(t, "all wait", func() bool { return len(c.Calls()) == 2+6 && len(c.LiveProcesses()) == 2 })
	require.NoError(t, c.Close())
	for range 6 {
		a := <-answers
		require.True(t, a.err != nil || a.code == http.StatusServiceUnavailable, "%d %s", a.code, a.body)
	}
	require.Error(t, c.do("GET", box, nil).err)
}
