package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// Check is one thing that the doctor looked at.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Needed says that a worker with this configuration does not start without it.
	Needed bool   `json:"needed"`
	Detail string `json:"detail"`
	// Fix says what to do where it is not OK.
	Fix []string `json:"fix,omitempty"`
}

// Examine looks at this host and at the NATS server as a worker with this
// configuration would, a real sandbox included. The error is about the examining
// itself; what was found is in the checks.
func Examine(ctx context.Context, cfg *config.Config, log zerolog.Logger) (checks []Check, err error) {
	dir, err := os.MkdirTemp("", "sallyport-doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	checks, err = examineHost(ctx, cfg, dir, log)
	if err != nil {
		return checks, err
	}
	checks = append(checks, examineCreateOS(ctx, cfg, log)...)
	return append(checks, examineNATS(ctx, cfg, log)...), nil
}

// examineCreateOS makes a remote sandbox, runs a program in it and destroys it, where a
// profile would have one.
func examineCreateOS(ctx context.Context, cfg *config.Config, log zerolog.Logger) []Check {
	remote := func(p config.Profile) bool { return p.Provider == providerCreateOS }
	if !slices.ContainsFunc(slices.Collect(maps.Values(cfg.Profiles)), remote) {
		return nil
	}
	c := Check{Name: providerCreateOS, Needed: true}
	provider, err := openCreateOS(ctx, cfg, log)
	if err == nil {
		err = errors.Join(provider.Probe(ctx), provider.Close())
	}
	if err != nil {
		c.Detail = err.Error()
		return []Check{c}
	}
	c.OK, c.Detail = true, "a sandbox was made, a program ran in it, and it is gone"
	return []Check{c}
}

// examineHost makes a local provider with its state in dir, and probes it.
func examineHost(ctx context.Context, cfg *config.Config, dir string, log zerolog.Logger) (checks []Check, err error) {
	own := *cfg
	own.StateDir = dir
	own.Profiles = map[string]config.Profile{}
	for name, p := range cfg.Profiles {
		if p.Provider == providerLocal {
			own.Profiles[name] = p
		}
	}
	if len(own.Profiles) == 0 {
		own.Profiles["default"] = config.Profile{Name: "default", Provider: providerLocal}
	}
	inst, err := TakeInstance(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	boxes, err := openSandboxes(ctx, &own, inst, Build{}, log)
	if err != nil {
		return []Check{{Name: local.PropertySandbox, Needed: true, Detail: err.Error()}}, nil
	}
	defer func() { err = errors.Join(err, boxes.close()) }()
	report := boxes.local.Probe(ctx, boxes.groups, probeRoot(&own))
	checks = append([]Check{
		{Name: "kernel", OK: true, Detail: report.Kernel + ", running as " + report.User},
		{Name: "isolation level", OK: report.Level != levelNone, Needed: true, Detail: report.Level},
		examineGroups(boxes.groups),
	}, examineReport(report, cfg.Require)...)
	if err := requireIsolation(report, cfg.Require); err != nil {
		checks = append(checks, Check{Name: "requirements", Needed: true, Detail: err.Error()})
		return checks, nil
	}
	checks = append(checks, Check{Name: "requirements", OK: true, Needed: true, Detail: strings.Join(cfg.Require, ", ") + ": all there"})
	for _, name := range own.ProfileNames() {
		checks = append(checks, examineProfile(ctx, boxes.local, own.Profiles[name]))
	}
	return checks, nil
}

// examineReport is a check for each property.
func examineReport(report local.Report, require []string) []Check {
	needed := requiredProperties(require)
	checks := make([]Check, 0, len(report.Properties))
	for _, p := range report.Properties {
		detail := "enforced by " + p.By
		if !p.Holds {
			detail = "not enforced: " + p.Why
		}
		checks = append(checks, Check{Name: p.Name, OK: p.Holds, Needed: slices.Contains(needed, p.Name), Detail: detail, Fix: p.Fix})
	}
	return checks
}

func examineGroups(r cgroup.Report) Check {
	c := Check{Name: "control groups", OK: len(r.Dirs) > 0, Detail: strings.TrimSpace(r.Layout + " " + strings.Join(r.Dirs, ", ")), Fix: r.Weaker}
	if !c.OK {
		c.Fix = slices.Concat(c.Fix, r.Proof.Fix)
		c.Detail = orNone(r.Layout) + ", not to be used: " + r.Proof.Why
	}
	return c
}

func examineProfile(ctx context.Context, provider *local.Provider, p config.Profile) Check {
	c := Check{Name: "profile " + p.Name, OK: true, Needed: true, Detail: "a sandbox was made, with the root view of the host's system directories"}
	if p.Root != "" {
		c.Detail = "a sandbox was made, with the root view " + p.Root
	}
	if err := tryProfile(ctx, provider, poolProfile(p, provider).Spec); err != nil {
		c.OK, c.Detail = false, err.Error()
	}
	return c
}

func orNone(text string) string {
	if text == "" {
		return levelNone
	}
	return text
}

func examineNATS(ctx context.Context, cfg *config.Config, log zerolog.Logger) []Check {
	b, err := Connect(ctx, cfg, log, "sallyport doctor")
	if err != nil {
		return []Check{{Name: "nats", Needed: true, Detail: err.Error()}}
	}
	defer closeBus(ctx, b, log)
	nc := b.Control()
	checks := []Check{{Name: "nats", OK: true, Needed: true, Detail: fmt.Sprintf("%s, version %s, messages of up to %s",
		nc.ConnectedUrlRedacted(), nc.ConnectedServerVersion(), config.FormatSize(nc.MaxPayload()))}}
	if err := CheckStreams(ctx, b, cfg); err != nil {
		return append(checks, Check{Name: "streams", Needed: true, Detail: err.Error()})
	}
	return append(checks, Check{Name: "streams", OK: true, Needed: true, Detail: "as planned"})
}
