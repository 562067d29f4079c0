package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/sandbox"
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
	checks = append(checks, Check{Name: "kernel", OK: true, Detail: kernel()})
	host, err := examineHost(ctx, cfg, dir, log)
	checks = append(checks, host...)
	if err != nil {
		return checks, err
	}
	return append(checks, examineNATS(ctx, cfg, log)...), nil
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	who := "an ordinary user"
	if os.Geteuid() == 0 {
		who = "root"
	}
	return fmt.Sprintf("%s %s on %s, running as %s", unix.ByteSliceToString(name.Sysname[:]),
		unix.ByteSliceToString(name.Release[:]), unix.ByteSliceToString(name.Machine[:]), who)
}

// examineHost makes a local provider in dir, and a sandbox with a program in it.
func examineHost(ctx context.Context, cfg *config.Config, dir string, log zerolog.Logger) (checks []Check, err error) {
	own := *cfg
	own.StateDir, own.Require = dir, nil
	own.Profiles = map[string]config.Profile{"default": {Name: "default", Provider: providerLocal}}
	inst, err := TakeInstance(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, inst.Close()) }()
	boxes, err := openSandboxes(ctx, &own, inst, log)
	if err != nil {
		return []Check{{Name: "sandbox", Needed: true, Detail: err.Error()}}, nil
	}
	defer func() { err = errors.Join(err, boxes.close()) }()
	if boxes.report != nil {
		checks = append(checks, examineGroups(*boxes.report)...)
	}
	provider := boxes.providers[providerLocal]
	caps := provider.Capabilities()
	level, missing := isolation(caps)
	for i := range missing {
		missing[i] = "missing: " + missing[i]
	}
	checks = append(checks, Check{
		Name: "isolation", OK: len(missing) == 0, Detail: level + ": " + strings.Join(caps.Isolation.Applied, ", "), Fix: missing,
	})
	if err := requireHost(cfg.Require, caps); err != nil {
		checks = append(checks, Check{Name: "requirements", Needed: true, Detail: err.Error()})
	} else {
		checks = append(checks, Check{Name: "requirements", OK: true, Needed: true, Detail: strings.Join(cfg.Require, ", ") + ": all there"})
	}
	return append(checks, trySandbox(ctx, provider)), nil
}

func examineGroups(r cgroup.Report) []Check {
	checks := []Check{{Name: "control groups", OK: len(r.Dirs) > 0, Detail: r.Layout + " " + strings.Join(r.Dirs, ", "), Fix: r.Weaker}}
	for _, f := range []struct {
		name    string
		finding cgroup.Finding
	}{{"memory limit", r.Memory}, {"pids limit", r.Pids}, {"cpu limit", r.CPU}, {"proof by control group", r.Proof}} {
		checks = append(checks, Check{Name: f.name, OK: f.finding.OK, Detail: f.finding.String(), Fix: f.finding.Fix})
	}
	return checks
}

// trySandbox runs a program in a sandbox and destroys it.
func trySandbox(ctx context.Context, provider sandbox.Provider) Check {
	began := time.Now()
	detail, err := tryProfile(ctx, provider, sandbox.Spec{Profile: "doctor"})
	if err != nil {
		return Check{Name: "sandbox", Needed: true, Detail: "a program in a real sandbox: " + err.Error()}
	}
	return Check{Name: "sandbox", OK: true, Needed: true, Detail: fmt.Sprintf("a program ran in a real sandbox, its end was proven (%s), all in %s", detail, time.Since(began).Round(time.Millisecond))}
}

// tryProfile makes a sandbox, runs a program in it where it shows the host's own,
// and destroys it. detail are the kinds of evidence of the program's end.
func tryProfile(ctx context.Context, provider sandbox.Provider, spec sandbox.Spec) (detail string, err error) {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	spec.Lease = "probe-" + strings.ToLower(ulid.Make().String())
	box, err := provider.Create(ctx, spec)
	if err != nil {
		return "", err
	}
	defer func() {
		proof, destroyErr := box.Destroy(context.WithoutCancel(ctx))
		if destroyErr == nil && !proof.Proven {
			destroyErr = errors.New("it is not proven that the sandbox is gone")
		}
		err = errors.Join(err, destroyErr)
	}()
	if spec.Root != "" {
		return "", nil
	}
	return runTrue(ctx, box)
}

// runTrue runs a shell that forks, which a set-up that is not whole does not
// survive.
func runTrue(ctx context.Context, box sandbox.Sandbox) (detail string, err error) {
	run, err := box.Prepare(ctx, sandbox.Process{
		Argv: []string{"/bin/sh", "-c", "/bin/true && (exit 0)"}, Env: []string{"PATH=/usr/bin:/bin"},
		Limits: sandbox.Limits{Pids: 16},
	}, discard{})
	if err != nil {
		return "", err
	}
	if err := run.Open(ctx); err != nil {
		return "", err
	}
	end, err := run.Wait(ctx)
	switch {
	case err != nil:
		return "", err
	case end.StartError != nil:
		return "", fmt.Errorf("/bin/sh: %s", end.StartError.Reason)
	case end.Exit == nil || *end.Exit != (sandbox.Exit{}):
		return "", fmt.Errorf("/bin/sh ended with %+v", end.Exit)
	case !end.Proof.Proven:
		return "", errors.New("the end of /bin/sh is not proven")
	}
	var kinds []string
	for _, e := range end.Proof.Evidence {
		kinds = append(kinds, string(e.Kind))
	}
	return strings.Join(kinds, ", "), nil
}

// discard is a sink that takes everything.
type discard struct{}

// Write implements sandbox.Sink.
func (discard) Write(sandbox.Stream, []byte) error { return nil }

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
