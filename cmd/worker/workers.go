package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sallyport/sallyport/internal/daemon"
)

type workersCommand struct {
	natsFlags
	jsonFlag
}

// Run lists the registry.
func (c *workersCommand) Run(s *session) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	list, err := daemon.Workers(s.ctx, b)
	if c.JSON {
		for _, w := range list {
			err = errors.Join(err, s.json(w))
		}
		return err
	}
	rows := [][]string{{"WORKER", "HOST", "VERSION", "RUNNING", "ISOLATION", "MISSING", "SINCE", "STATE"}}
	for _, w := range list {
		state, missing := "ready", "-"
		if w.NotReady != "" {
			state, _, _ = strings.Cut(w.NotReady, "\n")
		}
		if w.Report != nil {
			missing = fmt.Sprint(len(w.Report.Lacks()))
		}
		rows = append(rows, []string{
			w.Worker, w.Host, w.Version, fmt.Sprintf("%d of %d", w.Running, w.Slots), w.Isolation, missing, ago(w.Since), state,
		})
	}
	return errors.Join(s.table(rows, "no workers"), err)
}
