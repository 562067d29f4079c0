package consumer

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// The puller is tested alone, on a bare connection.
type (
	PullConfig = pullConfig
	PullQueue  = pullQueue
	PullStats  = pullStats
	Puller     = puller
)

func NewPuller(nc *nats.Conn, cfg PullConfig) *Puller { return newPuller(nc, zerolog.Nop(), cfg) }

func (p *puller) Run(ctx context.Context) error { return p.run(ctx) }
func (p *puller) Wait()                         { p.wait() }
func (p *puller) Ready() error                  { return p.ready() }
func (p *puller) Stats() PullStats              { return p.snapshot() }
