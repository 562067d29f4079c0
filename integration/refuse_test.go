package integration

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A worker that cannot work says so in words that tell what to do.
func TestWorkerThatCannotWorkSaysWhy(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	state := filepath.Join(s.dir, "w")
	common := []string{"worker", "--state-dir", state, "--config", s.config, "--http", "", "--require", "namespaces"}
	t.Run("no server", func(t *testing.T) {
		s := s.on(t)
		out, code := s.command(append(common, "--server", "nats://"+freePort(t))...)
		require.Equal(t, 3, code, out)
		require.Contains(t, out, "--server")
	})
	t.Run("unreadable credentials", func(t *testing.T) {
		s := s.on(t)
		out, code := s.command(append(common, "--server", s.url, "--creds", "/no/such.creds")...)
		require.Equal(t, 2, code, out)
		require.Contains(t, out, "creds: cannot be read")
	})
	t.Run("no streams", func(t *testing.T) {
		s := s.on(t)
		out, code := s.command(append(common, "--server", s.url)...)
		require.Equal(t, 4, code, out)
		require.Contains(t, out, "EXEC_JOBS")
		require.Contains(t, out, "streams apply")
	})
	t.Run("a queue that no consumer takes", func(t *testing.T) {
		s := s.on(t).apply()
		_, err := s.js.Publish(t.Context(), "exec.job.default.orphan.x", []byte(`{}`))
		require.NoError(t, err)
		out, code := s.command("streams", "check", "--server", s.url, "--config", s.config)
		require.Equal(t, 0, code, out)
		require.Contains(t, out, "warning: ")
		require.Contains(t, out, "orphan")
	})
	t.Run("bad configuration, all at once", func(t *testing.T) {
		s := s.on(t)
		out, code := s.command("worker", "--server", s.url, "--slots", "-1", "--drain", "soon")
		require.Equal(t, 2, code, out)
		require.Contains(t, out, "slots")
		require.Contains(t, out, "drain")
	})
}
