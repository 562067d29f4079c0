// Package client submits jobs to Sallyport and follows them.
//
// A Client stands on a NATS connection that the caller owns. Submit goes
// through the gateway (exec.submit.<tenant>.<queue>); output comes back on an
// inbox, or is read from the stored output with Tail. A program that fails is a
// Result; an error means that the answer could not be had, and says whether the
// job may be running all the same.
package client
