// Package seccomp makes the system-call filters of jobs (seccomp(2)): an allow
// list, for the processor that the worker was built for.
//
// What ordinary programs use is allowed. The rest answers as a kernel would that
// does not have it or does not permit it, so that programs fall back: EPERM for
// what is known, ENOSYS for what is newer than the list. The calls of another
// processor mode (32-bit, x32) end the program with SIGSYS: their numbers mean
// something else.
//
// Loading a filter costs time for every instruction, so there are two. The long
// one is loaded by lease init, once a lease, and all jobs inherit it; it lets
// through the kinds of call that lease init and the stub need and jobs must not have:
// mount, umount2, pivot_root, clone with new namespaces, and clone3. The short one
// takes these away: each job's process loads it before it executes the program. The kernel runs
// both, and the stricter answer counts. Nothing inside can take a filter away.
//
// The long filter is a binary tree over ranges of numbers. The kernel runs a new
// filter once for every number there is: a tree takes tens of microseconds where a
// list takes nearly a millisecond.
package seccomp
