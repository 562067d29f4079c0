package cgroup_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCloseWhileAnotherInstanceTakesControllers: another group of this process has
// begun to use the worker's own group between the steps of Close.
func TestCloseWhileAnotherInstanceTakesControllers(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"/cgroup.procs", "/cgroup.subtree_control"} {
		f := newTree(t, "/")
		g, report := open(t, f)
		require.Equal(t, mount+"/worker", report.Moved)
		f.broken = map[string]error{file: syscall.EBUSY}
		require.NoError(t, g.Close(t.Context()), file)
		require.Equal(t, []int{self}, f.at("/worker").procs, "the worker stays in its leaf")
	}
	f := newTree(t, "/")
	g, _ := open(t, f)
	broken := errors.New("no")
	f.broken = map[string]error{"/cgroup.procs": broken}
	require.ErrorIs(t, g.Close(t.Context()), broken)
}
