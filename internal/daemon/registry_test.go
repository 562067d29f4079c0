package daemon_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// localConfig is a configuration whose jobs run in real sandboxes.
func localConfig(t *testing.T, yaml string, flags map[string]string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
	all := map[string]string{"state_dir": filepath.Join(dir, "state"), "http": freeAddress(t)}
	maps.Copy(all, flags)
	cfg, err := config.Load(config.Sources{File: file, Flags: all, CPUs: 2})
	require.NoError(t, err)
	return cfg
}

func operator(t *testing.T, cfg *config.Config) *bus.Bus {
	t.Helper()
	b, err := daemon.Connect(t.Context(), cfg, zerolog.Nop(), "operator")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
	return b
}

func TestRegistryAndReadyTellTheSameReport(t *testing.T) {
	cfg := localConfig(t, "slots: 3\nqueues: [a, b]\n", map[string]string{"require": "namespaces"})
	planned(t, cfg)
	began := time.Now().Add(-time.Second)
	stop, _, ended := background(t, func(ctx, hurry context.Context) error {
		return daemon.RunWorker(ctx, hurry, cfg, zerolog.Nop(), daemon.Build{Version: "1.2.3"}, false)
	})
	b := operator(t, cfg)
	var list []daemon.WorkerEntry
	eventually(t, "the entry of a ready worker", func() bool {
		var err error
		list, err = daemon.Workers(t.Context(), b)
		require.NoError(t, err)
		select {
		case err := <-ended:
			require.FailNow(t, "the worker ended", "%v", err)
		default:
		}
		return len(list) == 1 && list[0].NotReady == ""
	})
	e := list[0]
	require.Equal(t, []string{"a", "b"}, e.Queues)
	require.Equal(t, []string{"default"}, e.Profiles)
	require.Equal(t, []int{3, 0}, []int{e.Slots, e.Running})
	require.Equal(t, "1.2.3", e.Version)
	require.True(t, e.Since.After(began) && !e.At.Before(e.Since), "since %s, at %s", e.Since, e.At)
	require.NotNil(t, e.Report)
	require.True(t, e.Report.Property(local.PropertySandbox).Holds, e.Report.String())
	require.Equal(t, e.Report.Level, e.Isolation)

	code, text := get(t, "http://"+cfg.HTTP+"/readyz?verbose")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\n"+e.Report.String(), text)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+cfg.HTTP+"/readyz", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "application/json")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	require.NoError(t, err)
	var doc struct {
		Ready  bool
		Detail *local.Report
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&doc))
	require.NoError(t, resp.Body.Close())
	require.True(t, doc.Ready)
	require.Equal(t, e.Report, doc.Detail)

	stop()
	require.NoError(t, wait(t, ended, nil))
	list, err = daemon.Workers(t.Context(), b)
	require.NoError(t, err)
	require.Empty(t, list, "a worker that stopped in order is not listed")
}

func TestRegistryThatCannotBeReadOrIsMissing(t *testing.T) {
	cfg := localConfig(t, "", nil)
	planned(t, cfg)
	b := operator(t, cfg)
	kv, err := b.JS().KeyValue(t.Context(), "EXEC_WORKERS")
	require.NoError(t, err)
	for key, value := range map[string]string{"broken": "{", "sound": `{"worker":"sound"}`} {
		_, err := kv.Put(t.Context(), key, []byte(value))
		require.NoError(t, err)
	}
	list, err := daemon.Workers(t.Context(), b)
	require.ErrorContains(t, err, "entry broken")
	require.Len(t, list, 1)
	require.Equal(t, "sound", list[0].Worker)
	require.NoError(t, b.JS().DeleteKeyValue(t.Context(), "EXEC_WORKERS"))
	_, err = daemon.Workers(t.Context(), b)
	require.ErrorContains(t, err, "streams apply")
}

// TestExamineProfiles: a root view that cannot be made is found before a worker
// starts, by the doctor and by the start.
func TestExamineProfiles(t *testing.T) {
	cfg := localConfig(t, "profiles: {broken: {root: /no/such/root}}\n", map[string]string{"require": "namespaces"})
	planned(t, cfg)
	checks, err := daemon.Examine(t.Context(), cfg, zerolog.Nop())
	require.NoError(t, err)
	found := map[string]daemon.Check{}
	for _, c := range checks {
		require.NotContains(t, found, c.Name)
		found[c.Name] = c
	}
	require.True(t, found[local.PropertySandbox].OK && found[local.PropertySandbox].Needed)
	require.True(t, found["profile default"].OK)
	require.False(t, found["profile broken"].OK)
	require.True(t, found["profile broken"].Needed)
	require.Contains(t, found["profile broken"].Detail, "/no/such/root")
	require.True(t, found[local.PropertyDisk].OK)
	require.False(t, found[local.PropertyDisk].Needed)
	err = daemon.RunWorker(t.Context(), t.Context(), cfg, zerolog.Nop(), daemon.Build{}, false)
	require.ErrorIs(t, err, daemon.ErrRefused)
	require.ErrorContains(t, err, "profile broken")
}
