package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/observe"
)

// The exit codes of every command but run.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitConnect = 3
	exitRefused = 4
)

// exit is an error with the process's exit code. A nil err says nothing more:
// what there was to say has been printed.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// process is what the operating system gives a command.
type process struct {
	args, environ  []string
	root, pretty   bool
	stdin          io.Reader
	stdout, stderr io.Writer
	// hurry ends with the second signal: what is draining is cut off.
	hurry context.Context //nolint:containedctx // a property of the process
}

// grammar is the command line.
type grammar struct {
	Dev     devCommand     `cmd:"" group:"serve" help:"Run everything in one process: an embedded NATS server, a worker, a gateway and a reaper."`
	Worker  workerCommand  `cmd:"" group:"serve" help:"Take jobs from the queues and run them in sandboxes on this host."`
	Gateway gatewayCommand `cmd:"" group:"serve" help:"Take requests from publishers and put them into the queues."`
	Reaper  reaperCommand  `cmd:"" group:"serve" help:"Destroy what is in quarantine on this host, and remote sandboxes that are in quarantine or have no owner any more."`

	Run    runCommand    `cmd:"" group:"jobs" help:"Run a command as a job, show its output, exit with its code."`
	Submit submitCommand `cmd:"" group:"jobs" help:"Submit a job and print its id."`
	Tail   tailCommand   `cmd:"" group:"jobs" help:"Show a job's stored output and follow it to its end."`
	Status statusCommand `cmd:"" group:"jobs" help:"Show where a job stands."`
	Cancel cancelCommand `cmd:"" group:"jobs" help:"End a queued or running job."`

	Quarantine quarantineCommand `cmd:"" group:"operate" help:"Look at the sandboxes that could not be proven empty, and decide about them."`
	Leases     leasesCommand     `cmd:"" group:"operate" help:"List the sandboxes that the ledger and the workers have."`
	Dead       deadCommand       `cmd:"" group:"operate" help:"Look at the job messages that could not be run."`
	Workers    workersCommand    `cmd:"" group:"operate" help:"List the workers, with what they isolate and how busy they are."`
	Streams    streamsCommand    `cmd:"" group:"operate" help:"Create, print or check the streams."`
	Doctor     doctorCommand     `cmd:"" group:"operate" help:"Show what this host and the NATS server give, and what to do where it is not enough."`
	Config     configCommand     `cmd:"" group:"operate" help:"Show the effective configuration."`
	Bench      benchCommand      `cmd:"" group:"operate" help:"Measure our worker against a naive one on this machine."`
	Version    versionCommand    `cmd:"" group:"operate" help:"Print the version."`

	Demo demoCommand `cmd:"" hidden:"" help:"Show the whole path on a stack of its own, and check it."`
}

// execute runs one command and returns the exit code.
func execute(ctx context.Context, p process) int {
	var cli grammar
	helped := false
	parser, err := kong.New(&cli,
		kong.Name("sallyport"),
		kong.Description("Runs commands from NATS JetStream in sandboxes, and proves that nothing of them is left."),
		kong.Writers(p.stdout, p.stderr),
		// --slots -1 should meet the configuration's words, not the parser's.
		kong.WithHyphenPrefixedParameters(true),
		kong.Exit(func(int) { helped = true }),
		kong.ExplicitGroups([]kong.Group{
			{Key: "serve", Title: "Services:"},
			{Key: "jobs", Title: "Jobs:"},
			{Key: "operate", Title: "Operation:"},
			{Key: "nats", Title: "NATS (the names of the nats tool):"},
			{Key: "settings", Title: "Settings (also in --config and SALLYPORT_…):"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		return p.fail(err)
	}
	if len(p.args) == 0 {
		p.args = []string{"--help"}
	}
	parsed, err := parser.Parse(p.args)
	if helped {
		return exitOK
	}
	if err != nil {
		return p.fail(&exit{exitUsage, fmt.Errorf("%w (see %s --help)", err, commandOf(err))})
	}
	return p.fail(parsed.Run(&session{process: p, parsed: parsed, ctx: ctx}))
}

// commandOf is the command that a wrong command line means, as far as it was
// understood.
func commandOf(err error) string {
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		if node := parse.Context.Selected(); node != nil {
			return node.FullPath()
		}
	}
	return "sallyport"
}

// fail prints err, if there is one, and returns the exit code that it means.
func (p process) fail(err error) int {
	if err == nil {
		return exitOK
	}
	code, coded := exitFailure, (*exit)(nil)
	var mistakes config.MistakesError
	switch {
	case errors.As(err, &coded):
		code = coded.code
		if coded.err == nil {
			return code
		}
	case errors.As(err, &mistakes):
		code = exitUsage
	case errors.Is(err, daemon.ErrConnect):
		code = exitConnect
	case errors.Is(err, daemon.ErrRefused):
		code = exitRefused
	}
	p.warnf("%v", err)
	return code
}

// warnf writes a line for the person at the terminal. When even that is gone,
// there is nobody left to tell.
func (p process) warnf(format string, args ...any) {
	if _, err := fmt.Fprintf(p.stderr, "sallyport: "+format+"\n", args...); err != nil {
		return
	}
}

// session is one command's surroundings.
type session struct {
	process

	parsed *kong.Context
	// ctx ends with the first signal. It is a field here, at the outermost edge,
	// because kong binds one value per type.
	ctx context.Context //nolint:containedctx // see above
}

// config loads the configuration, with the flags that were given on top.
func (s *session) config(file string, dev bool) (*config.Config, error) {
	return s.load(config.Sources{File: file, Dev: dev})
}

// load completes the sources with what this process knows.
func (s *session) load(src config.Sources) (*config.Config, error) {
	flags := map[string]string{}
	keys := config.Keys()
	for _, f := range s.parsed.Flags() {
		key := strings.ReplaceAll(f.Name, "-", "_")
		if f.Set && slices.Contains(keys, key) {
			flags[key] = fmt.Sprint(s.parsed.FlagValue(f))
		}
	}
	src.Environ, src.Flags, src.Root, src.CPUs = s.environ, flags, s.root, runtime.NumCPU()
	cfg, err := config.Load(src)
	var mistakes config.MistakesError
	if err != nil && !errors.As(err, &mistakes) {
		return nil, &exit{exitUsage, err}
	}
	return cfg, err
}

func (s *session) logger(cfg *config.Config) (zerolog.Logger, error) {
	return observe.Logger(s.stderr, cfg.LogLevel, s.pretty)
}

// crashVariable names a point at which a worker or a reaper kills itself, for tests.
const crashVariable = "TEST_SALLYPORT_CRASH"

// build says what is running.
func (s *session) build() daemon.Build {
	b := daemon.Build{Version: version()}
	for _, entry := range s.environ {
		if point, ok := strings.CutPrefix(entry, crashVariable+"="); ok {
			b.Crash = point
		}
	}
	return b
}

// version is the module's version, or the revision that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "0.0.0-dev"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
