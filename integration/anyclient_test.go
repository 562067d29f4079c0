package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// natsTool builds the real nats command from the tools' module.
func natsTool(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "nats")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", tool, "github.com/nats-io/natscli/nats")
	build.Dir = "../tools/natscli"
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return tool
}

// Any NATS client is a client: the nats command submits a job through the
// gateway and prints accepted, started, output, result and end.
func TestNatsCommandIsAClient(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "2")
	s.gateway()
	tool := natsTool(t)
	nats := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, tool, append([]string{"--server", s.url}, args...)...)
		cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+s.dir, "HOME="+s.dir)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	out := nats("req", "exec.submit.demo.default", `{"v":1,"argv":["echo","hi"]}`, "--wait-for-empty", "--reply-timeout=1h")
	require.Contains(t, out, "Exec-Event: accepted")
	at := -1
	for _, part := range []string{"Exec-Event: started", "Exec-Event: stdout", "hi\n", "Exec-Event: result", `"outcome":"exited"`, "Exec-Event: end"} {
		i := strings.Index(out, part)
		require.Greater(t, i, at, "%q is missing or out of order in\n%s", part, out)
		at = i
	}
	require.Contains(t, out, `"verdict":"proven"`)

	t.Run("a mistake is answered at once", func(t *testing.T) {
		out := nats("req", "exec.submit.demo.default", `{"v":1,"argv":"echo"}`, "--wait-for-empty", "--reply-timeout=1h")
		require.Contains(t, out, `"outcome":"invalid"`)
		require.Contains(t, out, "argv")
		require.Contains(t, out, "Exec-Event: end")
	})
	t.Run("the services are visible", func(t *testing.T) {
		out := nats("micro", "ls")
		require.Contains(t, out, "sallyport-gateway")
	})
}
