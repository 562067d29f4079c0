package createos_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// A cancel while a process is being created leaves doubt, and the doubt is what is told.
func TestACancelledCreationIsDoubt(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.on(createostest.CreateProcess, createostest.HangAfterCommit())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := box.Prepare(ctx, shell("echo never"), &recorder{})
	r.kind(sandbox.Ambiguous, err)
	require.ErrorContains(t, err, "could not be confirmed")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	r.destroy(box)
	require.Empty(t, r.LiveProcesses())
}

// A wait for a turn that was given up before a byte left is none.
func TestACreationThatWaitsForItsTurnIsNoDoubt(t *testing.T) {
	t.Parallel()
	pacer := createos.NewPacer(time.Microsecond)
	r := setup(t, func(_ *serverConfig, c *config) { c.Pacer = pacer })
	box := r.create()
	pacer.Hold(250 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := box.Prepare(ctx, shell("echo never"), &recorder{})
	r.kind(sandbox.Unavailable, err)
	require.NotContains(t, err.Error(), "could not be confirmed")
	require.Zero(t, r.count(createostest.CreateProcess))
	r.destroy(box)
}

// A gate whose upload waits for its turn did surely not open.
func TestAnOpenThatWaitsForItsTurnIsRefused(t *testing.T) {
	t.Parallel()
	pacer := createos.NewPacer(time.Microsecond)
	r := setup(t, func(_ *serverConfig, c *config) { c.Pacer = pacer })
	box := r.create()
	run, sink, err := prepare(r, box, shell("echo never"))
	require.NoError(t, err)
	pacer.Hold(250 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r.kind(sandbox.Refused, run.Open(ctx))
	_, err = run.Terminate(r.ctx(), time.Hour)
	require.NoError(t, err)
	end, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.Equal(t, sandbox.StartedNo, end.Started)
	require.Empty(t, sink.out())
	r.destroy(box)
}

// Nothing begins in a sandbox that is being destroyed.
func TestNothingBeginsWhileClosing(t *testing.T) {
	t.Parallel()
	r := setup(t, func(s *serverConfig, _ *config) { s.Lag = 300 * time.Millisecond })
	box := r.create()
	var destroying sync.WaitGroup
	destroying.Go(func() {
		if _, err := box.Destroy(r.ctx()); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	require.Eventually(t, func() bool { return r.count(createostest.DeleteSandbox) > 0 }, patience, time.Millisecond)
	_, err := box.Prepare(r.ctx(), shell("true"), &recorder{})
	r.kind(sandbox.Gone, err)
	require.Error(t, box.Reset(r.ctx()))
	destroying.Wait()
	require.Zero(t, r.count(createostest.CreateProcess)+r.count(createostest.ResumeSandbox))
	select {
	case <-box.Lost():
		require.Fail(t, "what its owner destroys is not lost")
	default:
	}
}

// The key goes to the one origin and nowhere else.
func TestTheKeyStaysWithItsOrigin(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	r := setup(t)
	box := r.create()
	for _, op := range []createostest.Op{
		createostest.CreateSandbox, createostest.ListSandboxes, createostest.PutFile, createostest.GetFile, createostest.Exec,
		createostest.CreateProcess, createostest.Connect, createostest.DeleteProcess,
	} {
		r.always(op, createostest.Redirect(other.URL+"/v1/x"))
	}
	_, err := r.p.Create(r.ctx(), sandbox.Spec{Lease: lease()})
	require.ErrorContains(t, err, "HTTP 307")
	_, err = r.p.Inventory(r.ctx())
	require.Error(t, err)
	process := shell("true")
	process.Stdin = strings.NewReader("x")
	_, err = box.Prepare(r.ctx(), process, &recorder{})
	require.Error(t, err)
	require.Zero(t, elsewhere.Load())
	r.Unscript()
	r.destroy(box)
}

// A process that was made to wait is only ended by what the service says about its tree.
func TestATerminateIsMadeAgainUntilItIsProof(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, _ := r.running(box)
	r.Script(createostest.Rule{Op: createostest.DeleteProcess, Times: 2, Then: []createostest.Action{createostest.Status(503, "")}})
	r.Script(createostest.Rule{Op: createostest.DeleteProcess, Nth: 3, Then: []createostest.Action{createostest.TreeExitedFalse()}})
	proof, err := run.Terminate(r.ctx(), 0)
	require.NoError(t, err)
	require.Equal(t, sandbox.EvidenceTreeExited, proof.Evidence[0].Kind)
	require.Equal(t, 4, r.count(createostest.DeleteProcess))
	r.destroy(box)
}

// A sandbox that vanishes under its run ends it, with the service's word as proof.
func TestAVanishedSandboxEndsItsRun(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	run, sink := r.running(box)
	// A sandbox that dies takes its processes first.
	r.always(createostest.Connect, createostest.Delay(time.Second), createostest.Status(404, ""))
	require.NoError(t, r.Vanish(box.Handle().Detail["id"]))
	end, err := run.Wait(r.ctx())
	require.NoError(t, err)
	require.True(t, end.Proof.Proven)
	require.Equal(t, sandbox.EvidenceNotFound, end.Proof.Evidence[0].Kind)
	require.Nil(t, end.Exit)
	require.NotNil(t, end.OutputLost)
	require.Zero(t, end.OutputLost.Last, "nobody knows how much there was")
	require.Equal(t, "ready\n", sink.out())
	<-box.Lost()
	_, err = box.Prepare(r.ctx(), shell("true"), &recorder{})
	r.kind(sandbox.Gone, err)
	r.destroy(box)
}

// A process that is gone while its sandbox is there has an end that nobody knows.
func TestAVanishedProcessIsAnUnknownEnd(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.deafen(3, -1, createostest.Status(404, ""))
	run, _ := r.start(box, shell("sleep 0.1; echo ready; sleep 1000"))
	end, err := run.Wait(r.ctx())
	r.kind(sandbox.Gone, err)
	require.True(t, end.Proof.Proven)
	require.Equal(t, sandbox.EvidenceNotFound, end.Proof.Evidence[0].Kind)
	require.Nil(t, end.Exit)
	r.destroy(box)
}

// A sandbox that is paused under its run is resumed, and the output goes on.
func TestASandboxThatIsPausedUnderItsRun(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.deafen(3, 1, createostest.Status(409, ""))
	end, sink := r.run(box, shell("sleep 0.1; echo one; sleep 0.1; echo two"))
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Equal(t, "one\ntwo\n", sink.out())
	require.Equal(t, 1, r.count(createostest.GetFile), "its marker was checked")
	r.destroy(box)
}
