// Package fake is a sandbox provider in memory that fails on command. It holds
// the contract of package sandbox and passes its conformance suite, so that the
// lease pool, the executor and the reaper can be tested against every failure
// story, and so that a person can try one by hand: with a profile whose provider
// is fake, the request's own argv is the story.
//
// # The program
//
// The only program in a fake sandbox is "fake" (another argv[0] is a start error,
// not_found). Each further argument is one step, run in order; after the last
// one the program exits with 0.
//
//	print:TEXT           TEXT and a newline to stdout
//	err:TEXT             TEXT and a newline to stderr
//	cat                  standard input to stdout, up to its end
//	write:SIZE           SIZE bytes of the line Pattern to stdout (64MiB, 1KiB, 10)
//	write-err:SIZE       the same to stderr
//	env:NAME             the variable's value and a newline
//	pwd                  the working directory and a newline
//	touch:NAME           makes a file in the workspace
//	put:NAME:TEXT        adds TEXT to a file in the workspace, which it makes
//	show:NAME            the file's content
//	make:KIND:NAME       makes what is no file: symlink, fifo, hardlink, dir
//	ls                   the workspace's files, a line each, sorted
//	sleep:DURATION       waits (100ms, 2s)
//	forever              waits until it is ended
//	cpu:DURATION         uses CPU time; past the limit the run ends as CPUExceeded
//	memory:SIZE          uses memory; past the limit the kernel kills for memory
//	oom                  is killed for memory, whatever the limit
//	ignore-term          from here on, SIGTERM does nothing (children included)
//	term-exit:N[:DUR]    from here on, SIGTERM makes it exit with N, DUR later
//	leftover[:DURATION]  starts a child that outlives it (for ever)
//	exit:N               exits with N, 0 to 255
//	signal:N             is ended by the signal N, 1 to 64
//	die                  the sandbox vanishes with everything in it (Lost)
//	die:unproven         the same, but nobody can say that the tree is gone
//
// # Contract calls
//
// These may stand anywhere; they take effect when the process is prepared.
//
//	prepare:refuse       Prepare is Refused; the sandbox stays idle
//	prepare:unavailable  Prepare is Unavailable; the sandbox is spoilt
//	prepare:ambiguous    Prepare is Ambiguous; the sandbox is spoilt
//	prepare:hang         Prepare returns Ambiguous when its context ends
//	prepare:die          the sandbox vanishes, Prepare says that it is Gone
//	start:REASON         the program cannot be executed (a sandbox.StartReason)
//	open:refuse          Open is Refused; the gate stays closed
//	open:ambiguous       Open is Ambiguous; the program does run
//	open:unstarted       Open is Ambiguous; the program does not run
//	open:hang            Open is Ambiguous when its context ends; it does not run
//	open:die             the sandbox vanishes, Open says that it is Gone
//	wait:never           the tree's end is never proven
//	wait:fail[*N]        Wait is Unavailable N times (1), then works
//	terminate:unproven   the tree's end is never proven once Terminate was called
//	terminate:fail[*N]   Terminate is Unavailable N times (1) and does nothing
//	terminate:hang[*N]   the same, when its context ends, as Ambiguous
//	collect:refuse       Collect is Refused
//	collect:fail         Collect is Unavailable
//	collect:hang         Collect is Unavailable when its context ends
//	reset:refuse         Reset is Refused; the sandbox is spoilt
//	reset:fail           Reset is Unavailable; the sandbox is spoilt
//	reset:ambiguous      Reset is Ambiguous; the sandbox is spoilt
//	reset:hang           Reset returns Ambiguous when its context ends
//	reset:lie            Reset says that it is done; the files are still there
//	destroy:fail[*N]     Destroy is Unavailable N times (1), then works
//	destroy:refuse[*N]   Destroy is Refused N times, then works
//	destroy:ambiguous[*N] the sandbox is gone, and Destroy is Ambiguous
//	destroy:hang[*N]     Destroy hangs until its context ends N times, then works
//	destroy:lie[*N]      Destroy gives proof N times, and a later look finds it
//	destroy:unproven[*N] Destroy returns without proof N times, then works
//	destroy:never        Destroy never works
//	back:DURATION[*N]    a destroyed sandbox appears again, N times (1)
//	delay:CALL:DURATION  CALL (prepare, open, wait, terminate, collect, reset, destroy)
//	                     answers that much later; for wait it is the proof
//
// An unknown step is Refused with the list of steps.
//
// # Failures at create, and of the inventory
//
// What Create does is told by Provider.OnCreate, or by the words of the profile's
// root view (Spec.Root), which are used up from left to right:
//
//	create:EFFECT[*N]    of the next N calls (1): refuse, busy, unavailable,
//	                     ambiguous, protocol, hang, ok; lie: the sandbox is not
//	                     there; die: it is lost at once
//	appear[:DURATION]    there is a sandbox after that call all the same, so late
//	inventory:EFFECT[*N] of the next N looks at the world: unavailable, hang,
//	                     partial (half of what is there)
//	destroy:…, back:…    of every sandbox made from this root view
//	delay:CALL:DURATION  CALL is create, destroy or inventory
//
// # The world
//
// Sandboxes live in a World, which several providers may share: a worker's and a
// reaper's, or those of a worker before and after its restart. A destroy knob
// stays with its sandbox in the World. OpenWorld keeps one in a directory, so that
// a worker that is killed leaves its sandboxes to other processes. Time is package
// time's, so that everything in memory works in a synctest bubble. Everything is
// safe for concurrent use.
package fake
