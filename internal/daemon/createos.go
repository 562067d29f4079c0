package daemon

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/sandbox/createos"
	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/wire"
)

// openCreateOS makes the provider of remote sandboxes. What is wrong with its settings
// is a mistake of the configuration.
func openCreateOS(ctx context.Context, cfg *config.Config, log zerolog.Logger) (*createos.Provider, error) {
	c := cfg.CreateOS
	settings := createos.Config{
		Name: providerCreateOS, APIURL: c.URL, APIKey: createos.Secret(c.Key), APIKeyFile: c.KeyFile, EnvAPIKey: createos.Secret(c.EnvKey),
		Account: c.Account, NamePrefix: c.NamePrefix, Shape: c.Shape, Rootfs: c.Rootfs, Region: c.Region, Egress: c.Egress, DiskBytes: c.DiskBytes,
		Workspace: c.Workspace, Temporary: c.Temporary, PauseIdle: c.PauseIdle,
		AutoPause: c.AutoPause, Pace: c.Pace, Timeout: c.Timeout,
		RequestTimeout: c.RequestTimeout, CleanupTimeout: c.CleanupTimeout, GateTimeout: c.GateTimeout, IdleTimeout: c.IdleTimeout,
		Poll: c.Poll, SecondLook: c.SecondLook, Reconnects: c.Reconnects, ReconnectDelay: c.ReconnectDelay, Log: log,
	}
	for _, p := range cfg.Profiles {
		settings.Reuse = settings.Reuse || p.Provider == providerCreateOS && p.Reuse == string(wire.ReuseTenant)
	}
	if err := settings.Validate(); err != nil {
		return nil, createOSMistakes(err)
	}
	return createos.New(ctx, settings)
}

// createOSMistakes names the settings as the configuration does.
func createOSMistakes(err error) error {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	var mistakes config.MistakesError
	for _, one := range all {
		key, message, _ := strings.Cut(one.Error(), ": ")
		mistakes = append(mistakes, config.Mistake{Key: providerCreateOS + "_" + key, Message: message})
	}
	return mistakes
}

// startCreateOS starts a stand-in for the service and points the configuration at it.
func startCreateOS(ctx context.Context, cfg *config.Config, log zerolog.Logger) (*createostest.Server, error) {
	key := rand.Text()
	server, err := createostest.New(createostest.Config{APIKey: key, Log: log.With().Str("service", "createos").Logger()})
	if err != nil {
		return nil, fmt.Errorf("stand-in for CreateOS: %w", err)
	}
	if err := server.Start(ctx); err != nil {
		return nil, fmt.Errorf("stand-in for CreateOS: %w", err)
	}
	cfg.CreateOS.URL, cfg.CreateOS.Key = server.URL(), key
	return server, nil
}
