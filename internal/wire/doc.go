// Package wire is what travels: requests, events, results, the run record, the
// ledger's entries of leases and workers, the quarantine record, the dead letter,
// the subjects and headers that carry them, and the bounds and validation of all
// of it.
//
// Everything here is pure: no network, no clock, no goroutine. Decoding is
// strict: an unknown, repeated or wrongly typed field is an *Invalid that names
// the field by its path and says what to do. Only what others read, a result and
// the bodies of events, may hold fields that the reader does not know yet.
// Encoding is deterministic, so that a stored result can be repeated byte for
// byte. JSON Schemas of the request, the result and the ledger's records stand in
// docs/schema; tests hold them and the Go types together.
package wire
