// Package leaseinit is the inside of a local sandbox: lease init, which is pid 1
// of a lease's namespaces, and the stub, which is pid 1 of one job's.
//
// Lease init is the worker's own binary, started again with Marker as argv[0].
// This package's init function then takes over before the rest of the program is
// initialised and never returns. For that reason it imports almost nothing: every
// import that is initialised late would delay every lease. It is linked into any
// binary that imports package local.
//
//	worker ──socket (fd 3)──▶ lease init   builds the root, forks one stub a job
//	                            └─ stub    own pid, mount and ipc namespaces
//	                                └─ job the request's program, pid 2
//
// The worker sends a Setup, then one Job at a time, each ended by a Reset; lease
// init and the stub answer with Reports. The end of the socket ends lease init,
// and with it, by the kernel's rules for pid namespaces, everything below.
//
// The stub and the job's process, until it executes the program, live in lease
// init's memory (CLONE_VM), on a stack of their own: copying the page tables of a Go
// program twice took longer than the program. They may use nothing of the runtime
// that is in there: their code is marked nosplit and norace, touches no heap, and
// makes raw system calls only. Most of what they do is a list of system calls that
// lease init has prepared in ordinary Go (see program). No process here has a
// signal handler that could run in the others' memory.
package leaseinit
