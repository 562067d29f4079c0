package main

import (
	"fmt"
	"io"

	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
)

type devCommand struct {
	Listen string `group:"settings" help:"Address of the embedded NATS server (127.0.0.1:4222)." placeholder:"HOST:PORT"`

	WithCreateos bool `name:"with-createos" help:"Also start a stand-in for the CreateOS service, behind the profile createos."`

	ConfigFile string `name:"config" help:"Configuration file (YAML)." placeholder:"FILE"`
	fleetFlags
	serviceFlags
	workerFlags
}

// Run serves until the first signal.
func (c *devCommand) Run(s *session) error {
	cfg, err := s.load(config.Sources{File: c.ConfigFile, Dev: true, WithCreateOS: c.WithCreateos})
	if err != nil {
		return err
	}
	log, err := s.logger(cfg)
	if err != nil {
		return err
	}
	return daemon.RunDev(s.ctx, s.hurry, cfg, log, s.build(), func(d daemon.DevInfo) error {
		return announce(s.stdout, cfg, d)
	})
}

// announce prints how to use the running dev stack.
func announce(w io.Writer, cfg *config.Config, d daemon.DevInfo) error {
	server := " --server " + d.URL
	if d.URL == "nats://127.0.0.1:4222" {
		server = ""
	}
	_, err := fmt.Fprintf(w, `Sallyport is ready: NATS at %s, state in %s
Isolation: %s
`, d.URL, cfg.StateDir, d.Isolation)
	for _, missing := range d.Missing {
		if err == nil {
			_, err = fmt.Fprintf(w, "  not enforced here: %s\n", missing)
		}
	}
	remote := ""
	if cfg.CreateOS.Scripted {
		remote = "  sallyport run" + server + " --profile createos -- uname -n\n"
	}
	if err == nil {
		_, err = fmt.Fprintf(w, `
Try, in another terminal:
  sallyport run%[1]s -- echo hello
  sallyport run%[1]s --wall 2s -- sleep 10
  echo "some input" | sallyport run%[1]s --stdin - -- wc -c
  sallyport run%[1]s --profile fake -- fake print:hello exit:3
%[4]s  nats req%[1]s %[2]s.submit.default.%[3]s '{"v":1,"argv":["echo","hi"]}' --wait-for-empty --reply-timeout=1h

Ctrl-C ends it.
`, server, cfg.SubjectPrefix, cfg.Queues[0].Name, remote)
	}
	return err
}

type workerCommand struct {
	natsFlags
	fleetFlags
	serviceFlags
	workerFlags
	Gateway bool `help:"Also serve as a gateway."`
}

// Run serves until the first signal, then drains.
func (c *workerCommand) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	log, err := s.logger(cfg)
	if err != nil {
		return err
	}
	return daemon.RunWorker(s.ctx, s.hurry, cfg, log, s.build(), c.Gateway)
}

type gatewayCommand struct {
	natsFlags
	fleetFlags
	serviceFlags
}

// Run serves until the first signal.
func (c *gatewayCommand) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	log, err := s.logger(cfg)
	if err != nil {
		return err
	}
	return daemon.RunGateway(s.ctx, cfg, log, s.build())
}

type reaperCommand struct {
	natsFlags
	fleetFlags
	serviceFlags
}

// Run serves until the first signal.
func (c *reaperCommand) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	log, err := s.logger(cfg)
	if err != nil {
		return err
	}
	return daemon.RunReaper(s.ctx, cfg, log, s.build())
}
