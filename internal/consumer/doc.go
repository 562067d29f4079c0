// Package consumer takes jobs from the queues, sees to it that each is worked on
// by one owner at a time, and makes its one final decision durable before it is
// published and the job's message acknowledged. It knows NATS and no sandboxes;
// the daemon calls it, and it calls a Handler (the executor) for each attempt.
//
// JetStream's acknowledgements and delivery counts prove nothing about ownership.
// The run record does: each write of it is a compare-and-set by its own stream
// sequence. The rules are those of the design's chapter 4; here they stand in
// these files:
//
//   - puller.go asks for exactly as many messages as there are free slots.
//   - delivery.go reads one message; decide.go is the pure rule of what to do with
//     it, given the record that stands at the leader.
//   - claim.go is the ownership of one attempt: the gate, its renewals, the fence.
//   - attempt.go runs an attempt and gives it back where it did not happen.
//   - final.go ends a job: record, result, quarantine, dead letter, ack.
//   - control.go answers for the jobs that run here.
//
// Invariants: at most Slots deliveries are worked on at once; a job's program is
// started only after its claim was acknowledged; nothing final is published
// before its record is; a claim that lapsed or was lost publishes nothing final
// and neither acknowledges nor gives back.
//
// Goroutines: one for each delivery, started by the puller; one keeper for the
// heartbeats of all, which starts one more only for a beat that is due (a run
// shorter than a quarter of the ack wait has none); one that watches the broker.
// All have ended when Run returns, except where a handler does not return within
// the time that it was given.
package consumer
