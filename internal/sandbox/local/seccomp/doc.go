// Package seccomp makes the system-call filter of jobs (seccomp(2)): an allow
// list, for the processor that the worker was built for.
//
// What ordinary programs use is allowed. The rest answers as a kernel would that
// does not have it or does not permit it, so that programs fall back: EPERM for
// what is known, ENOSYS for what is newer than the list. The calls of another
// processor mode (32-bit, x32) end the program with SIGSYS: their numbers mean
// something else.
//
// The filter is a binary tree over ranges of numbers. The kernel runs a new filter
// once for every number there is, so its length in the worst case is what loading
// costs, on every job; a tree takes tens of microseconds where a list takes nearly
// a millisecond.
package seccomp
