package main

import (
	"fmt"
	"os"

	"github.com/sallyport/sallyport/internal/bench"
)

type benchCommand struct {
	Rounds      int     `default:"3" help:"How often each figure is measured, ours and naive in turn (${default})." placeholder:"N"`
	Scale       float64 `default:"1" help:"Multiplies the number of jobs (${default})." placeholder:"FACTOR"`
	Concurrency []int   `default:"1,8,64" help:"Jobs in flight (${default})." placeholder:"N,…"`
	Slots       int     `default:"64" help:"Slots of both workers (${default})." placeholder:"N"`
	Only        string  `help:"Measure only this workload (J1 to J4)." placeholder:"NAME"`

	NaiveWorker bool   `hidden:"" help:"Be the naive worker."`
	Server      string `hidden:"" help:"Its server."`
}

// Run measures, or is the naive worker of a measurement.
func (c *benchCommand) Run(s *session) error {
	if c.NaiveWorker {
		return bench.Naive(s.ctx, c.Server, c.Slots)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own binary: %w", err)
	}
	return bench.Run(s.ctx, bench.Options{
		Executable: exe, Rounds: c.Rounds, Scale: c.Scale, Concurrencies: c.Concurrency, Slots: c.Slots, Only: c.Only, Out: s.stdout,
	})
}
