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
	"github.com/sallyport/sallyport/internal/sandbox/local"
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

// reported is a report in which all properties hold but those.
func reported(lacks ...local.Property) local.Report {
	r := local.Report{Level: "namespaces", Kernel: "Linux 1.2", User: "root"}
	for _, word := range config.Requirements() {
		for _, name := range daemon.PropertiesOf(word) {
			p := local.Property{Name: name, Holds: true, By: "magic"}
			for _, lack := range lacks {
				if lack.Name == name {
					p = lack
				}
			}
			r.Properties = append(r.Properties, p)
		}
	}
	return r
}

func TestRequireIsolation(t *testing.T) {
	all := config.Requirements()
	require.NoError(t, daemon.RequireIsolation(reported(), all))
	for _, word := range all {
		require.NotEmpty(t, daemon.PropertiesOf(word), word)
	}
	memory := local.Property{Name: local.PropertyMemory, Why: "/sys/fs/cgroup is mounted read-only", Fix: []string{"mount it read-write"}}
	weak := reported(memory, local.Property{Name: local.PropertyCPUShare, Why: "no cpu controller"})
	require.NoError(t, daemon.RequireIsolation(weak, []string{config.RequireNamespaces, config.RequirePids}))
	err := daemon.RequireIsolation(weak, []string{config.RequireNamespaces, config.RequireMemory, config.RequireCPU, config.RequirePids})
	require.ErrorIs(t, err, daemon.ErrRefused)
	for _, text := range []string{
		"refusing to start: required isolation is not available on this host\n",
		"  missing: memory limit, cpu share limit\n", "    memory limit: /sys/fs/cgroup is mounted read-only\n",
		"      fix: mount it read-write\n", "no cpu controller", "  have:    namespaces: sandbox, ",
		"--require=namespaces,pids (", "sallyport doctor",
	} {
		require.ErrorContains(t, err, text)
	}
	for _, word := range all[1:] {
		for _, name := range daemon.PropertiesOf(word) {
			lacking := reported(local.Property{Name: name, Why: "so"})
			require.ErrorContains(t, daemon.RequireIsolation(lacking, []string{config.RequireNamespaces, word}), "missing: "+name)
			require.NoError(t, daemon.RequireIsolation(lacking, []string{config.RequireNamespaces}))
		}
	}

	none := local.Report{Level: "none", Properties: []local.Property{{
		Name: local.PropertySandbox, Why: "start lease init: operation not permitted", Fix: []string{"run it elsewhere"},
	}}}
	err = daemon.RequireIsolation(none, []string{config.RequireNamespaces})
	require.ErrorIs(t, err, daemon.ErrRefused)
	require.ErrorContains(t, err, "start lease init: operation not permitted\n  fix: run it elsewhere\n")
	require.NotContains(t, err.Error(), "--require=", "there is nothing less to accept")
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
