package createos_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// A program that is killed has that end, except where its sandbox goes with it: then
// nobody knows what would have become of it.
func TestAKilledProgramAndItsSandbox(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		looks []createostest.Action
		lost  bool
	}{
		"there":              {nil, false},
		"gone":               {[]createostest.Action{createostest.Status(404, "")}, true},
		"gone a little late": {[]createostest.Action{createostest.Delay(0), createostest.Status(404, "")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			box := r.create()
			run, sink := r.start(box, shell("echo said; sleep 0.1; kill -KILL $$"))
			for i, look := range c.looks {
				r.Script(createostest.Rule{Op: createostest.GetSandbox, Nth: i + 1, Then: []createostest.Action{look}})
			}
			end, err := run.Wait(r.ctx())
			require.True(t, end.Proof.Proven)
			require.Equal(t, sandbox.StartedYes, end.Started)
			require.Equal(t, "said\n", sink.out())
			if c.lost {
				r.kind(sandbox.Gone, err)
				require.Nil(t, end.Exit)
			} else {
				require.NoError(t, err)
				require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, end.Exit)
			}
			r.destroy(box)
		})
	}
}

// A DELETE that is answered with 410 is no failure: a look decides.
func TestADeleteOfWhatIsGone(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	r.on(createostest.DeleteSandbox, createostest.CommitThen(410, ""))
	r.destroy(box)
	other := r.create()
	r.on(createostest.DeleteSandbox, createostest.Status(410, ""))
	r.destroy(other)
	require.Equal(t, 3, r.count(createostest.DeleteSandbox), "that one was there")
}

// A reset outlives a connection that breaks: what it asks may be asked twice. Its process
// is made once.
func TestAResetOutlivesABrokenConnection(t *testing.T) {
	t.Parallel()
	r := setup(t)
	box := r.create()
	_, _ = r.run(box, shell("true"))
	r.ForgetCalls()
	for _, op := range []createostest.Op{createostest.Wait, createostest.ListProcesses, createostest.DeleteProcess} {
		r.on(op, createostest.CutAfterCommit())
	}
	r.Script(createostest.Rule{Op: createostest.DeleteProcess, Nth: 3, Then: []createostest.Action{createostest.Status(503, "")}})
	require.NoError(t, box.Reset(r.ctx()))
	require.Equal(t, 1, r.count(createostest.CreateProcess))
	_, _ = r.run(box, shell("true"))
	r.destroy(box)
}
