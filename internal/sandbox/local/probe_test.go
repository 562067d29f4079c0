package local_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local"
)

func TestProbe(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		report := p.Probe(t.Context())
		require.Equal(t, p.Capabilities().Isolation.Level, report.Level)
		if report.Level == "namespaces+cgroup" {
			require.Empty(t, report.Lacks(), report.String())
		} else {
			require.Equal(t, []string{"memory limit", "cpu limit", "cpu share"}, report.Lacks(), report.String())
			require.Contains(t, report.String(), "fix: run the worker as root")
		}
		t.Log(report)
		handles, err := p.Inventory(t.Context())
		require.NoError(t, err)
		require.Empty(t, handles)
	})
}
