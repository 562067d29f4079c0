package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
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
	return strings.Join(append([]string{fmt.Sprintf("%s: %s", where, c.Action)}, c.Fields...), "\n  ")
}

// Apply creates what is missing and updates what differs and may be updated, and
// says what it did, also beside an error; the error names everything that could
// not be done. What is as planned is not touched: an update of a live stream is
// not free of side effects. Nothing is ever deleted: a setting that the server
// cannot change is an error that says so.
func (b *Bus) Apply(ctx context.Context, plan *Layout) ([]Change, error) {
	var changes []Change
	var faults []error
	for _, s := range plan.Streams {
		change, err := b.applyStream(ctx, s.Config)
		if err != nil {
			faults = append(faults, fmt.Errorf("stream %s: %w", s.Config.Name, err))
			continue
		}
		changes = append(changes, change)
		for _, c := range s.Consumers {
			change, err := b.applyConsumer(ctx, s.Config.Name, c)
			if err != nil {
				faults = append(faults, fmt.Errorf("stream %s, consumer %s: %w", s.Config.Name, c.Name, err))
				continue
			}
			changes = append(changes, change)
		}
	}
	return changes, errors.Join(faults...)
}

func (b *Bus) applyStream(ctx context.Context, cfg jetstream.StreamConfig) (Change, error) {
	change := Change{Stream: cfg.Name, Action: Unchanged}
	info, err := b.streamInfo(ctx, cfg.Name)
	if hasCode(err, codeStreamNotFound) {
		change.Action = Created
		_, err := b.js.CreateStream(ctx, cfg)
		return change, wordsForCreate(err)
	}
	if err != nil {
		return change, hintPermission(err, b.api+".STREAM.INFO."+cfg.Name)
	}
	if change.Fields, err = updatable(compare(streamRules(), &info.Config, &cfg), remedyStream); err != nil || len(change.Fields) == 0 {
		return change, err
	}
	// What the rules do not name is the operator's, and more bytes than planned
	// are too: keep it.
	if info.Config.MaxBytes > cfg.MaxBytes {
		cfg.MaxBytes = info.Config.MaxBytes
	}
	cfg.Metadata, cfg.Placement, cfg.Description = info.Config.Metadata, info.Config.Placement, info.Config.Description
	cfg.FirstSeq, cfg.ConsumerLimits = info.Config.FirstSeq, info.Config.ConsumerLimits
	cfg.SubjectDeleteMarkerTTL = info.Config.SubjectDeleteMarkerTTL
	// And what the server cannot change and is safe as it stands.
	cfg.MaxConsumers = info.Config.MaxConsumers
	cfg.DenyDelete, cfg.DenyPurge = cfg.DenyDelete || info.Config.DenyDelete, cfg.DenyPurge || info.Config.DenyPurge
	change.Action = Updated
	_, err = b.js.UpdateStream(ctx, cfg)
	return change, wordsForCreate(err)
}

func (b *Bus) applyConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (Change, error) {
	change := Change{Stream: stream, Consumer: cfg.Name, Action: Unchanged}
	info := &jetstream.ConsumerInfo{}
	err := b.request(ctx, "CONSUMER.INFO."+stream+"."+cfg.Name, nil, info)
	if hasCode(err, codeConsumerNotFound) {
		change.Action = Created
		_, err := b.js.CreateConsumer(ctx, stream, cfg)
		return change, wordsForCreate(err)
	}
	if err != nil {
		return change, hintPermission(err, b.api+".CONSUMER.INFO."+stream+"."+cfg.Name)
	}
	if change.Fields, err = updatable(compare(consumerRules(), &info.Config, &cfg), remedyQueue); err != nil || len(change.Fields) == 0 {
		return change, err
	}
	cfg.Metadata, cfg.Description, cfg.PauseUntil = info.Config.Metadata, info.Config.Description, info.Config.PauseUntil
	cfg.MaxWaiting = max(cfg.MaxWaiting, info.Config.MaxWaiting) // the server cannot change it
	change.Action = Updated
	_, err = b.js.UpdateConsumer(ctx, stream, cfg)
	return change, wordsForCreate(err)
}

// updatable lists the differences in words, or says which of them the server
// would refuse.
func updatable(differences []difference, remedy string) ([]string, error) {
	var fields, fixed []string
	for _, d := range differences {
		line := fmt.Sprintf("%s: %s → %s", d.field, d.found, d.wanted)
		// What cannot be changed and is safe as it stands is no reason to refuse
		// the rest.
		if d.fixed && d.severity != fault {
			continue
		}
		fields = append(fields, line)
		if d.fixed {
			fixed = append(fixed, line)
		}
	}
	if len(fixed) > 0 {
		return nil, fmt.Errorf("%s: %s", strings.Join(fixed, ", "), remedy)
	}
	return fields, nil
}

// wordsForCreate says what to do about the refusals that an operator meets.
func wordsForCreate(err error) error {
	switch {
	case err == nil:
		return nil
	case hasCode(err, codeStorageExceeded):
		return fmt.Errorf("%w: the server reserves every stream's bytes from its storage limit: raise max_file_store (or the account's limit), or lower the streams' bytes", err)
	case hasCode(err, codeSubjectOverlap):
		return fmt.Errorf("%w: another stream takes these subjects: delete it, or choose another subject prefix", err)
	case hasCode(err, codeFilterTaken, codeUnfilteredTaken):
		return fmt.Errorf("%w: another consumer takes this queue's messages: delete it", err)
	default:
		return err
	}
}
