package local_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

func TestProbe(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *local.Provider) {
		began := time.Now()
		report := p.Probe(t.Context(), cgroup.Report{}, "")
		t.Logf("in %s: %s", time.Since(began), report)
		require.Equal(t, p.Capabilities().Isolation.Level, report.Level)
		var lacks []string
		if report.Level != "namespaces+cgroup" {
			lacks = append(lacks, local.PropertyCgroupProof)
		}
		if os.Geteuid() != 0 {
			lacks = append(lacks, local.PropertyUIDs)
		}
		if report.Level != "namespaces+cgroup" {
			lacks = append(lacks, local.PropertyMemory, local.PropertyCPUShare, local.PropertyCPUTime)
			require.Contains(t, report.String(), "fix: run the worker as root")
			err := report.Err(local.PropertySandbox, local.PropertyMemory)
			require.ErrorContains(t, err, "missing: memory limit\n")
			require.ErrorContains(t, err, "have:    namespaces: sandbox, process-tree proof, ")
		}
		require.Equal(t, lacks, report.Lacks(), report.String())
		require.NoError(t, report.Err(local.PropertySandbox, local.PropertyPids, local.PropertyDisk, local.PropertyFilter, local.PropertyDestruction))
		handles, err := p.Inventory(t.Context())
		require.NoError(t, err)
		require.Empty(t, handles)

		doc, err := json.Marshal(report)
		require.NoError(t, err)
		require.Less(t, len(doc), 16<<10)
		var again local.Report
		require.NoError(t, json.Unmarshal(doc, &again))
		require.Equal(t, report, again)
	})
}

// TestProbeFromAnImage: a host without a shell is looked at from a profile's root.
func TestProbeFromAnImage(t *testing.T) {
	t.Parallel()
	root := rootFS(t)
	p := provider(t, false)
	report := p.Probe(t.Context(), cgroup.Report{}, root)
	require.NoError(t, report.Err(local.PropertySandbox, local.PropertyInside, local.PropertyReadOnly, local.PropertyPids, local.PropertyDisk), report.String())
	require.NoError(t, os.Remove(filepath.Join(root, "bin", "sh")))
	report = p.Probe(t.Context(), cgroup.Report{}, root)
	require.ErrorContains(t, report.Err(local.PropertySandbox), "/bin/sh cannot be executed: not_found")
}
