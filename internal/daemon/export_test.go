package daemon

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/wire"
)

// Part is a part, for tests.
type Part struct {
	Name string
	Run  func(context.Context) error
}

// RunInOrder is runInOrder, for tests.
func RunInOrder(ctx context.Context, parts ...Part) error {
	list := make([]part, 0, len(parts))
	for _, p := range parts {
		list = append(list, part{p.Name, p.Run})
	}
	return runInOrder(ctx, zerolog.Nop(), list...)
}

// RequireIsolation is requireIsolation, for tests.
func RequireIsolation(report local.Report, require []string) error {
	return requireIsolation(report, require)
}

// PropertiesOf is propertiesOf, for tests.
func PropertiesOf(word string) []string { return propertiesOf(word) }

// DefaultLimits are the defaults that an executor's profile keeps on a host.
func DefaultLimits(p config.Profile, caps sandbox.Capabilities) wire.Limits {
	return executorProfile(p, caps, zerolog.Nop()).Default
}
