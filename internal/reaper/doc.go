// Package reaper ends what stands in quarantine. It takes the quarantine records
// of its providers, destroys each sandbox, confirms by a second look that it is
// gone, writes the record's end, and only then acknowledges. The daemon runs one
// inside each worker for that host's own sandboxes, and one as a service for
// remote ones; several may run at once.
//
// What holds:
//
//   - A record ends as destroyed only on a proof and a second look that agrees. An
//     error, a proof that is not proven, or a look that finds the sandbox or cannot
//     be taken, is another try later. Tries never end by count.
//   - A record that cannot be read, or was written by a newer version, is kept and
//     reported, never dropped and never acted on. One for a provider that is not
//     here is left to whom it belongs.
//   - One sandbox that does not end delays no other: a try that takes long leaves
//     its place to the next (see lanes), and waits between tries stand at the
//     server, as delays of the delivery.
//   - The end is written by compare-and-set, so that several reapers account each
//     lease once. Destroying twice is harmless by the provider's contract.
//   - A listing of all records, from time to time, is the net for deliveries that
//     were lost.
//
// A Reaper is safe for concurrent use; Run is called once.
package reaper
