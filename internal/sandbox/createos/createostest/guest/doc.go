// Package guest is the inside of a sandbox of the scripted CreateOS server. It is
// linked into every binary that has the server; its init function takes over a
// process that was started as a guest and never returns.
//
//	server ──socket (fd 3)──▶ box    pid 1 of the sandbox's namespaces: makes the root,
//	   │                        │    starts trees, reaps orphans, stops and continues all
//	   └────socket (fd 3)──▶ tree    subreaper of one managed process: starts the leader,
//	                            └─   reports its end, and that no child is left
//
// The end of box's socket ends box and, by the kernel's rules for pid namespaces,
// everything below.
package guest
