package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// levelNone is the isolation level where nothing isolates.
const levelNone = "none"

// propertiesOf are the properties that a word of --require stands for.
func propertiesOf(word string) []string {
	switch word {
	case config.RequireNamespaces:
		return []string{
			local.PropertySandbox, local.PropertyProof, local.PropertyInside, local.PropertyUser, local.PropertyPid,
			local.PropertyMount, local.PropertyNetwork, local.PropertyIPC, local.PropertyUTS, local.PropertyCgroup,
			local.PropertyNesting, local.PropertyCapabilities, local.PropertyNoNewPrivs, local.PropertyFilter,
			local.PropertyNoNetwork, local.PropertyReadOnly, local.PropertyFork, local.PropertyDestruction,
		}
	case config.RequireMemory:
		return []string{local.PropertyMemory}
	case config.RequireCPU:
		return []string{local.PropertyCPUShare, local.PropertyCPUTime}
	case config.RequirePids:
		return []string{local.PropertyPids}
	case config.RequireDisk:
		return []string{local.PropertyDisk, local.PropertyInodes}
	case config.RequireProof:
		return []string{local.PropertyCgroupProof}
	case config.RequireUIDs:
		return []string{local.PropertyUIDs}
	}
	return nil
}

func requiredProperties(require []string) []string {
	var names []string
	for _, word := range require {
		names = append(names, propertiesOf(word)...)
	}
	return names
}

// requireIsolation is nil where the report has all that the operator requires;
// else it says what is missing, why, and what to do (ErrRefused).
func requireIsolation(report local.Report, require []string) error {
	needed := requiredProperties(require)
	if p := report.Property(local.PropertySandbox); !p.Holds {
		lines := []string{"no sandbox can be made on this host", "  " + p.Why}
		for _, fix := range p.Fix {
			lines = append(lines, "  fix: "+fix)
		}
		return refused(lines)
	}
	err := report.Err(needed...)
	if err == nil {
		return nil
	}
	lines := []string{"required isolation is not available on this host", err.Error()}
	var less []string
	for _, word := range config.Requirements() {
		if slices.Contains(require, word) && report.Err(propertiesOf(word)...) == nil {
			less = append(less, word)
		}
	}
	if slices.Contains(less, config.RequireNamespaces) {
		lines = append(lines, "  or accept less, knowingly: --require="+strings.Join(less, ",")+" (jobs can then use all of what is not limited)")
	}
	return refused(lines)
}

func refused(lines []string) error {
	return fmt.Errorf("%w: %s\n  see: sallyport doctor", ErrRefused, strings.Join(lines, "\n"))
}
