package local_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	for name, withGroups := range map[string]bool{"Groups": true, "NamespacesAlone": false} {
		t.Run(name, func(t *testing.T) {
			sandboxtest.Run(t, sandboxtest.Harness{
				New:     func(t *testing.T) sandbox.Provider { return provider(t, withGroups) },
				Command: sandboxtest.Shell,
				Env:     []string{"PATH=/usr/local/bin:/usr/bin:/bin"},
				Spec:    sandbox.Spec{Profile: "test"},
				Cwd:     "/tmp",
				StartErrors: map[sandbox.StartReason]sandbox.Process{
					sandbox.StartNotFound:      {Argv: []string{"/no/such/program"}},
					sandbox.StartNotExecutable: {Argv: []string{"/etc/passwd"}},
					sandbox.StartBadCwd:        {Argv: []string{"true"}, Cwd: "/no/such/dir"},
				},
				Break: killLeaseInit,
			})
		})
	}
}

// killLeaseInit is what an operator's kill or the kernel's OOM killer does.
func killLeaseInit(t *testing.T, sb sandbox.Sandbox) {
	pid, err := strconv.Atoi(sb.Handle().Detail["pid"])
	require.NoError(t, err)
	process, err := os.FindProcess(pid)
	require.NoError(t, err)
	require.NoError(t, process.Kill())
}
