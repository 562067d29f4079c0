package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Finding is one setting on the server that is not what the plan says.
type Finding struct {
	Stream string `json:"stream"`
	// Consumer is empty when the stream itself is meant.
	Consumer string `json:"consumer,omitempty"`
	// Field is the setting's name in the server's API.
	Field  string `json:"field"`
	Found  string `json:"found"`
	Wanted string `json:"wanted"`
	// Remedy says what to do.
	Remedy string `json:"remedy"`
	// Warning says that it is not as planned but safe to work with.
	Warning bool `json:"warning,omitempty"`
}

// String is the finding in words.
func (f Finding) String() string {
	where := "stream " + f.Stream
	if f.Consumer != "" {
		where += ", consumer " + f.Consumer
	}
	return fmt.Sprintf("%s: %s is %s, wanted %s: %s", where, f.Field, f.Found, f.Wanted, f.Remedy)
}

// CheckError is everything that Check found, warnings too; at least one finding
// is no warning.
type CheckError struct{ Findings []Finding }

// Error is one line a finding.
func (e *CheckError) Error() string {
	lines := make([]string, 0, len(e.Findings))
	for _, f := range e.Findings {
		line := f.String()
		if f.Warning {
			line = "warning: " + line
		}
		lines = append(lines, line)
	}
	return fmt.Sprintf("the streams are not as planned (%d findings):\n%s", len(e.Findings), strings.Join(lines, "\n"))
}

// Check compares what the server has with the plan and returns nil when all of
// it is safe to work with, a *CheckError with all findings when it is not, or
// the error that kept it from looking.
func (b *Bus) Check(ctx context.Context, plan *Layout) error {
	findings, err := b.Inspect(ctx, plan)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if !f.Warning {
			return &CheckError{Findings: findings}
		}
	}
	return nil
}

// pressureRatio is where workers stop pulling: a full stream refuses updates
// too, and so could not even say how the running jobs ended.
const pressureRatio = 0.8

// Pressure returns ErrPressure with words when the run records or the ledger are
// at 80 % of their bytes or beyond.
func (b *Bus) Pressure(ctx context.Context) error {
	var faults []error
	for _, name := range []string{b.streams.Runs, b.streams.Ledger} {
		info, err := b.streamInfo(ctx, name)
		if err != nil {
			faults = append(faults, fmt.Errorf("stream %s: %w", name, err))
			continue
		}
		limit := info.Config.MaxBytes
		if limit > 0 && float64(info.State.Bytes) >= pressureRatio*float64(limit) {
			faults = append(faults, fmt.Errorf("stream %s: %w: %d of %d bytes: give it more (nats stream edit --max-bytes), or shorten the result retention",
				name, ErrPressure, info.State.Bytes, limit))
		}
	}
	return errors.Join(faults...)
}
