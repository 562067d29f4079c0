// Package archtest holds the rules of the code base that a compiler does not know,
// as ordinary tests: which package may import which, who may know NATS, and that
// no goroutine is started without somebody who waits for it.
package archtest
