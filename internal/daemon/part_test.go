package daemon_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestPartsStopInOrder(t *testing.T) {
	var mu sync.Mutex
	var log []string
	note := func(text string) { mu.Lock(); defer mu.Unlock(); log = append(log, text) }
	long := func(name string) daemon.Part {
		return daemon.Part{Name: name, Run: func(ctx context.Context) error {
			<-ctx.Done()
			note(name)
			return nil
		}}
	}
	t.Run("at the end of the context", func(t *testing.T) {
		log = nil
		ctx, stop := context.WithCancel(t.Context())
		stop()
		require.NoError(t, daemon.RunInOrder(ctx, long("a"), long("b"), long("c")))
		require.Equal(t, []string{"a", "b", "c"}, log)
	})
	t.Run("when one fails", func(t *testing.T) {
		log = nil
		broken := errors.New("broken")
		err := daemon.RunInOrder(t.Context(), long("a"), daemon.Part{Name: "b", Run: func(context.Context) error { return broken }}, long("c"))
		require.ErrorIs(t, err, broken)
		require.ErrorContains(t, err, "b: ")
		require.Equal(t, []string{"a", "c"}, log)
	})
	t.Run("when one ends by itself", func(t *testing.T) {
		err := daemon.RunInOrder(t.Context(), long("a"), daemon.Part{Name: "b", Run: func(context.Context) error { return nil }})
		require.ErrorContains(t, err, "b: ended by itself")
	})
	t.Run("all that went wrong is told", func(t *testing.T) {
		first, second := errors.New("first"), errors.New("second")
		err := daemon.RunInOrder(t.Context(),
			daemon.Part{Name: "a", Run: func(ctx context.Context) error { <-ctx.Done(); return second }},
			daemon.Part{Name: "b", Run: func(context.Context) error { return first }})
		require.ErrorIs(t, err, first)
		require.ErrorIs(t, err, second)
	})
}

func TestInstancesAreApart(t *testing.T) {
	dir := t.TempDir()
	a, err := daemon.TakeInstance(dir)
	require.NoError(t, err)
	b, err := daemon.TakeInstance(dir)
	require.NoError(t, err)
	require.NotEqual(t, a.Dir, b.Dir)
	require.NotEqual(t, a.Worker, b.Worker)
	require.Equal(t, a.Host, b.Host)
	for _, token := range []string{a.Worker, a.Host, a.Name} {
		require.True(t, wire.ValidToken(token), token)
	}
	require.NoError(t, a.Close())
	again, err := daemon.TakeInstance(dir)
	require.NoError(t, err)
	require.Equal(t, a.Dir, again.Dir, "a free instance is taken again")
	require.NotEqual(t, a.Worker, again.Worker, "a worker's id is never used again")
	require.NoError(t, again.Close())
	require.NoError(t, b.Close())
}

func TestStateDirectoryThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := daemon.TakeInstance(file)
	require.ErrorContains(t, err, "--state-dir")
}

func TestRequireHost(t *testing.T) {
	weak := sandbox.Capabilities{
		Enforces:   sandbox.Enforced{Pids: true, Disk: true},
		Isolation:  sandbox.Isolation{Level: "namespaces", Applied: []string{"pid namespace", "seccomp"}},
		Unenforced: map[string]string{"memory_bytes": "no writable cgroup: delegate one", "cpu_share": "no cpu controller"},
	}
	strong := weak
	strong.Enforces.Memory, strong.Enforces.CPUShare = true, true
	require.NoError(t, daemon.RequireHost(config.Requirements(), strong))
	require.NoError(t, daemon.RequireHost([]string{config.RequireNamespaces}, weak))
	err := daemon.RequireHost(config.Requirements(), weak)
	require.ErrorIs(t, err, daemon.ErrRefused)
	for _, text := range []string{
		"missing: memory limit, cpu limit", "no writable cgroup: delegate one", "no cpu controller",
		"pid namespace, seccomp", "sallyport doctor", "--require=namespaces",
	} {
		require.ErrorContains(t, err, text)
	}
	none := sandbox.Capabilities{Isolation: sandbox.Isolation{Level: "none"}}
	err = daemon.RequireHost([]string{config.RequireNamespaces}, none)
	require.ErrorIs(t, err, daemon.ErrRefused)
	require.NotContains(t, err.Error(), "--require=namespaces", "there is nothing less to accept")
}

func TestDefaultsThatTheHostCannotEnforceAreDropped(t *testing.T) {
	cfg, err := config.Load(config.Sources{})
	require.NoError(t, err)
	limits := daemon.DefaultLimits(cfg.Profiles["default"], sandbox.Capabilities{
		Enforces: sandbox.Enforced{Pids: true, OpenFiles: true, Disk: true, Inodes: true},
	})
	require.Nil(t, limits.MemoryBytes)
	require.Nil(t, limits.CPUShare)
	require.Equal(t, int64(256), *limits.Pids)
	require.Equal(t, int64(60_000), *limits.WallMS)
	require.Equal(t, int64(16<<20), *limits.OutputBytes)
	require.Equal(t, int64(256<<20), *limits.DiskBytes)
}
