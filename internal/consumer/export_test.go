package consumer

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/wire"
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

// The pure rules.
type (
	Facts    = facts
	Sight    = sight
	Decision = decision
)

// The steps of a decision.
const (
	StepRun    = stepRun
	StepEnd    = stepEnd
	StepClose  = stepClose
	StepRepeat = stepRepeat
	StepRefuse = stepRefuse
	StepWait   = stepWait
	StepLeave  = stepLeave
	StepProbe  = stepProbe
)

// The answers of Lapsed.
const (
	LapseNot   = lapseNot
	LapseMaybe = lapseMaybe
	LapseSure  = lapseSure
)

var (
	Decide     = decide
	Lapsed     = lapsed
	JoinRanges = joinRanges
)

// NewFacts is what a delivery's decision depends on.
func NewFacts(seq uint64, digest string, change func(*Facts)) Facts {
	f := Facts{seq: seq, digest: digest, attempts: 1, patience: time.Minute}
	if change != nil {
		change(&f)
	}
	return f
}

func (f *facts) SetInvalid(r wire.Reason)           { f.invalid = &wire.Invalid{Reason: r} }
func (f *facts) SetLate()                           { f.late = true }
func (f *facts) SetAged()                           { f.aged = true }
func (f *facts) SetRetry(attempts int)              { f.ifLost, f.attempts = true, attempts }
func NewSight(age time.Duration, silent bool) Sight { return Sight{age: age, silent: silent} }
func (d decision) Step() step                       { return d.step }
func (d decision) Attempt() int                     { return d.attempt }
func (d decision) Base() uint64                     { return d.base }
func (d decision) Final() (wire.Outcome, wire.Reason, wire.StartState) {
	return d.outcome, d.reason, d.start
}
