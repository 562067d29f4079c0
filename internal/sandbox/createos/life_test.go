package createos_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

type (
	serverConfig = createostest.Config
	config       = createos.Config
)

func TestCreateAsksForExactlyWhatIsSet(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) {
		c.Rootfs, c.Region, c.DiskBytes, c.Egress = "debian", "eu", 5<<30, []string{"example.com", "10.0.0.0/8"}
	})
	id := lease()
	box, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: id, Profile: "p"})
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"shape": "s-1vcpu-256mb", "rootfs": "debian", "region": "eu", "name": "sallyport-" + id, "disk_mib": 5120.0,
		"egress": []any{"example.com", "10.0.0.0/8"}, "ingress_enabled": false, "auto_pause_after_seconds": 600.0,
	}, body(t, r.Calls(createostest.CreateSandbox)[0]))
	h := box.Handle()
	require.Equal(t, map[string]string{"id": r.Sandboxes()[0].ID, "name": "sallyport-" + id}, h.Detail)
	require.NotContains(t, fmt.Sprint(h), testKey, "a handle holds no key")
	r.destroy(box)
	require.Equal(t, createostest.DeleteSandbox, r.Calls(createostest.DeleteSandbox)[0].Op)
}

// A sandbox that serves once neither pauses by itself nor is allowed anything.
func TestCreateOfWhatServesOnce(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.Reuse = false })
	id := lease()
	box, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: id, Root: "template-7"})
	require.NoError(t, err)
	require.Equal(t, map[string]any{
		"shape": "s-1vcpu-256mb", "rootfs": "template-7", "name": "sallyport-" + id, "egress": []any{"sallyport.invalid"}, "ingress_enabled": false,
	}, body(t, r.Calls(createostest.CreateSandbox)[0]))
	r.kind(sandbox.Refused, box.Reset(r.ctx()))
	r.destroy(box)
}

func TestBadSpecsAreRefusedWithoutACall(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, spec := range []sandbox.Spec{{}, {Lease: "a/b"}, {Lease: strings.Repeat("x", 65)}, {Lease: lease(), Network: "open"}} {
		_, err := r.p.Create(r.ctx(), spec)
		r.kind(sandbox.Refused, err)
	}
	require.Empty(t, r.Calls())
}

// TestReuseAcrossAPause is the whole life of a sandbox that is paused between its jobs.
func TestReuseAcrossAPause(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.PauseIdle = true })
	box := r.create()
	for range 2 {
		end, sink := r.run(box, shell("pwd; echo x >left; echo y >/tmp/left; ls -A /tmp"))
		require.Equal(t, &sandbox.Exit{}, end.Exit)
		require.Equal(t, "/workspace\n.sallyport\nleft\n", sink.out())
		require.NoError(t, box.Reset(r.ctx()))
		require.Equal(t, "paused", r.Sandboxes()[0].Status)
		require.Empty(t, r.Sandboxes()[0].Processes, "no record is left")
	}
	require.Len(t, r.Sandboxes(), 1)
	require.Equal(t, 2, r.count(createostest.PauseSandbox))
	require.Equal(t, 1, r.count(createostest.ResumeSandbox))
	r.destroy(box)
	require.False(t, r.Sandboxes()[0].Live())
}

func TestFailedSetUpDestroys(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]createostest.Action{
		"503":          createostest.Status(503, "overloaded, ask bob@example.com"),
		"exit status":  createostest.Status(200, `{"status":"success","data":{"result":{"stdout":"","stderr":"","exit_code":1},"exec_ms":1}}`),
		"no status":    createostest.Status(200, `{"status":"success","data":{"result":{"stdout":""}}}`),
		"no success":   createostest.Status(200, `{"status":"fail","data":{}}`),
		"no JSON":      createostest.Status(200, `<html>`),
		"lost":         createostest.CutAfterCommit(),
		"unauthorized": createostest.Status(401, ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.on(createostest.Exec, then)
			_, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: lease()})
			r.kind(sandbox.Unavailable, err)
			require.NotContains(t, err.Error(), "bob")
			if name == "503" {
				require.ErrorContains(t, err, "HTTP 503 to the workspace command")
			}
			require.Equal(t, 1, r.count(createostest.DeleteSandbox))
			require.False(t, r.Sandboxes()[0].Live())
		})
	}
}

func TestFailedSetUpWithoutCleanupIsAmbiguous(t *testing.T) {
	t.Parallel()
	r := setup(t)
	id := lease()
	r.on(createostest.Exec, createostest.Status(503, ""))
	r.Script(createostest.Rule{Op: createostest.DeleteSandbox, Times: 3, Then: []createostest.Action{createostest.Status(500, "")}})
	_, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: id})
	r.kind(sandbox.Ambiguous, err)
	require.ErrorContains(t, err, "the cleanup of sandbox "+r.Sandboxes()[0].ID+" is unconfirmed")
	// Its name is enough to destroy it.
	proof, err := r.p.Destroy(r.ctx(), sandbox.Handle{Provider: "createos", Host: r.p.Capabilities().Host, Lease: id})
	require.NoError(t, err)
	require.True(t, proof.Proven)
	require.False(t, r.Sandboxes()[0].Live())
}

func TestCreateKinds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		then createostest.Action
		kind sandbox.Kind
		made bool
	}{
		"bad request":        {createostest.Status(400, ""), sandbox.Refused, false},
		"unauthorized":       {createostest.Status(401, ""), sandbox.Unavailable, false},
		"no credit":          {createostest.Status(402, ""), sandbox.Unavailable, false},
		"no such service":    {createostest.Status(404, ""), sandbox.Unavailable, false},
		"proxy timeout":      {createostest.Status(408, ""), sandbox.Ambiguous, false},
		"name taken":         {createostest.Status(409, ""), sandbox.Refused, false},
		"too many":           {createostest.RetryAfter(429, 0), sandbox.Busy, false},
		"server error":       {createostest.Status(500, ""), sandbox.Ambiguous, false},
		"no capacity":        {createostest.RetryAfter(503, 0), sandbox.Ambiguous, false},
		"cut before":         {createostest.CutBefore(), sandbox.Ambiguous, false},
		"cut after":          {createostest.CutAfterCommit(), sandbox.Ambiguous, true},
		"bad gateway after":  {createostest.CommitThen(502, ""), sandbox.Ambiguous, true},
		"no JSON after":      {createostest.CommitThen(200, "ok"), sandbox.Protocol, true},
		"no success after":   {createostest.CommitThen(200, `{"status":"error","message":"x"}`), sandbox.Protocol, true},
		"malformed id":       {createostest.MalformedID(""), sandbox.Protocol, true},
		"half an answer":     {createostest.CutBody(10), sandbox.Ambiguous, true},
		"redirect":           {createostest.Redirect("http://127.0.0.1:1/"), sandbox.Unavailable, false},
		"no answer in time":  {createostest.HangAfterCommit(), sandbox.Ambiguous, true},
		"no answer and none": {createostest.Hang(), sandbox.Ambiguous, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(_ *serverConfig, c *config) {
				if strings.Contains(name, "no answer") {
					c.RequestTimeout = 100 * time.Millisecond
				}
			})
			id := lease()
			r.on(createostest.CreateSandbox, c.then)
			_, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: id})
			r.kind(c.kind, err)
			require.Equal(t, 1, r.count(createostest.CreateSandbox), "it is asked for once")
			require.Len(t, r.Sandboxes(), map[bool]int{true: 1}[c.made])
			if c.kind != sandbox.Ambiguous && c.kind != sandbox.Protocol {
				return
			}
			proof, err := r.p.Destroy(r.ctx(), sandbox.Handle{Provider: "createos", Host: r.p.Capabilities().Host, Lease: id})
			require.NoError(t, err)
			require.True(t, proof.Proven)
			for _, box := range r.Sandboxes() {
				require.False(t, box.Live())
			}
		})
	}
}

// A create call that waits for its turn and is cancelled has surely sent nothing.
func TestACancelledWaitForATurnIsNoDoubt(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) {
		c.Pacer = createos.NewPacer(time.Hour)
	})
	_, err := r.p.Inventory(r.ctx()) // takes the hour's turn
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = r.p.Create(ctx, sandbox.Spec{Lease: lease()})
	r.kind(sandbox.Unavailable, err)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Zero(t, r.count(createostest.CreateSandbox))
}

// An answer that comes too late for the second look is found by the next destroy, and by
// the sweep.
func TestALateSandboxIsInTheInventory(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.RequestTimeout = 200 * time.Millisecond })
	id := lease()
	r.on(createostest.CreateSandbox, createostest.Delay(2*time.Second))
	_, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: id})
	r.kind(sandbox.Ambiguous, err)
	_, err = r.p.Destroy(r.ctx(), sandbox.Handle{Provider: "createos", Host: r.p.Capabilities().Host, Lease: id})
	require.NoError(t, err)
	var found []sandbox.Handle
	require.Eventually(t, func() bool {
		found, err = r.p.Inventory(r.ctx())
		return err == nil && len(found) == 1
	}, patience, 5*time.Millisecond)
	require.Equal(t, id, found[0].Lease)
	_, err = r.p.Destroy(r.ctx(), found[0])
	require.NoError(t, err)
	require.False(t, r.Sandboxes()[0].Live())
}

func TestForeignHandlesAreRefusedWithoutACall(t *testing.T) {
	t.Parallel()
	r := setup(t)
	host := r.p.Capabilities().Host
	for _, h := range []sandbox.Handle{
		{Provider: "createos", Host: "createos-0123456789abcdef", Lease: lease()},
		{Provider: "other", Host: host, Lease: lease()},
		{Provider: "createos", Host: host},
		{Provider: "createos", Host: host, Lease: "../x"},
		{Provider: "createos", Host: host, Lease: lease(), Detail: map[string]string{"id": "../escape"}},
	} {
		_, err := r.p.Destroy(r.ctx(), h)
		r.kind(sandbox.Refused, err)
	}
	require.Empty(t, r.Calls())
}

// A record may name any sandbox of the account; only one that carries the lease's name is
// touched.
func TestDestroyTouchesOnlyWhatCarriesOurMark(t *testing.T) {
	t.Parallel()
	r := setup(t)
	id, err := r.Plant("", "precious")
	require.NoError(t, err)
	h := sandbox.Handle{Provider: "createos", Host: r.p.Capabilities().Host, Lease: lease(), Detail: map[string]string{"id": id}}
	_, err = r.p.Destroy(r.ctx(), h)
	r.kind(sandbox.Refused, err)
	require.True(t, r.Sandboxes()[0].Live())
	require.Zero(t, r.count(createostest.DeleteSandbox))
}

func TestDestroyIsAClaimUntilLookedAt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *serverConfig){
		"at once": func(*serverConfig) {},
		"later":   func(s *serverConfig) { s.Lag = 50 * time.Millisecond },
		"kept":    func(s *serverConfig) { s.KeepDestroyed = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(s *serverConfig, _ *config) { change(s) })
			box := r.create()
			r.on(createostest.DeleteSandbox, createostest.LieDeleted())
			proof, err := box.Destroy(r.ctx())
			require.NoError(t, err)
			require.True(t, proof.Proven)
			require.NotEmpty(t, proof.Evidence)
			require.False(t, r.Sandboxes()[0].Live())
			require.GreaterOrEqual(t, r.count(createostest.DeleteSandbox), 2, "the first one was a lie")
		})
	}
}

func TestDestroyFailsHonestly(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.always(createostest.DeleteSandbox, createostest.Status(503, ""))
	proof, err := box.Destroy(r.ctx())
	r.kind(sandbox.Ambiguous, err)
	require.False(t, proof.Proven)
	_, err = box.Prepare(r.ctx(), shell("true"), &recorder{})
	r.kind(sandbox.Unavailable, err)
	require.ErrorContains(t, err, "its destruction is unconfirmed")
	require.Error(t, box.Reset(r.ctx()))
	r.Unscript()
	r.on(createostest.DeleteSandbox, createostest.RefuseDelete()) // another transition goes on
	r.destroy(box)
	require.False(t, r.Sandboxes()[0].Live())
	r.destroy(box)
}

func TestDestroyThatNeverEndsIsNoProof(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.always(createostest.DeleteSandbox, createostest.LieDeleted())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	proof, err := box.Destroy(ctx)
	require.Error(t, err) // of what kind depends on the call that the time ended in
	require.False(t, proof.Proven)
	r.Unscript()
	r.destroy(box)
}

func TestInventoryReadsAllPages(t *testing.T) {
	t.Parallel()
	r := setup(t, func(s *serverConfig, _ *config) { s.Backend = nothing() })
	var ours []string
	for i := range 230 {
		name := fmt.Sprintf("other-%d", i)
		if i%50 == 7 {
			name = fmt.Sprintf("sallyport-lease%d", i)
			ours = append(ours, fmt.Sprintf("lease%d", i))
		}
		_, err := r.Plant("", name)
		require.NoError(t, err)
	}
	handles, err := r.p.Inventory(r.ctx())
	require.NoError(t, err)
	var got []string
	for _, h := range handles {
		require.Equal(t, "createos", h.Provider)
		require.Equal(t, "sallyport-"+h.Lease, h.Detail["name"])
		got = append(got, h.Lease)
	}
	require.ElementsMatch(t, ours, got)
	require.Equal(t, 3, r.count(createostest.ListSandboxes))
	// A page that fails, or makes no sense, fails the listing.
	for _, then := range []createostest.Action{
		createostest.Status(500, ""), createostest.Status(200, "{}"), createostest.CutBody(100),
		createostest.Status(200, `{"status":"success","data":{"data":[{"id":"../x","status":"running","name":"a"}],"pagination":{"total":231}}}`),
	} {
		r.Unscript()
		r.Script(createostest.Rule{Op: createostest.ListSandboxes, Nth: 2, Times: -1, Then: []createostest.Action{then}})
		handles, err = r.p.Inventory(r.ctx())
		require.Error(t, err)
		require.Empty(t, handles)
	}
}

// Pages are counted from the front: a listing that changes under the reader is read again.
func TestAListingThatChangesIsReadAgain(t *testing.T) {
	t.Parallel()
	totals := []int{2, 1, 2, 2}
	var mu sync.Mutex
	n := 0
	p := answers(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		id := "a"
		if r.URL.Query().Get("offset") != "0" {
			id = "b"
		}
		sayf(w, `{"status":"success","data":{"data":[{"id":"sb-%s","status":"running","name":"sallyport-%s"}],"pagination":{"total":%d}}}`, id, id, totals[n%len(totals)])
		n++
	})
	handles, err := p.Inventory(t.Context())
	require.NoError(t, err)
	require.Len(t, handles, 2)
	require.Equal(t, 4, n)
	totals = []int{2, 1}
	_, err = p.Inventory(t.Context())
	require.ErrorContains(t, err, "it changed each time")
}

func TestProbe(t *testing.T) {
	t.Parallel()
	r := setup(t)
	require.NoError(t, r.p.Probe(r.ctx()))
	require.False(t, r.Sandboxes()[0].Live())
	r.on(createostest.CreateSandbox, createostest.CutAfterCommit())
	require.ErrorContains(t, r.p.Probe(r.ctx()), "create a sandbox")
	require.False(t, r.Sandboxes()[1].Live())
	r.on(createostest.CreateProcess, createostest.Status(400, ""))
	require.ErrorContains(t, r.p.Probe(r.ctx()), "prepare a process")
	require.False(t, r.Sandboxes()[2].Live())
	r.Script(createostest.Rule{Op: createostest.DeleteSandbox, Times: 3, Then: []createostest.Action{createostest.Status(500, "")}})
	require.ErrorContains(t, r.p.Probe(r.ctx()), "may be left")
}

func TestAnAmbiguousCreationSpoilsTheSandbox(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]createostest.Action{
		"502 after":      createostest.CommitThen(502, "bob@example.com"),
		"503":            createostest.Status(503, ""),
		"proxy timeout":  createostest.CommitThen(408, ""),
		"cut after":      createostest.CutAfterCommit(),
		"cut before":     createostest.CutBefore(),
		"no JSON":        createostest.CommitThen(200, "<html>"),
		"no success":     createostest.CommitThen(200, `{"status":"fail","data":null}`),
		"no data":        createostest.CommitThen(200, `{"status":"success"}`),
		"no id":          createostest.CommitThen(200, `{"status":"success","data":{"state":"running"}}`),
		"malformed id":   createostest.MalformedID("../escape"),
		"id with spaces": createostest.MalformedID("a b"),
		"half an answer": createostest.CutBody(20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.on(createostest.CreateProcess, then)
			process := shell("echo never")
			process.Stdin = strings.NewReader("input")
			sink := &recorder{}
			_, err := box.Prepare(r.ctx(), process, sink)
			r.kind(sandbox.Ambiguous, err)
			require.ErrorContains(t, err, "could not be confirmed")
			require.NotContains(t, err.Error(), "bob")
			require.Equal(t, 1, r.count(createostest.CreateProcess), "it is created once and never again")
			require.Contains(t, string(r.Calls(createostest.Exec)[1].Body), "-stdin", "the input is removed")
			require.Zero(t, r.count(createostest.DeleteProcess), "there is no id to delete")
			_, err = box.Prepare(r.ctx(), shell("true"), sink)
			r.kind(sandbox.Unavailable, err)
			require.Error(t, box.Reset(r.ctx()))
			require.Zero(t, r.count(createostest.PauseSandbox))
			r.destroy(box)
			require.Empty(t, sink.out())
			require.Empty(t, r.LiveProcesses())
		})
	}
}

func TestADefiniteRefusalLeavesTheSandbox(t *testing.T) {
	t.Parallel()
	for status, kind := range map[int]sandbox.Kind{400: sandbox.Refused, 422: sandbox.Refused, 401: sandbox.Unavailable, 409: sandbox.Busy, 429: sandbox.Busy} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.on(createostest.CreateProcess, createostest.Status(status, ""))
			process := shell("true")
			process.Stdin = strings.NewReader("input")
			_, err := box.Prepare(r.ctx(), process, &recorder{})
			r.kind(kind, err)
			if kind == sandbox.Refused {
				_, sink := r.run(box, shell("ls -A /tmp/.sallyport"))
				require.Equal(t, "marker\n", sink.out(), "what was uploaded is removed")
			}
			r.destroy(box)
		})
	}
}

func TestTransitionSubmitsOnce(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.PauseIdle = true })
	box := r.create()
	r.run(box, shell("true"))
	require.NoError(t, box.Reset(r.ctx()))
	r.ForgetCalls()
	id := r.Sandboxes()[0].ID
	// Looks: is it there; then paused, still paused (the status lags), resuming, running.
	for i, status := range []string{"paused", "paused", "paused", "resuming", "running"} {
		r.Script(createostest.Rule{Op: createostest.GetSandbox, Nth: i + 1, Then: []createostest.Action{
			createostest.Status(200, fmt.Sprintf(`{"status":"success","data":{"id":%q,"status":%q}}`, id, status)),
		}})
	}
	_, sink := r.run(box, shell("echo on"))
	require.Equal(t, "on\n", sink.out())
	require.Equal(t, 1, r.count(createostest.ResumeSandbox))
	require.Equal(t, 5, r.count(createostest.GetSandbox))
	r.destroy(box)
}

// A conflict is another transition that still goes on: the action is submitted again after
// the next look.
func TestATransitionInConflictIsSubmittedAgain(t *testing.T) {
	t.Parallel()
	r := setup(t, func(_ *serverConfig, c *config) { c.PauseIdle = true })
	box := r.create()
	r.run(box, shell("true"))
	r.on(createostest.PauseSandbox, createostest.Status(409, ""))
	require.NoError(t, box.Reset(r.ctx()))
	require.Equal(t, 2, r.count(createostest.PauseSandbox))
	r.ForgetCalls()
	// One that is awake already is only looked at.
	r.on(createostest.GetSandbox, createostest.Status(200, fmt.Sprintf(`{"status":"success","data":{"id":%q,"status":"running"}}`, r.Sandboxes()[0].ID)))
	r.on(createostest.GetFile, createostest.Status(503, ""))
	_, err := box.Prepare(r.ctx(), shell("true"), &recorder{})
	r.kind(sandbox.Unavailable, err)
	require.Zero(t, r.count(createostest.ResumeSandbox))
	r.destroy(box)
}

func TestATransitionToNowhereFails(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"destroying", "error", "somewhere"} {
		r := setup(t, func(_ *serverConfig, c *config) { c.PauseIdle = true })
		box := r.create()
		r.run(box, shell("true"))
		r.always(createostest.GetSandbox, createostest.Status(200, fmt.Sprintf(`{"status":"success","data":{"id":%q,"status":%q}}`, r.Sandboxes()[0].ID, status)))
		require.Error(t, box.Reset(r.ctx()), status)
		require.Zero(t, r.count(createostest.PauseSandbox))
		r.Unscript()
		r.destroy(box)
	}
}

func TestWhatComesBackFromAPauseIsChecked(t *testing.T) {
	t.Parallel()
	answer := func(id, status string) createostest.Action {
		return createostest.Status(200, fmt.Sprintf(`{"status":"success","data":{"id":%q,"status":%q}}`, id, status))
	}
	for name, c := range map[string]struct {
		op    createostest.Op
		then  func(id string) createostest.Action
		times int
		kind  sandbox.Kind
		lost  bool
	}{
		"marker differs":    {createostest.GetFile, func(string) createostest.Action { return createostest.Status(200, "other") }, 1, sandbox.Gone, true},
		"marker has more":   {createostest.GetFile, func(string) createostest.Action { return createostest.Status(200, strings.Repeat("x", 1000)) }, 1, sandbox.Protocol, false},
		"marker is missing": {createostest.GetFile, func(string) createostest.Action { return createostest.Status(404, "") }, 1, sandbox.Gone, true},
		"marker not had":    {createostest.GetFile, func(string) createostest.Action { return createostest.Status(503, "") }, 1, sandbox.Unavailable, false},
		"gone":              {createostest.GetSandbox, func(string) createostest.Action { return createostest.Status(404, "") }, 1, sandbox.Gone, true},
		"destroyed":         {createostest.GetSandbox, func(id string) createostest.Action { return answer(id, "destroyed") }, 1, sandbox.Gone, true},
		"failed":            {createostest.GetSandbox, func(id string) createostest.Action { return answer(id, "failed") }, 1, sandbox.Gone, true},
		"not to be seen":    {createostest.GetSandbox, func(string) createostest.Action { return createostest.Status(503, "") }, 3, sandbox.Unavailable, false},
		"another id":        {createostest.GetSandbox, func(string) createostest.Action { return answer("sb-other", "running") }, 1, sandbox.Protocol, false},
		"no status":         {createostest.GetSandbox, func(id string) createostest.Action { return answer(id, "") }, 1, sandbox.Protocol, false},
		"no credit":         {createostest.ResumeSandbox, func(string) createostest.Action { return createostest.Status(402, "") }, 1, sandbox.Unavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(_ *serverConfig, c *config) { c.PauseIdle = true })
			box := r.create()
			r.run(box, shell("true"))
			require.NoError(t, box.Reset(r.ctx()))
			r.Script(createostest.Rule{Op: c.op, Times: c.times, Then: []createostest.Action{c.then(r.Sandboxes()[0].ID)}})
			_, err := box.Prepare(r.ctx(), shell("true"), &recorder{})
			r.kind(c.kind, err)
			select {
			case <-box.Lost():
				require.True(t, c.lost, "a transient error does not prove loss")
			default:
				require.False(t, c.lost)
			}
			require.Zero(t, r.count(createostest.DeleteSandbox), "destroying is the owner's business")
			r.destroy(box)
		})
	}
}

// The service pauses what is idle: what may have been is looked at before it is used.
func TestAnIdleSandboxIsAwakened(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var mu sync.Mutex
	r := setup(t, func(s *serverConfig, c *config) {
		c.AutoPause = time.Minute
		s.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	})
	box := r.create()
	r.run(box, shell("true"))
	require.NoError(t, box.Reset(r.ctx()))
	mu.Lock()
	now = now.Add(time.Hour)
	mu.Unlock()
	createos.Rest(box, time.Minute)
	_, sink := r.run(box, shell("echo on"))
	require.Equal(t, "on\n", sink.out())
	require.Equal(t, 1, r.count(createostest.ResumeSandbox))
	r.destroy(box)
}

func TestCloseEndsRuns(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, _ := r.running(box)
	require.NoError(t, r.p.Close())
	require.Equal(t, 1, r.count(createostest.DeleteProcess))
	require.Contains(t, r.Calls(createostest.DeleteProcess)[0].Query, "grace_ms=")
	require.True(t, r.Sandboxes()[0].Live(), "the sandbox stays as it is")
	require.Empty(t, r.LiveProcesses())
	end, err := run.Wait(r.ctx())
	if err == nil {
		require.True(t, end.Proof.Proven)
	}
	_, err = r.p.Create(r.ctx(), sandbox.Spec{Lease: lease()})
	r.kind(sandbox.Unavailable, err)
	_, err = box.Prepare(r.ctx(), shell("true"), &recorder{})
	r.kind(sandbox.Unavailable, err)
	require.Error(t, box.Reset(r.ctx()))
	r.destroy(box) // cleanup works on
	require.NoError(t, r.p.Close())
}

func TestResetLeavesNothingOfTheJob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	_, _ = r.run(box, shell(`mkdir -p d/e; echo x >d/e/f; echo y >.hidden; echo z >/tmp/-rf; ln -s /etc etc; chmod 0 d; rm -rf /tmp/.sallyport; mkdir '/tmp/a
b'; mkfifo /tmp/fifo`))
	require.NoError(t, box.Reset(r.ctx()))
	_, sink := r.run(box, shell("ls -A /workspace /tmp /tmp/.sallyport"))
	require.Equal(t, "/tmp:\n.sallyport\n\n/tmp/.sallyport:\nmarker\n\n/workspace:\n", sink.out())
	require.NoError(t, box.Reset(r.ctx()))
	// A workspace that was replaced by a link is made anew, and what it led to stays.
	_, _ = r.run(box, shell("cd /; mkdir -p /tmp/keep && (umount /workspace || true) 2>/dev/null; rmdir /workspace && ln -s /etc /workspace"))
	err := box.Reset(r.ctx())
	if err == nil {
		_, sink = r.run(box, shell("test ! -L /workspace && ls -A /workspace; test -e /etc/passwd && echo kept"))
		require.Equal(t, "kept\n", sink.out())
	}
	r.destroy(box)
}

func TestAResetThatIsNotProvenFails(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]createostest.Rule{
		"not created":     {Op: createostest.CreateProcess, Then: []createostest.Action{createostest.CutAfterCommit()}},
		"no end":          {Op: createostest.Wait, Times: 3, Then: []createostest.Action{createostest.Status(500, "")}},
		"exit status":     {Op: createostest.Wait, Then: []createostest.Action{createostest.Status(200, `{"status":"success","data":{"process_id":"x"}}`)}},
		"list fails":      {Op: createostest.ListProcesses, Times: 3, Then: []createostest.Action{createostest.Status(503, "")}},
		"list is none":    {Op: createostest.ListProcesses, Then: []createostest.Action{createostest.Status(200, `{"status":"success","data":{}}`)}},
		"another lives":   {Op: createostest.ListProcesses, Then: []createostest.Action{createostest.Status(200, `{"status":"success","data":{"processes":[{"process_id":"p","tree_exited":false}]}}`)}},
		"record remains":  {Op: createostest.DeleteProcess, Times: 3, Then: []createostest.Action{createostest.Status(500, "")}},
		"tree not exited": {Op: createostest.DeleteProcess, Then: []createostest.Action{createostest.TreeExitedFalse()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			r.run(box, shell("true"))
			r.Script(rule)
			require.Error(t, box.Reset(r.ctx()))
			_, err := box.Prepare(r.ctx(), shell("true"), &recorder{})
			r.kind(sandbox.Unavailable, err)
			r.Unscript()
			r.destroy(box)
		})
	}
}
