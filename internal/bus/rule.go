package bus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// severity is how much a difference matters.
type severity int

const (
	fine    severity = iota
	warning          // not as planned, safe to work with
	fault            // not safe to work with
)

// rule is one setting of C, a stream's or a consumer's configuration.
type rule[C any] struct {
	// field is the setting's name in the server's API.
	field string
	// show is the setting in words; two that show the same are the same.
	show func(C) string
	// judge weighs a difference; nil means fault.
	judge func(found, wanted C) severity
	// fixed says whether the server refuses this change of an existing one; nil
	// means that it allows it.
	fixed func(found, wanted C) bool
}

// difference is one setting that is not as planned.
type difference struct {
	field, found, wanted string
	severity             severity
	fixed                bool
}

// compare returns what differs between found and wanted.
func compare[C any](rules []rule[C], found, wanted C) []difference {
	var list []difference
	for _, r := range rules {
		d := difference{field: r.field, found: r.show(found), wanted: r.show(wanted), severity: fault}
		if d.found == d.wanted {
			continue
		}
		if r.judge != nil {
			d.severity = r.judge(found, wanted)
		}
		d.fixed = r.fixed != nil && r.fixed(found, wanted)
		list = append(list, d)
	}
	return list
}

func always[C any](_, _ C) bool       { return true }
func onlyWarn[C any](_, _ C) severity { return warning }
func showBool(b bool) string          { return fmt.Sprint(b) }
func showCount[N int | int32 | int64](n N) string {
	if n <= 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

func showAge(d time.Duration) string {
	if d <= 0 {
		return "unlimited"
	}
	return d.String()
}

// bound judges a limit that must exist: missing is a fault, another one is the
// operator's business.
func bound[C any](value func(C) int64) func(found, wanted C) severity {
	return func(found, wanted C) severity {
		if (value(found) > 0) != (value(wanted) > 0) {
			return fault
		}
		return warning
	}
}

// atLeast judges a limit that is safe when it is as great or greater, or off.
func atLeast[C any](value func(C) int64, greater severity) func(found, wanted C) severity {
	return func(found, wanted C) severity {
		if v := value(found); v > 0 && v < value(wanted) {
			return fault
		}
		return greater
	}
}

// mustHave judges a switch that may be on but must not be off where it is wanted.
func mustHave[C any](value func(C) bool) func(found, wanted C) severity {
	return func(_, wanted C) severity {
		if value(wanted) {
			return fault
		}
		return warning
	}
}

type (
	streamConfig   = *jetstream.StreamConfig
	consumerConfig = *jetstream.ConsumerConfig
)

// streamRules are the settings of a stream that the design depends on. Not among
// them: description, metadata, placement, which are the operator's.
func streamRules() []rule[streamConfig] {
	return append(streamShape(), streamSwitches()...)
}

// streamShape are retention, subjects and bounds.
func streamShape() []rule[streamConfig] {
	return []rule[streamConfig]{
		{field: "subjects", show: func(c streamConfig) string { return showSubjects(c.Subjects) }},
		{
			field: "retention", show: func(c streamConfig) string { return c.Retention.String() },
			fixed: func(f, w streamConfig) bool {
				return f.Retention == jetstream.WorkQueuePolicy || w.Retention == jetstream.WorkQueuePolicy
			},
		},
		{field: "storage", show: func(c streamConfig) string { return c.Storage.String() }, fixed: always[streamConfig]},
		{field: "discard", show: func(c streamConfig) string { return c.Discard.String() }},
		{field: "discard_new_per_subject", show: func(c streamConfig) string { return showBool(c.DiscardNewPerSubject) }},
		{
			field: "max_msgs_per_subject", show: func(c streamConfig) string { return showCount(c.MaxMsgsPerSubject) },
			judge: func(f, w streamConfig) severity {
				if w.MaxMsgsPerSubject == 1 || f.MaxMsgsPerSubject <= 0 {
					return fault
				}
				return warning
			},
		},
		{
			field: "max_msgs", show: func(c streamConfig) string { return showCount(c.MaxMsgs) },
			judge: func(_, w streamConfig) severity {
				if w.MaxMsgs <= 0 {
					return fault
				}
				return warning
			},
		},
		{
			field: "max_bytes", show: func(c streamConfig) string { return showCount(c.MaxBytes) },
			judge: bound(func(c streamConfig) int64 { return c.MaxBytes }),
		},
		{
			field: "max_age", show: func(c streamConfig) string { return showAge(c.MaxAge) },
			judge: bound(func(c streamConfig) int64 { return int64(c.MaxAge) }),
		},
		{
			field: "max_msg_size", show: func(c streamConfig) string { return showCount(c.MaxMsgSize) },
			judge: atLeast(func(c streamConfig) int64 { return int64(c.MaxMsgSize) }, warning),
		},
		{field: "num_replicas", show: func(c streamConfig) string { return fmt.Sprint(c.Replicas) }, judge: onlyWarn[streamConfig]},
		{
			field: "max_consumers", show: func(c streamConfig) string { return showCount(c.MaxConsumers) },
			judge: onlyWarn[streamConfig], fixed: always[streamConfig],
		},
		{field: "duplicate_window", show: func(c streamConfig) string { return c.Duplicates.String() }, judge: onlyWarn[streamConfig]},
		{field: "compression", show: func(c streamConfig) string { return c.Compression.String() }, judge: onlyWarn[streamConfig]},
	}
}

// streamSwitches are what a stream allows and denies.
func streamSwitches() []rule[streamConfig] {
	off := func(f func(streamConfig) bool) func(streamConfig, streamConfig) bool {
		return func(found, wanted streamConfig) bool { return f(found) && !f(wanted) }
	}
	denyDelete := func(c streamConfig) bool { return c.DenyDelete }
	denyPurge := func(c streamConfig) bool { return c.DenyPurge }
	msgTTL := func(c streamConfig) bool { return c.AllowMsgTTL }
	schedules := func(c streamConfig) bool { return c.AllowMsgSchedules }
	atomicPublish := func(c streamConfig) bool { return c.AllowAtomicPublish }
	return []rule[streamConfig]{
		{field: "no_ack", show: func(c streamConfig) string { return showBool(c.NoAck) }},
		{field: "sealed", show: func(c streamConfig) string { return showBool(c.Sealed) }, fixed: always[streamConfig]},
		{field: "allow_direct", show: func(c streamConfig) string { return showBool(c.AllowDirect) }},
		{field: "deny_delete", show: func(c streamConfig) string { return showBool(c.DenyDelete) }, judge: mustHave(denyDelete), fixed: off(denyDelete)},
		{field: "deny_purge", show: func(c streamConfig) string { return showBool(c.DenyPurge) }, judge: mustHave(denyPurge), fixed: off(denyPurge)},
		{field: "allow_rollup_hdrs", show: func(c streamConfig) string { return showBool(c.AllowRollup) }},
		{field: "allow_msg_ttl", show: func(c streamConfig) string { return showBool(c.AllowMsgTTL) }, fixed: off(msgTTL)},
		{field: "allow_msg_schedules", show: func(c streamConfig) string { return showBool(c.AllowMsgSchedules) }, fixed: off(schedules)},
		{field: "allow_msg_counter", show: func(c streamConfig) string { return showBool(c.AllowMsgCounter) }, fixed: always[streamConfig]},
		{field: "allow_atomic", show: func(c streamConfig) string { return showBool(c.AllowAtomicPublish) }, judge: mustHave(atomicPublish)},
		{field: "allow_batched", show: func(c streamConfig) string { return showBool(c.AllowBatchPublish) }, judge: onlyWarn[streamConfig]},
		{field: "persist_mode", show: func(c streamConfig) string { return c.PersistMode.String() }, fixed: always[streamConfig]},
		{field: "republish", show: func(c streamConfig) string { return showRepublish(c.RePublish) }},
		{field: "mirror", show: func(c streamConfig) string { return showNone(c.Mirror == nil) }, fixed: always[streamConfig]},
		{field: "sources", show: func(c streamConfig) string { return showNone(len(c.Sources) == 0) }},
		{field: "subject_transform", show: func(c streamConfig) string { return showNone(c.SubjectTransform == nil) }},
	}
}

// consumerRules are the settings of a queue's consumer that the design depends
// on.
func consumerRules() []rule[consumerConfig] {
	return []rule[consumerConfig]{
		{field: "filter_subject", show: func(c consumerConfig) string { return showSubjects(filters(c)) }},
		{field: "deliver_subject", show: func(c consumerConfig) string { return showText(c.DeliverSubject) }, fixed: always[consumerConfig]},
		{field: "deliver_policy", show: func(c consumerConfig) string { return c.DeliverPolicy.String() }, fixed: always[consumerConfig]},
		{field: "ack_policy", show: func(c consumerConfig) string { return c.AckPolicy.String() }, fixed: always[consumerConfig]},
		{
			field: "ack_wait", show: func(c consumerConfig) string { return c.AckWait.String() },
			judge: atLeast(func(c consumerConfig) int64 { return int64(c.AckWait) }, warning),
		},
		{field: "backoff", show: func(c consumerConfig) string { return showBackoff(c.BackOff) }},
		{field: "max_deliver", show: func(c consumerConfig) string { return showCount(c.MaxDeliver) }},
		{
			field: "max_ack_pending", show: func(c consumerConfig) string { return showCount(c.MaxAckPending) },
			judge: atLeast(func(c consumerConfig) int64 { return int64(c.MaxAckPending) }, fine),
		},
		{
			field: "max_waiting", show: func(c consumerConfig) string { return showCount(c.MaxWaiting) },
			judge: atLeast(func(c consumerConfig) int64 { return int64(c.MaxWaiting) }, fine), fixed: always[consumerConfig],
		},
		{field: "inactive_threshold", show: func(c consumerConfig) string { return showAge(c.InactiveThreshold) }},
		{field: "max_batch", show: func(c consumerConfig) string { return showCount(c.MaxRequestBatch) }, judge: onlyWarn[consumerConfig]},
		{
			field: "max_expires", show: func(c consumerConfig) string { return showAge(c.MaxRequestExpires) },
			judge: func(f, _ consumerConfig) severity {
				// Pulls ask for 5 s; the server refuses what is longer than this.
				if f.MaxRequestExpires > 0 && f.MaxRequestExpires < fetchExpires {
					return fault
				}
				return warning
			},
		},
		{field: "max_bytes", show: func(c consumerConfig) string { return showCount(c.MaxRequestMaxBytes) }},
		{field: "headers_only", show: func(c consumerConfig) string { return showBool(c.HeadersOnly) }},
		{field: "mem_storage", show: func(c consumerConfig) string { return showBool(c.MemoryStorage) }, fixed: always[consumerConfig]},
		{field: "replay_policy", show: func(c consumerConfig) string { return c.ReplayPolicy.String() }, fixed: always[consumerConfig]},
		{field: "priority_groups", show: func(c consumerConfig) string { return showText(strings.Join(c.PriorityGroups, " ")) }, fixed: always[consumerConfig]},
		{
			field: "num_replicas", show: func(c consumerConfig) string { return fmt.Sprint(c.Replicas) + " (0: the stream's)" },
			judge: onlyWarn[consumerConfig],
		},
	}
}

func filters(c consumerConfig) []string {
	if c.FilterSubject != "" {
		return []string{c.FilterSubject}
	}
	return c.FilterSubjects
}

func showSubjects(list []string) string {
	if len(list) == 0 {
		return "all subjects"
	}
	sorted := slices.Clone(list)
	slices.Sort(sorted)
	return strings.Join(sorted, " ")
}

func showText(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func showNone(none bool) string {
	if none {
		return "none"
	}
	return "set"
}

func showRepublish(r *jetstream.RePublish) string {
	if r == nil {
		return "none"
	}
	s := r.Source + " → " + r.Destination
	if r.HeadersOnly {
		s += " (headers only)"
	}
	return s
}

func showBackoff(list []time.Duration) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}
