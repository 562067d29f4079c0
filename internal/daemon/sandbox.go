package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/observe"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/wire"
)

// The names of providers in the configuration.
const (
	providerLocal = local.Name
	providerFake  = "fake"
)

// sandboxes are the providers that the profiles name, and what they stand on.
type sandboxes struct {
	providers map[string]sandbox.Provider
	// report is what was found about control groups; nil without a local provider.
	report *cgroup.Report
	// closers end what stands here, the last one first.
	closers []func() error
}

// openSandboxes makes the providers of the configured profiles.
func openSandboxes(ctx context.Context, cfg *config.Config, inst *Instance, log zerolog.Logger) (*sandboxes, error) {
	s := &sandboxes{providers: map[string]sandbox.Provider{}}
	for _, name := range cfg.ProfileNames() {
		p := cfg.Profiles[name]
		if s.providers[p.Provider] != nil {
			continue
		}
		provider, err := s.open(ctx, p.Provider, cfg, inst, log.With().Str(observe.KeyProvider, p.Provider).Logger())
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.providers[p.Provider] = provider
		s.closers = append(s.closers, provider.Close)
	}
	return s, nil
}

func (s *sandboxes) open(ctx context.Context, name string, cfg *config.Config, inst *Instance, log zerolog.Logger) (sandbox.Provider, error) {
	switch name {
	case providerFake:
		token, err := inst.token()
		if err != nil {
			return nil, err
		}
		log.Warn().Msg("profiles of the provider fake run no programs, only their imitation")
		// Its sandboxes are in this process alone, so only this instance's own
		// reaper may say that they are gone.
		return fake.New(fake.NewWorld(), fake.Config{Host: wire.Token(inst.Host + "-" + token)}), nil
	case providerLocal:
		return s.openLocal(ctx, cfg, inst, log)
	default:
		return nil, fmt.Errorf("there is no provider %q", name)
	}
}

// openLocal makes the local provider, or says why this host cannot isolate as
// required.
func (s *sandboxes) openLocal(ctx context.Context, cfg *config.Config, inst *Instance, log zerolog.Logger) (sandbox.Provider, error) {
	token, err := inst.token()
	if err != nil {
		return nil, err
	}
	group, report := cgroup.Open(cgroup.Config{Instance: token})
	s.report = &report
	if group != nil {
		s.closers = append(s.closers, func() error { return closeGroup(ctx, group) })
	}
	provider, err := local.New(local.Config{
		StateDir: filepath.Join(cfg.StateDir, providerLocal), Host: inst.Host, Instance: token, Cgroup: group, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w\n  see: sallyport doctor", ErrRefused, err)
	}
	if err := requireHost(cfg.Require, provider.Capabilities()); err != nil {
		return nil, errors.Join(err, provider.Close())
	}
	caps := provider.Capabilities()
	_, missing := isolation(caps)
	log.Info().Str("isolation", caps.Isolation.Level).Strs("applied", caps.Isolation.Applied).Strs("missing", missing).Msg("isolation of this host")
	return provider, nil
}

// probe makes a local sandbox of each profile, and runs a program where the
// host's own are visible: settings say what should work, only doing it says what
// does.
func (s *sandboxes) probe(ctx context.Context, cfg *config.Config) error {
	for _, name := range cfg.ProfileNames() {
		p := cfg.Profiles[name]
		if p.Provider != providerLocal {
			continue
		}
		provider := s.providers[p.Provider]
		if _, err := tryProfile(ctx, provider, poolProfile(p, provider).Spec); err != nil {
			return fmt.Errorf("%w: profile %s: a sandbox on this host: %w\n  see: sallyport doctor", ErrRefused, name, err)
		}
	}
	return nil
}

// closeGroup removes the control groups; the last processes may take a moment to
// leave them.
func closeGroup(ctx context.Context, group *cgroup.Group) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := group.Close(ctx); err != nil {
		return fmt.Errorf("remove the control groups: %w", err)
	}
	return nil
}

// close ends the providers, which ends every sandbox that cannot outlive them.
func (s *sandboxes) close() error {
	var errs []error
	for _, end := range slices.Backward(s.closers) {
		errs = append(errs, end())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// token names this instance among all of this host, whatever their state
// directories: control groups are the host's.
func (i *Instance) token() (string, error) {
	dir, err := filepath.Abs(i.Dir)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8]), nil
}
