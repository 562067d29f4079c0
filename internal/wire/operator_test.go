package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// What operators ask goes nowhere where a stream keeps it.
func TestOperatorSubjectsMeetNoStream(t *testing.T) {
	t.Parallel()
	s, err := wire.NewSubjects("exec")
	require.NoError(t, err)
	require.Equal(t, "exec.reaper.hold", s.Reaper(wire.OpHold))
	require.Equal(t, "exec.worker.leases", s.WorkerLeases())
	require.Equal(t, "exec.quarantine.*.*.l1", s.LeaseQuarantine("l1"))
	require.Empty(t, s.LeaseQuarantine("a.b"))
	require.Empty(t, s.Reaper("*.x"))
	for _, op := range []wire.ReaperOp{wire.OpList, wire.OpShow, wire.OpRetry, wire.OpHold, wire.OpRelease, wire.OpResolve} {
		for _, all := range []string{s.AllJobs(), s.AllOut(), s.AllRuns(), s.AllLeases(), s.AllQuarantine(), s.AllDead(), s.AllLive()} {
			kind, _, _ := strings.Cut(strings.TrimPrefix(all, "exec."), ".")
			require.NotEqual(t, kind, strings.Split(s.Reaper(op), ".")[1])
			require.NotEqual(t, kind, strings.Split(s.WorkerLeases(), ".")[1])
		}
	}
}
