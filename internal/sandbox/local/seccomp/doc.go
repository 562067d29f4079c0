// Package seccomp makes the system-call filter of jobs (seccomp(2)): an allow
// list, for the processor that the worker was built for.
//
// What ordinary programs use is allowed. The rest answers as a kernel would that
// does not have it or does not permit it, so that programs fall back: EPERM for
// what is known, ENOSYS for what is newer than the list. The calls of another
// processor mode (32-bit, x32) end the program with SIGSYS: their numbers mean
// something else.
//
// Loading a filter costs more than starting a small program. So lease init loads it
// once, and all jobs inherit it. Lease init and the stub then need three kinds of
// call that jobs must not have: mount, umount2, and clone with new namespaces.
// They pass a secret, random for each lease, in the sixth argument, which these
// calls do not use. A job cannot know it: programs that are executed keep neither
// memory nor registers, filters cannot be read without privilege over the host, and
// lease init and the stub cannot be traced. And one that knew it would still lack
// the capabilities, which are the first wall.
//
// The filter is a binary tree over ranges of numbers. The kernel runs a new filter
// once for every number there is: a tree takes tens of microseconds where a list
// takes nearly a millisecond.
package seccomp
