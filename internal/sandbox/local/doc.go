// Package local makes sandboxes on the worker's own Linux host, out of
// namespaces and control groups alone: no helper program, no cgo.
//
// A sandbox is lease init (package leaseinit) in user, pid, mount, network, ipc,
// and uts namespaces of its own. A run is a process tree below a stub that is pid 1
// of further pid, mount and ipc namespaces, in a cgroup namespace of its own. When the stub is gone, the
// kernel has ended everything that was in them, whatever it had become: that is
// the proof of a run's end. It is seen three times: by the worker on the stub's
// pidfd, by lease init, which reaps the stub, and in the job's control group.
//
// It works as root (each lease has 65,536 uids of its own) and as an ordinary
// user (one uid, mapped). What the host lacks is never passed over: the limit is
// refused by name, and Isolation says what is missing.
//
// Everything in a lease dies with the worker: lease init has the death signal of
// the worker's forking thread, and ends at the end of its socket.
//
// Concurrency: a Provider has one forking goroutine. A sandbox has one goroutine
// that receives from lease init, and a run has one that settles its end, one for
// each output stream, and one for its input. Close ends all of them.
package local
