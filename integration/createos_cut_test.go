package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/wire"
)

// cutAt is where a connection of one sandbox is cut.
type cutAt struct {
	op createostest.Op
	// nth is the call, among those of the operation in the sandbox's life.
	nth int
	// byte of the answer on the wire; or one of the values below.
	at int64
}

const (
	beforeCommit = -2
	afterCommit  = -1
)

func (c cutAt) action() createostest.Action {
	switch c.at {
	case beforeCommit:
		return createostest.CutBefore()
	case afterCommit:
		return createostest.CutAfterCommit()
	}
	return createostest.CutWire(c.at)
}

// pieces is how many pieces of output a job of these tests writes.
const pieces = 40

// session is every place at which a connection can be cut in the life of a sandbox that
// serves two jobs: as it was without any cut.
func (r *remote) session() (bounds, bytes []cutAt) {
	r.t.Helper()
	for i := range 2 {
		f := r.submit(id("session-%d", i), r.guest(id("session-%d", i), "twice", 20_000, 500, fmt.Sprintf("lines:%d", pieces), "exit:7")).wait().exited(7)
		require.Equal(r.t, i+1, f.result.Lease.Use, "%s", f.raw)
	}
	r.balanced()
	seen := map[createostest.Op]int{}
	for _, c := range r.api.Calls() {
		if c.Op == createostest.ListSandboxes {
			continue // nobody's in particular
		}
		seen[c.Op]++
		require.Positive(r.t, c.WireBytes, "%+v", c)
		bounds = append(bounds, cutAt{c.Op, seen[c.Op], beforeCommit})
		if c.Op != createostest.Connect { // which commits nothing
			bounds = append(bounds, cutAt{c.Op, seen[c.Op], afterCommit})
		}
		for b := range c.WireBytes {
			bytes = append(bytes, cutAt{c.Op, seen[c.Op], b})
		}
	}
	return bounds, bytes
}

// script gives each new sandbox the next cut, and returns how many had one.
func (r *remote) script(cuts []cutAt) (given func() int) {
	var mu sync.Mutex // rules run under the server's lock, given does not
	next, mine := 0, map[string]int{}
	creations := 0
	for i, c := range cuts {
		if c.op == createostest.CreateSandbox {
			// Spread over the others, so that the worker does not rest.
			creations++
			r.api.Script(createostest.Rule{Op: c.op, Nth: 4*creations - 3, Then: []createostest.Action{c.action()}})
			continue
		}
		r.api.Script(createostest.Rule{Op: c.op, Nth: c.nth, Then: []createostest.Action{c.action()}, When: func(call createostest.Call) bool {
			mu.Lock()
			defer mu.Unlock()
			at, known := mine[call.Sandbox]
			if !known && call.Sandbox != "" {
				for next < len(cuts) && cuts[next].op == createostest.CreateSandbox {
					next++
				}
				at = next
				mine[call.Sandbox] = at
				next++
			}
			return at == i && call.Sandbox != ""
		}})
	}
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return min(next, len(cuts))
	}
}

// Wherever a connection to the service is cut, at each byte of each answer and around
// each commit: a job runs once, has one decision, and its output is whole or what is
// missing is declared; no sandbox is lost.
func TestCreateOSCuts(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	census := r.census()
	w := r.worker("w1", "--slots", "64")
	bounds, bytes := r.session()
	t.Logf("around %d commits, and at %d bytes", len(bounds), len(bytes))
	rand.Shuffle(len(bounds), func(i, j int) { bounds[i], bounds[j] = bounds[j], bounds[i] })
	rand.Shuffle(len(bytes), func(i, j int) { bytes[i], bytes[j] = bytes[j], bytes[i] })
	cuts := slices.Concat(bounds[:soak(16, len(bounds))], bytes[:soak(12, len(bytes))])
	rand.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })

	var reaper *service
	const batch = 200
	for done := 0; done < len(cuts); done += batch {
		began := time.Now()
		now := cuts[done:min(done+batch, len(cuts))]
		r.api.ForgetCalls()
		r.api.Unscript()
		given := r.script(now)
		for round := 0; given() < len(now); round++ {
			require.Less(t, round, 20, "some places are never come to: %d of %d", given(), len(now))
			left := len(now) - given()
			r.cutJobs(census, id("cut-%d-%d", done, round), 2*left)
		}
		r.oneProcessPerRun()
		t.Logf("%d cuts took %s", len(now), time.Since(began))
		if done+batch >= len(cuts) {
			break
		}
		if reaper == nil { // in the long form there is more than the pool can hold in quarantine
			reaper = r.reap()
		}
	}
	r.api.Unscript()
	w.stop()
	r.accounted()
	if reaper == nil {
		require.Zero(t, established(t, r.api.URL()), "connections are left")
		r.reap()
	}
	r.balanced()
}

// cutJobs runs so many jobs and looks at each.
func (r *remote) cutJobs(census *census, name string, n int) {
	r.t.Helper()
	var jobs []*followed
	for i := range n {
		job := id("%s-%d", name, i)
		jobs = append(jobs, r.submit(job, r.guest(job, "twice", 20_000, 500, fmt.Sprintf("lines:%d", pieces), "exit:7")))
	}
	for _, f := range jobs {
		f.wait()
		stdout, stderr := lines(f.id, pieces)
		if f.result.Outcome == wire.Exited {
			require.Equal(r.t, 7, *f.result.ExitCode, "%s", f.raw)
			require.Equal(r.t, 1, r.guests.runs(f.id), "%s", f.raw)
		} else {
			require.Equal(r.t, wire.Lost, f.result.Outcome, "%s", f.raw)
			r.t.Logf("lost: %s", f.raw)
		}
		require.LessOrEqual(r.t, r.guests.runs(f.id), 1, "%s", f.raw)
		require.Equal(r.t, stdout[:len(f.stdout)], string(f.stdout), "%s", f.raw)
		require.Equal(r.t, stderr[:len(f.stderr)], string(f.stderr), "%s", f.raw)
		if o := f.result.Output; len(f.stdout) < len(stdout) || len(f.stderr) < len(stderr) {
			require.True(r.t, o.Truncated && o.Unread != nil, "undeclared hole: %s", f.raw)
		} else {
			require.False(r.t, o.Truncated, "%s", f.raw)
		}
		require.Empty(r.t, f.result.Output.LostRanges)
		census.atMostOnce(f.id)
	}
}

// oneProcessPerRun asserts that in no sandbox anything was created twice: one process
// for each of its jobs and resets.
func (r *remote) oneProcessPerRun() {
	r.t.Helper()
	bodies := map[string]int{}
	for _, c := range r.api.Calls(createostest.CreateProcess) {
		bodies[c.Sandbox+" "+string(c.Body)]++
	}
	for body, times := range bodies {
		require.Equal(r.t, 1, times, "%s", body)
	}
}
