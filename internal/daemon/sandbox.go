package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
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
	providerLocal    = local.Name
	providerCreateOS = "createos"
	providerFake     = "fake"
)

// sandboxes are the providers that the profiles name, and what they stand on.
type sandboxes struct {
	providers map[string]sandbox.Provider
	// local is the local provider, nil where no profile names it; groups is what was
	// found about control groups for it, report what its probe found.
	local  *local.Provider
	groups cgroup.Report
	report *local.Report
	// crash is where a test wants this process to die.
	crash *crasher
	// closers end what stands here, the last one first.
	closers []func() error
}

// openSandboxes makes the providers of the configured profiles.
func openSandboxes(ctx context.Context, cfg *config.Config, inst *Instance, build Build, log zerolog.Logger) (*sandboxes, error) {
	crash, err := newCrasher(build.Crash)
	if err != nil {
		return nil, err
	}
	s := &sandboxes{providers: map[string]sandbox.Provider{}, crash: crash}
	for _, name := range cfg.ProfileNames() {
		p := cfg.Profiles[name]
		if s.providers[p.Provider] != nil {
			continue
		}
		provider, err := s.open(ctx, p.Provider, cfg, inst, log.With().Str(observe.KeyProvider, p.Provider).Logger())
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.providers[p.Provider] = crash.provider(provider)
		s.closers = append(s.closers, provider.Close)
	}
	return s, nil
}

func (s *sandboxes) open(ctx context.Context, name string, cfg *config.Config, inst *Instance, log zerolog.Logger) (sandbox.Provider, error) {
	switch name {
	case providerFake:
		log.Warn().Msg("profiles of the provider fake run no programs, only their imitation")
		return openFake(cfg, inst)
	case providerLocal:
		return s.openLocal(ctx, cfg, inst, log)
	case providerCreateOS:
		p, err := openCreateOS(ctx, cfg, log)
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return p, nil
	default:
		return nil, fmt.Errorf("there is no provider %q", name)
	}
}

// openFake makes the provider that fails on command.
func openFake(cfg *config.Config, inst *Instance) (sandbox.Provider, error) {
	if cfg.FakeWorld != "" {
		world, err := fake.OpenWorld(cfg.FakeWorld)
		if err != nil {
			return nil, fmt.Errorf("fake_world: %w", err)
		}
		return fake.New(world, fake.Config{Host: providerFake, OutlivesWorker: true}), nil
	}
	token, err := inst.token()
	if err != nil {
		return nil, err
	}
	// Its sandboxes are in this process alone, so only this instance's own reaper may
	// say that they are gone.
	return fake.New(fake.NewWorld(), fake.Config{Host: wire.Token(inst.Host + "-" + token)}), nil
}

// outlive says that sandboxes of one of the providers outlive this process.
func (s *sandboxes) outlive() bool {
	for _, p := range s.providers {
		if p.Capabilities().OutlivesWorker {
			return true
		}
	}
	return false
}

// within are the providers whose sandboxes a worker's own reaper ends.
func (s *sandboxes) within(r reach) map[string]sandbox.Provider {
	own := map[string]sandbox.Provider{}
	for name, p := range s.providers {
		if r == everywhere || !p.Capabilities().OutlivesWorker {
			own[name] = p
		}
	}
	return own
}

// openLocal makes the local provider.
func (s *sandboxes) openLocal(ctx context.Context, cfg *config.Config, inst *Instance, log zerolog.Logger) (sandbox.Provider, error) {
	token, err := inst.token()
	if err != nil {
		return nil, err
	}
	group, report := cgroup.Open(cgroup.Config{Instance: token})
	s.groups = report
	if group != nil {
		s.closers = append(s.closers, func() error { return closeGroup(ctx, group) })
	}
	provider, err := local.New(local.Config{
		StateDir: filepath.Join(cfg.StateDir, providerLocal), Host: inst.Host, Instance: token, Cgroup: group, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w\n  see: sallyport doctor", ErrRefused, err)
	}
	s.local = provider
	return provider, nil
}

// probe tries what the local provider claims, refuses where that is less than the
// configuration requires, and makes a sandbox of each local profile: settings say
// what should work, only doing it says what does.
func (s *sandboxes) probe(ctx context.Context, cfg *config.Config, log zerolog.Logger) error {
	if s.local == nil {
		return nil
	}
	report := s.local.Probe(ctx, s.groups, probeRoot(cfg))
	s.report = &report
	if err := requireIsolation(report, cfg.Require); err != nil {
		return err
	}
	log.Info().Str("isolation", report.Level).Strs("missing", report.Lacks()).Msg("isolation of this host")
	for _, name := range cfg.ProfileNames() {
		p := cfg.Profiles[name]
		if p.Provider != providerLocal {
			continue
		}
		if err := tryProfile(ctx, s.local, poolProfile(p, s.local).Spec); err != nil {
			return fmt.Errorf("%w: profile %s: a sandbox on this host: %w\n  see: sallyport doctor", ErrRefused, name, err)
		}
	}
	return nil
}

// probeRoot is the root view from which the probe looks: the host's, or, where the
// host has no shell, as a container of next to nothing, that of a profile.
func probeRoot(cfg *config.Config) string {
	if _, err := os.Stat("/bin/sh"); err == nil {
		return ""
	}
	for _, name := range cfg.ProfileNames() {
		if p := cfg.Profiles[name]; p.Provider == providerLocal && p.Root != "" {
			return strings.TrimPrefix(p.Root, local.OverlayPrefix)
		}
	}
	return ""
}

// tryProfile makes a profile's sandbox, with its root view and its greatest
// limits, and destroys it.
func tryProfile(ctx context.Context, provider sandbox.Provider, spec sandbox.Spec) (err error) {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	spec.Lease = "probe-" + strings.ToLower(ulid.Make().String())
	box, err := provider.Create(ctx, spec)
	if err != nil {
		return err
	}
	proof, err := box.Destroy(context.WithoutCancel(ctx))
	if err == nil && !proof.Proven {
		err = errors.New("it is not proven that the sandbox is gone")
	}
	return err
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
