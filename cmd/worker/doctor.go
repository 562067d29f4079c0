package main

import (
	"errors"
	"strings"

	"github.com/sallyport/sallyport/internal/daemon"
)

type doctorCommand struct {
	natsFlags
	fleetFlags
	jsonFlag
	LogLevel string `group:"settings" help:"debug, info, warn or error." placeholder:"LEVEL"`
	Require  string `group:"settings" help:"What this host must be able to isolate and limit (namespaces,memory,cpu,pids)." placeholder:"LIST"`
}

// Run prints what works, what does not and what to do. It fails where a worker
// with this configuration would not start.
func (c *doctorCommand) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	checks, err := daemon.Examine(s.ctx, cfg, s.quiet())
	if c.JSON {
		err = errors.Join(err, s.json(checks))
	}
	failed := 0
	for _, check := range checks {
		if !check.OK && check.Needed {
			failed++
		}
		if !c.JSON {
			err = errors.Join(err, s.finding(check))
		}
	}
	if err == nil && failed > 0 {
		err = &exit{code: exitRefused}
		s.warnf("a worker with this configuration would not start: %d of %d checks failed", failed, len(checks))
	}
	return err
}

// finding prints one check, further lines indented.
func (s *session) finding(check daemon.Check) error {
	mark := "ok"
	switch {
	case !check.OK && check.Needed:
		mark = "FAIL"
	case !check.OK:
		mark = "no"
	}
	const indent = "\n                               "
	lines := []string{check.Detail}
	for _, fix := range check.Fix {
		lines = append(lines, "→ "+fix)
	}
	text := strings.ReplaceAll(strings.Join(lines, "\n"), "\n", indent)
	return s.printf("%-5s %-24s %s\n", mark, check.Name, text)
}
