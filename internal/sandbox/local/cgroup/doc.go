// Package cgroup gives every lease of the local provider its own control
// groups: it limits memory, tasks and CPU, measures what a job used, and is the
// second, independent proof that nothing of a job is left.
//
// The kernel has two generations of control groups, and a host may have both:
// each controller is found by itself, from /proc/self/cgroup and
// /proc/self/mountinfo (cgroups(7)), never by the host's name or version. The
// groups stand below the worker's own group, so that whatever limits the worker
// limits its jobs too:
//
//	v2   <own>/sallyport/<instance>/<lease>/{init,job}
//	v1   <own>/sallyport/<instance>/<lease>/job     (lease init in <lease>)
//
// Lease init sits beside the job leaf and the limits are on the leaf, in both
// generations. So a job's limits are its own (the threads of lease init neither
// eat them nor fall to them), peaks and counters are the job's alone, and "no
// task in the leaf" is a proof without any arithmetic. A v2 tree without
// controllers is used as well: cgroup.kill, cgroup.events and cpu.stat need none.
//
// Limits are written before anything runs in the leaf, and a limit that cannot
// be written is an error: a run never goes without one silently. What the host
// does not allow is in the Report, with the reason and what to do about it.
//
// A Host, a Group and a Report are safe for concurrent use. A Lease has one
// owner; only its Kill, KillJob, Empty, WaitEmpty and Remove may be called
// beside the owner's calls.
package cgroup
