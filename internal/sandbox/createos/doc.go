// Package createos is the sandbox provider over the CreateOS HTTP API: each lease is a
// CreateOS sandbox, each run a managed process in it.
//
// # What the provider believes
//
// A process tree is gone when the API says tree_exited true, or does not know the
// process (404); a sandbox, when the API does not know it, or calls it destroyed or
// failed. Anything else, an accepted DELETE included, is a claim. A sandbox is made, a
// process created, once and never again: a call whose outcome is not known is Ambiguous.
// A sandbox carries a name made of our mark and the lease's id, so that one that was
// created without an answer can be found and destroyed.
//
// # How a run goes
//
// Prepare uploads input, creates a process that waits at a gate (a file), connects its
// output and returns once the process says that it waits. Open uploads the gate's file.
// Two marks with a random word in them, one on each stream, tell what the program has
// written from what was written before it. The output is followed by its sequence
// numbers, across connections; nothing is glued over a gap (see follow.go).
//
// # What it cannot do
//
// Limits are the shape's: none of a single run is enforced. A reset empties the workspace
// and the temporary directories; what a job changed elsewhere in its sandbox stays, which
// is why Config.Reuse has to be asked for. Programs inside are as trustworthy as the last
// job left them: collected files are what the sandbox says that they are.
//
// Everything is safe for concurrent use. Close ends every goroutine.
package createos
