// Package createostest is a server that speaks the CreateOS sandbox API over real
// HTTP and can be told to fail in every way in which such a service fails. It
// stands in for the real one in tests, and in `sallyport dev` for trying the
// provider by hand.
//
// # What is real
//
// By default a sandbox is a pid, mount, user, network, ipc and uts namespace of
// its own (package guest is its pid 1), with the host's system directories, read-only,
// in a root of its own in memory. Every managed process is a real process tree in it:
// what a leader leaves behind, whatever session it moved to, keeps tree_exited false
// until it has ended. Several processes run at once and see each other. The tree's end
// is the kernel's word: no child is left to the subreaper at the tree's top. Where that
// was killed from inside, nobody knows, and tree_exited stays false until the sandbox
// is gone. Files are files; exec is a process; a paused sandbox is stopped. It needs no
// more than user namespaces, as root and as an ordinary user.
//
// It does not run on the local provider, whose contract is one run at a time in a
// sandbox that is reset in between: here a process runs while another one is
// executed, and files arrive meanwhile.
//
// Where no process is wanted (thousands of runs, one for each byte at which a
// connection can be cut) Programs makes sandboxes whose programs are Go functions.
//
// # What is simplified
//
// Limits of a shape, egress, disks, networks, forks, templates and terminals are
// not there: what is no JSON field that the server knows is refused (400), a known
// one is recorded and shown, and pty is refused. There is no network in a sandbox.
// Exec with stream is 404, as on control planes that do not have it. Programs inside
// are root without a second user, and outside they are an ordinary user's; it is no
// security boundary, as nothing limits what they use.
//
// Where the service's behaviour is not known, this is what the server does: a program
// that cannot be executed, and a working directory that is not there, are 400. A signal
// goes to the leader, the TERM and KILL of a DELETE to the whole tree, at once without
// grace. A DELETE that ended the tree removes the record: 404 from then on. Every call on
// a sandbox that does not run is 409, on one that is being destroyed 404. A connect after
// the newest sequence number is 400. A sandbox is idle, for its pause, when no call but
// GET, PATCH and lists concerns it and no process lives.
//
// # Scripts
//
// Script adds rules: which calls (Match by operation, method, path), which of them
// (Nth, Times), and what happens then (Actions). Several rules may fire on a call.
// A rule stands before the API like a proxy does, so it needs no valid key.
//
// Calls, Sandboxes, LiveProcesses and Leftovers are the books: what was asked, what
// there is, what really lives on this host.
//
// Concurrency: everything is safe for concurrent use. Close ends every goroutine
// and every process that the server has started.
package createostest
