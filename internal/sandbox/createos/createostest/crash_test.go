package createostest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// crashEnv tells a test binary to be a server that dies.
const crashEnv = "CREATEOSTEST_CRASH_MARK"

// asServer starts a sandbox with two programs, says so, and waits for its death.
func asServer(mark string) {
	ctx := context.Background()
	m, err := createostest.NewHost().Boot(ctx, "sb-crash")
	for range 2 {
		if err == nil {
			_, err = m.Start(ctx, createostest.Program{
				Cmd: "/bin/sh", Args: []string{"-c", "trap '' TERM HUP; setsid sleep " + mark + " & wait"}, Cwd: "/", Output: func(int, []byte) {},
			})
		}
	}
	fmt.Println("started", err)
	select {}
}

// TestServerThatDies: with the server's process everything ends.
func TestServerThatDies(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("31%07d", os.Getpid())
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+mark)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	require.Equal(t, "started <nil>\n", string(line[:n]))
	marked := func() (n int) {
		all, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		for _, name := range all {
			text, err := os.ReadFile(name)
			if err == nil && strings.HasPrefix(string(text), "sleep\x00"+mark) {
				n++
			}
		}
		return n
	}
	eventually(t, "both run", func() bool { return marked() == 2 })
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	eventually(t, "all have ended", func() bool { return marked() == 0 })
}
