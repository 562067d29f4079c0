package local_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	variants := map[string]bool{"namespaces": false}
	if hasGroups(t) {
		variants["cgroup"] = true
	}
	for name, withGroups := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sandboxtest.Run(t, sandboxtest.Harness{
				New:     func(t *testing.T) sandbox.Provider { return provider(t, withGroups) },
				Command: sandboxtest.Shell,
				Env:     []string{"PATH=/usr/bin:/bin"},
				Spec:    sandbox.Spec{Profile: "test"},
				Cwd:     "/tmp",
				StartErrors: map[sandbox.StartReason]sandbox.Process{
					sandbox.StartNotFound:      {Argv: []string{"/no/such/program"}},
					sandbox.StartNotExecutable: {Argv: []string{"/etc/passwd"}},
					sandbox.StartBadCwd:        {Argv: []string{"true"}, Cwd: "/no/such/dir"},
				},
				Break: func(t *testing.T, box sandbox.Sandbox) {
					pid, err := strconv.Atoi(box.Handle().Detail["pid"])
					require.NoError(t, err)
					require.NoError(t, unix.Kill(pid, unix.SIGKILL))
				},
			})
		})
	}
}
