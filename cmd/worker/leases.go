package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/wire"
)

type leasesCommand struct {
	natsFlags
	jsonFlag
	All  bool          `help:"With the ledger's finished entries, while they are kept."`
	Wait time.Duration `default:"2s" help:"How long to wait for workers to answer (2s)." placeholder:"2s"`
}

// leaseLine is one lease as JSON: what the ledger has, or what a worker's pool has.
type leaseLine struct {
	Source string          `json:"source"` // ledger, or pool
	Worker string          `json:"worker"`
	Host   string          `json:"host"`
	Entry  *stored         `json:"entry,omitempty"`
	Lease  *wire.HeldLease `json:"lease,omitempty"`
}

// Run lists the ledger's entries, and what the workers' pools hold.
func (c *leasesCommand) Run(s *session) error {
	b, done, err := s.bus(c.ConfigFile)
	if err != nil {
		return err
	}
	defer done()
	entries, ledgerErr := b.Ledger().ListAll(s.ctx)
	pools, poolErr := c.pools(s.ctx, b)
	var lines []leaseLine
	rows := [][]string{{"LEASE", "SOURCE", "PROVIDER", "HOST", "STATE", "WORKER", "TENANT", "USES", "SINCE"}}
	for i := range entries {
		e, r := &entries[i], &entries[i].Record
		if r.State == wire.LeaseDestroyed && !c.All {
			continue
		}
		lines = append(lines, leaseLine{Source: "ledger", Worker: r.Worker, Host: r.Host, Entry: &stored{e.Seq, e.Time, r}})
		rows = append(rows, []string{r.Lease, "ledger", r.Provider, r.Host, string(r.State), r.Worker, orDash(r.Tenant), fmt.Sprint(r.Uses), ago(r.Intended)})
	}
	for _, p := range pools {
		for _, l := range p.Leases {
			lines = append(lines, leaseLine{Source: "pool", Worker: p.Worker, Host: p.Host, Lease: &l})
			rows = append(rows, []string{l.Lease, "pool", l.Provider, p.Host, l.State, p.Worker, orDash(l.Tenant), fmt.Sprint(l.Uses), ago(l.Since)})
		}
		if p.More > 0 {
			poolErr = errors.Join(poolErr, fmt.Errorf("worker %s has %d leases more", p.Worker, p.More))
		}
	}
	err = errors.Join(ledgerErr, poolErr)
	if c.JSON {
		for _, line := range lines {
			err = errors.Join(err, s.json(line))
		}
		return err
	}
	return errors.Join(s.table(rows, "no leases"), err)
}

func orDash(word string) string {
	if word == "" {
		return "-"
	}
	return word
}

// pools asks all workers what they hold, and waits until those of the registry have
// answered, or the wait is over.
func (c *leasesCommand) pools(ctx context.Context, b *bus.Bus) (answers []wire.HeldLeases, err error) {
	workers, registryErr := daemon.Workers(ctx, b)
	expected := map[string]bool{}
	for _, w := range workers {
		expected[w.Worker] = true
	}
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	nc := b.Control()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("ask the workers: %w", err)
	}
	defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
	if err := nc.PublishRequest(b.Subjects().WorkerLeases(), inbox, nil); err != nil {
		return nil, fmt.Errorf("ask the workers: %w", err)
	}
	for len(expected) > 0 {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			break // the wait is over, or nobody is there
		}
		var answer wire.HeldLeases
		if err := json.Unmarshal(msg.Data, &answer); err != nil {
			return answers, fmt.Errorf("answer of a worker: %w", err)
		}
		answers = append(answers, answer)
		delete(expected, answer.Worker)
	}
	for worker := range expected {
		registryErr = errors.Join(registryErr, fmt.Errorf("worker %s did not answer within %s", worker, c.Wait))
	}
	return answers, registryErr
}
