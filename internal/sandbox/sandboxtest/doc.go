// Package sandboxtest is the conformance suite of package sandbox: what every
// provider has to do, as tests. A provider's own test calls Run with a Harness
// that says how to make the provider and how to express the suite's programs,
// which are lists of Ops. Shell expresses them for a sandbox with a POSIX shell.
//
// Nothing is skipped. What a provider cannot do (Capabilities.Reset) is tested as
// its refusal, and a Harness field that is absent is named in the log.
package sandboxtest
