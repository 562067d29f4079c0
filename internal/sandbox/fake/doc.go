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
//	prepare:hang         Prepare returns Ambiguous when its context ends
//	start:REASON         the program cannot be executed (a sandbox.StartReason)
//	open:refuse          Open is Refused; the gate stays closed
//	open:ambiguous       Open is Ambiguous; the program does run
//	open:hang            Open is Ambiguous when its context ends; it does not run
//	wait:never           the tree's end is never proven
//	terminate:unproven   the tree's end is never proven once Terminate was called
//	collect:fail         Collect is Unavailable
//	reset:fail           Reset is Unavailable
//	reset:hang           Reset returns Ambiguous when its context ends
//	destroy:fail[*N]     Destroy is Unavailable N times (1), then works
//	destroy:hang[*N]     Destroy hangs until its context ends N times, then works
//	destroy:lie[*N]      Destroy gives proof N times, and a later look finds it
//	destroy:unproven[*N] Destroy returns without proof N times, then works
//	destroy:never        Destroy never works
//	delay:CALL:DURATION  CALL (prepare, open, wait, terminate, collect, reset, destroy)
//	                     answers that much later; for wait it is the proof
//
// An unknown step is Refused with the list of steps.
//
// # Failures at create, and the world
//
// What Create does is told by Provider.OnCreate. Sandboxes live in a World, which
// several providers may share: a worker's and a reaper's, or those of a worker
// before and after its restart. A destroy knob stays with its sandbox in the
// World. Time is package time's, so that everything works in a synctest bubble.
// Everything is safe for concurrent use.
package fake
