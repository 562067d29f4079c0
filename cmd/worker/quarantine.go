package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/reaper"
	"github.com/sallyport/sallyport/internal/wire"
)

type quarantineCommand struct {
	Ls      quarantineLs      `cmd:"" help:"List the sandboxes in quarantine, destroyed ones too while they are kept."`
	Show    quarantineShow    `cmd:"" help:"Show all that is known of one sandbox there."`
	Retry   quarantineRetry   `cmd:"" help:"Try to destroy them now, however long the wait would be."`
	Hold    quarantineHold    `cmd:"" help:"Leave them alone until they are released."`
	Release quarantineRelease `cmd:"" help:"End a hold: they may be destroyed again."`
	Resolve quarantineResolve `cmd:"" help:"Say that they are gone, for hosts that never come back."`
}

type quarantineLs struct {
	natsFlags
	jsonFlag
}

// Run lists the quarantine records.
func (c *quarantineLs) Run(s *session) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	list, err := reaper.NewDesk(b).List(s.ctx)
	if c.JSON {
		for _, q := range list {
			err = errors.Join(err, s.json(quarantineDocument(q)))
		}
		return err
	}
	rows := [][]string{{"LEASE", "PROVIDER", "HOST", "STATE", "REASON", "SINCE", "JOB"}}
	for _, q := range list {
		r := q.Record
		rows = append(rows, []string{r.Lease, r.Provider, r.Host, string(r.State), string(r.Reason), ago(r.FirstSeen), jobName(r)})
	}
	return errors.Join(s.table(rows, "nothing in quarantine"), err)
}

type quarantineShow struct {
	natsFlags
	jsonFlag
	Lease string `arg:"" help:"The lease's id."`
}

// Run prints one record as JSON.
func (c *quarantineShow) Run(s *session) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	q, err := reaper.NewDesk(b).Show(s.ctx, c.Lease)
	if err != nil {
		return err
	}
	if c.JSON {
		return s.json(quarantineDocument(*q))
	}
	return s.indented(quarantineDocument(*q))
}

func quarantineDocument(q bus.StoredQuarantine) stored { return stored{q.Seq, q.Time, q.Record} }

func jobName(q wire.Quarantine) string {
	if q.Job == "" {
		return "-"
	}
	return q.Tenant + "." + q.Job
}

// orderFlags are on every command that decides about leases.
type orderFlags struct {
	natsFlags
	jsonFlag
	By     string   `help:"Who says so, for the record (the system's user and host)." placeholder:"NAME"`
	Leases []string `arg:"" name:"lease" help:"The leases' ids."`
}

type quarantineRetry struct {
	orderFlags
	Reason string `help:"Why, for the record." placeholder:"TEXT"`
}

// Run asks for a try at once.
func (c *quarantineRetry) Run(s *session) error { return c.order(s, wire.OpRetry, c.Reason) }

type quarantineHold struct {
	orderFlags
	Reason string `help:"Why, for the record." placeholder:"TEXT"`
}

// Run holds leases.
func (c *quarantineHold) Run(s *session) error { return c.order(s, wire.OpHold, c.Reason) }

type quarantineRelease struct {
	orderFlags
	Reason string `help:"Why, for the record." placeholder:"TEXT"`
}

// Run ends holds.
func (c *quarantineRelease) Run(s *session) error { return c.order(s, wire.OpRelease, c.Reason) }

type quarantineResolve struct {
	orderFlags
	Evidence string `required:"" help:"How you know that the sandbox is gone; it becomes the record's evidence." placeholder:"TEXT"`
}

// Run resolves leases by hand.
func (c *quarantineResolve) Run(s *session) error {
	if c.Evidence == "" {
		return &exit{exitUsage, fmt.Errorf("--evidence: %w", reaper.ErrNoEvidence)}
	}
	return c.order(s, wire.OpResolve, c.Evidence)
}

// order carries one order out on each lease; a lease on which it fails keeps it from
// no other one.
func (c *orderFlags) order(s *session, op wire.ReaperOp, text string) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	desk := reaper.NewDesk(b)
	by := c.By
	if by == "" {
		by = whoAmI()
	}
	var faults []error
	for _, lease := range c.Leases {
		q, err := desk.Act(s.ctx, reaper.Order{Op: op, Lease: lease, By: by, Text: text})
		switch {
		case err != nil:
		case c.JSON:
			err = s.json(quarantineDocument(*q))
		default:
			_, err = fmt.Fprintln(s.stdout, lease, q.Record.State)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// whoAmI names the person at the terminal, as far as the system knows.
func whoAmI() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
