package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The remedies that a finding names.
const (
	remedyApply  = "run `sallyport streams apply`"
	remedyStream = "the server cannot change this: stop the workers, save what the stream holds, delete it and run `sallyport streams apply`"
	remedyQueue  = "the server cannot change this: stop the workers, delete the consumer (its messages stay) and run `sallyport streams apply`"
)

// uncoveredSample bounds how many subjects are looked at to name the queues that
// no consumer covers.
const uncoveredSample = 10_000

// Inspect compares what the server has with the plan and returns every
// difference that matters, warnings included. The error says what could not be
// looked at.
func (b *Bus) Inspect(ctx context.Context, plan *Layout) ([]Finding, error) {
	// At once: where permissions are missing, each question ends by its time.
	found := make([][]Finding, len(plan.Streams))
	faults := make([]error, len(plan.Streams))
	var wg sync.WaitGroup
	for i, s := range plan.Streams {
		wg.Go(func() { found[i], faults[i] = b.inspectStream(ctx, s) })
	}
	wg.Wait()
	return slices.Concat(found...), errors.Join(faults...)
}

func (b *Bus) inspectStream(ctx context.Context, plan StreamPlan) ([]Finding, error) {
	name := plan.Config.Name
	info, err := b.streamInfo(ctx, name)
	switch {
	case hasCode(err, codeStreamNotFound):
		return []Finding{{Stream: name, Field: "stream", Found: "missing", Wanted: "present", Remedy: remedyApply}}, nil
	case err != nil:
		return nil, fmt.Errorf("look at stream %s: %w", name, hintPermission(err, b.api+".STREAM.INFO."+name))
	}
	var findings []Finding
	for _, d := range compare(streamRules(), &info.Config, &plan.Config) {
		if d.severity == fine {
			continue
		}
		f := Finding{Stream: name, Field: d.field, Found: d.found, Wanted: d.wanted, Remedy: remedyApply, Warning: d.severity == warning}
		if d.fixed {
			f.Remedy = remedyStream
		}
		findings = append(findings, f)
	}
	if len(plan.Consumers) == 0 {
		return findings, nil
	}
	for _, c := range plan.Consumers {
		found, err := b.inspectConsumer(ctx, name, c)
		if err != nil {
			return findings, err
		}
		findings = append(findings, found...)
	}
	return append(findings, b.inspectOthers(ctx, plan, info.State.Msgs)...), nil
}

func (b *Bus) inspectConsumer(ctx context.Context, stream string, plan jetstream.ConsumerConfig) ([]Finding, error) {
	info := &jetstream.ConsumerInfo{}
	err := b.request(ctx, "CONSUMER.INFO."+stream+"."+plan.Name, nil, info)
	switch {
	case hasCode(err, codeConsumerNotFound):
		return []Finding{{Stream: stream, Consumer: plan.Name, Field: "consumer", Found: "missing", Wanted: "filter " + plan.FilterSubject, Remedy: remedyApply}}, nil
	case err != nil:
		return nil, fmt.Errorf("look at consumer %s of %s: %w", plan.Name, stream,
			hintPermission(err, b.api+".CONSUMER.INFO."+stream+"."+plan.Name))
	}
	var findings []Finding
	for _, d := range compare(consumerRules(), &info.Config, &plan) {
		if d.severity == fine {
			continue
		}
		f := Finding{Stream: stream, Consumer: plan.Name, Field: d.field, Found: d.found, Wanted: d.wanted, Remedy: remedyApply, Warning: d.severity == warning}
		if d.fixed {
			f.Remedy = remedyQueue
		}
		findings = append(findings, f)
	}
	if info.Paused {
		findings = append(findings, Finding{
			Stream: stream, Consumer: plan.Name, Field: "pause_until", Found: "paused for " + info.PauseRemaining.Round(time.Second).String(),
			Wanted: "running", Remedy: "resume it with `nats consumer resume`, or wait", Warning: true,
		})
	}
	return findings, nil
}

// inspectOthers looks for consumers that take our messages and for messages that
// no consumer takes. A user who may not list consumers gets a warning for that.
func (b *Bus) inspectOthers(ctx context.Context, plan StreamPlan, messages uint64) []Finding {
	stream := plan.Config.Name
	all, err := b.consumers(ctx, stream)
	if err != nil {
		return []Finding{{
			Stream: stream, Field: "consumers", Found: "not listed (" + err.Error() + ")", Wanted: "a list", Warning: true,
			Remedy: "allow " + b.api + ".CONSUMER.LIST." + stream + ", or run `sallyport streams check` as an operator",
		}}
	}
	var findings []Finding
	covered := uint64(0)
	var taken []string
	for _, c := range all {
		covered += c.NumPending + uint64(max(0, c.NumAckPending))
		taken = append(taken, filters(&c.Config)...)
		if slices.ContainsFunc(plan.Consumers, func(p jetstream.ConsumerConfig) bool { return p.Name == c.Name }) {
			continue
		}
		for _, p := range plan.Consumers {
			if overlaps(filters(&c.Config), p.FilterSubject) {
				findings = append(findings, Finding{
					Stream: stream, Consumer: c.Name, Field: "filter_subject", Found: showSubjects(filters(&c.Config)),
					Wanted: "nothing that overlaps with " + p.FilterSubject + " (" + p.Name + ")",
					Remedy: "delete this consumer: it takes the messages of a queue of ours",
				})
			}
		}
	}
	if messages > covered {
		findings = append(findings, b.uncovered(ctx, stream, taken)...)
	}
	return findings
}

// uncovered names the queues whose messages no filter takes.
func (b *Bus) uncovered(ctx context.Context, stream string, taken []string) []Finding {
	subjects, _, err := b.subjectList(ctx, stream, b.subjects.AllJobs(), nil, uncoveredSample)
	if err != nil {
		return nil // the listing is a service; what it would name is visible in the queue's metrics too
	}
	queues := map[string]int{}
	for _, s := range subjects {
		if slices.ContainsFunc(taken, func(f string) bool { return overlaps([]string{f}, s) }) {
			continue
		}
		job, err := b.subjects.ParseJob(s)
		if err != nil {
			queues["(no job subject: "+s+")"]++
			continue
		}
		queues[job.Queue]++
	}
	var findings []Finding
	for queue, n := range queues {
		findings = append(findings, Finding{
			Stream: stream, Field: "messages", Found: fmt.Sprintf("at least %d in queue %s without a consumer", n, queue),
			Wanted: "a consumer for each queue", Warning: true,
			Remedy: "add the queue to `queues` and run `sallyport streams apply`",
		})
	}
	slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Found, b.Found) })
	return findings
}

// consumers lists a stream's consumers.
func (b *Bus) consumers(ctx context.Context, stream string) ([]jetstream.ConsumerInfo, error) {
	var list []jetstream.ConsumerInfo
	for {
		page := struct {
			Total     int                      `json:"total"`
			Consumers []jetstream.ConsumerInfo `json:"consumers"`
		}{}
		query := struct {
			Offset int `json:"offset"`
		}{len(list)}
		if err := b.request(ctx, "CONSUMER.LIST."+stream, query, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Consumers...)
		if len(page.Consumers) == 0 || len(list) >= page.Total || len(list) >= MaxList {
			return list, nil
		}
	}
}

// overlaps says whether any subject matches both one of filters (none: all
// subjects) and pattern.
func overlaps(filters []string, pattern string) bool {
	if len(filters) == 0 {
		return true
	}
	return slices.ContainsFunc(filters, func(f string) bool {
		return tokensOverlap(strings.Split(f, "."), strings.Split(pattern, "."))
	})
}

func tokensOverlap(a, b []string) bool {
	for i := range max(len(a), len(b)) {
		switch {
		case i < len(a) && a[i] == ">":
			return i < len(b)
		case i < len(b) && b[i] == ">":
			return i < len(a)
		case i >= len(a) || i >= len(b):
			return false
		case a[i] != b[i] && a[i] != "*" && b[i] != "*":
			return false
		}
	}
	return true
}

// hintPermission says what silence means: the server answers a request that
// permissions refuse to nobody.
func hintPermission(err error, subject string) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
		return fmt.Errorf("%w: no answer; check that this user may publish to %s", err, subject)
	}
	return err
}
