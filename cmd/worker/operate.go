package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/wire"
)

// bus connects as an operator. The caller closes it.
func (s *session) bus(file string) (*bus.Bus, func(), error) {
	cfg, err := s.config(file, false)
	if err != nil {
		return nil, nil, err
	}
	log, err := s.logger(cfg)
	if err != nil {
		return nil, nil, err
	}
	b, err := daemon.Connect(s.ctx, cfg, log.Level(zerolog.ErrorLevel), "sallyport "+s.parsed.Command())
	if err != nil {
		return nil, nil, err
	}
	return b, func() {
		ctx, cancel := detached(s.ctx)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			s.warnf("%v", err)
		}
	}, nil
}

// stored is a record with the place where it stands.
type stored struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Record any       `json:"record"`
}

type deadCommand struct {
	Ls   deadLs   `cmd:"" help:"List the messages that could not be run."`
	Show deadShow `cmd:"" help:"Show one of them, with its headers and body."`
}

type deadLs struct {
	natsFlags
	jsonFlag
}

// Run lists the dead letters.
func (c *deadLs) Run(s *session) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	list, err := b.Dead().List(s.ctx)
	if c.JSON {
		for _, d := range list {
			err = errors.Join(err, s.json(stored{d.Seq, d.Time, d.Letter}))
		}
		return err
	}
	rows := [][]string{{"TENANT", "QUEUE", "ID", "REASON", "SINCE", "MESSAGE"}}
	for _, d := range list {
		l := d.Letter
		rows = append(rows, []string{l.Tenant, l.Queue, l.ID, string(l.Reason), ago(l.At), l.Message})
	}
	return errors.Join(s.table(rows, "no dead letters"), err)
}

type deadShow struct {
	natsFlags
	jsonFlag
	tenantFlag
	Queue string `default:"default" help:"Queue (default)." placeholder:"NAME"`
	ID    string `arg:"" help:"The job's id."`
}

// Run prints one dead letter as JSON.
func (c *deadShow) Run(s *session) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	job := wire.Job{Tenant: c.Tenant, Queue: c.Queue, ID: c.ID}
	d, err := b.Dead().Get(s.ctx, job)
	if errors.Is(err, bus.ErrNoRecord) {
		return fmt.Errorf("no dead letter of job %s in queue %s", job.Key(), job.Queue)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return s.json(stored{d.Seq, d.Time, d.Letter})
	}
	return s.indented(stored{d.Seq, d.Time, d.Letter})
}

type streamsCommand struct {
	Apply streamsApply `cmd:"" help:"Create the streams and consumers, or change them to what is planned."`
	Print streamsPrint `cmd:"" help:"Print the plan, for other tools to apply."`
	Check streamsCheck `cmd:"" help:"Compare what the server has with the plan."`
}

type streamsApply struct {
	natsFlags
	fleetFlags
	jsonFlag
}

// Run applies the plan.
func (c *streamsApply) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	plan, err := daemon.Plan(cfg)
	if err != nil {
		return err
	}
	changes, err := b.Apply(s.ctx, plan)
	for _, change := range changes {
		show := func() error { _, err := fmt.Fprintln(s.stdout, change); return err }
		if c.JSON {
			show = func() error { return s.json(change) }
		}
		if err := show(); err != nil {
			return err
		}
	}
	if err == nil && len(changes) == 0 && !c.JSON {
		_, err = fmt.Fprintln(s.stdout, "nothing to change")
	}
	return err
}

type streamsPrint struct {
	natsFlags
	fleetFlags
}

// Run prints the plan as JSON; it needs no server.
func (c *streamsPrint) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	plan, err := daemon.Plan(cfg)
	if err != nil {
		return err
	}
	document, err := plan.Document()
	if err != nil {
		return err
	}
	_, err = s.stdout.Write(document)
	return err
}

type streamsCheck struct {
	natsFlags
	fleetFlags
	jsonFlag
}

// Run reports everything that differs from the plan, and what no consumer covers.
func (c *streamsCheck) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, false)
	if err != nil {
		return err
	}
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	plan, err := daemon.Plan(cfg)
	if err != nil {
		return err
	}
	findings, err := b.Inspect(s.ctx, plan)
	if err != nil {
		return err
	}
	faults := 0
	for _, f := range findings {
		word := "warning: "
		if !f.Warning {
			word, faults = "fault: ", faults+1
		}
		show := func() error { _, err := fmt.Fprintln(s.stdout, word+f.String()); return err }
		if c.JSON {
			show = func() error { return s.json(f) }
		}
		if err := show(); err != nil {
			return err
		}
	}
	switch {
	case faults > 0:
		return &exit{exitRefused, fmt.Errorf("%d findings with which a worker does not start", faults)}
	case c.JSON:
	case len(findings) > 0:
		_, err = fmt.Fprintln(s.stdout, "the streams are safe to work with")
	default:
		_, err = fmt.Fprintln(s.stdout, "the streams are as planned")
	}
	return err
}

type configCommand struct {
	Print configPrint `cmd:"" help:"Print the effective configuration, secrets masked."`
}

type configPrint struct {
	natsFlags
	fleetFlags
	serviceFlags
	workerFlags
	jsonFlag
	Dev bool `help:"As the dev command sees it."`
}

// Run prints the configuration.
func (c *configPrint) Run(s *session) error {
	cfg, err := s.config(c.ConfigFile, c.Dev)
	if err != nil {
		return err
	}
	write := cfg.YAML
	if c.JSON {
		write = cfg.JSON
	}
	text, err := write()
	if err != nil {
		return err
	}
	_, err = s.stdout.Write(text)
	return err
}

type versionCommand struct {
	jsonFlag
}

// Run prints the version.
func (c *versionCommand) Run(s *session) error {
	if c.JSON {
		return s.json(map[string]string{"version": version()})
	}
	_, err := fmt.Fprintln(s.stdout, version())
	return err
}

// table prints rows under a heading, or none where there is only the heading.
func (s *session) table(rows [][]string, none string) error {
	if len(rows) == 1 {
		_, err := fmt.Fprintln(s.stdout, none)
		return err
	}
	w := tabwriter.NewWriter(s.stdout, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// indented prints v as JSON for a person.
func (s *session) indented(v any) error {
	e := json.NewEncoder(s.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func ago(t time.Time) string { return time.Since(t).Round(time.Second).String() + " ago" }

// quiet is a log of errors only.
func (s *session) quiet() zerolog.Logger {
	level := zerolog.ErrorLevel
	return zerolog.New(s.stderr).Level(level).With().Timestamp().Logger()
}
