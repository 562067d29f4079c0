// Package bus is everything that Sallyport knows about NATS: the three
// connections, the streams and consumers and what their settings must be, the
// run records, the output of a job, the quarantine and the dead letters.
//
// The consumer, the gateway and the reaper call it; it calls nobody and knows
// no sandboxes.
//
// Invariants:
//
//   - A write that decides something (a run record, a quarantine record, a dead
//     letter, a queued job) is a request whose answer is read. A publish that
//     permissions refuse is silent in NATS, so silence is never success: after
//     a lost answer the record is read again from the stream's leader, and what
//     stays unclear is ErrUnknown, an answer of its own.
//   - Reads that decide something go to the stream's leader (STREAM.MSG.GET),
//     never to a replica (direct get).
//   - Output has a connection of its own, so that acknowledgements and
//     heartbeats never queue behind bulk. What was handed over stays in a
//     bounded window until the server has confirmed it, and is sent again, from
//     the first unconfirmed event on and in order, after a loss.
//   - What serves others (Services) has one too: whoever may send requests, and
//     however large, does not stand before a worker's claims and heartbeats.
//   - Streams are created by Apply alone, which an operator runs. A worker
//     checks (Check) and refuses with words.
//
// All exported types are safe for concurrent use unless they say otherwise.
package bus
