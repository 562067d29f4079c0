package createostest

import (
	"context"
	"errors"
	"io"
)

// Backend makes what stands behind a sandbox.
type Backend interface {
	// Boot makes a machine for the sandbox with that id.
	Boot(ctx context.Context, id string) (Machine, error)
	// Leftovers names what is left on the host of machines that have ended.
	Leftovers() ([]string, error)
	// Close lets go of what belongs to no machine. All have ended.
	Close() error
}

// Machine is where a sandbox's processes and files are.
type Machine interface {
	// Start starts a program. A *StartError means that it could not be executed.
	Start(ctx context.Context, p Program) (Tree, error)
	// Open opens a file for reading. Errors of package io/fs say what is wrong.
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	// Store writes a file. Missing parents are made if parents is true.
	Store(ctx context.Context, path string, content io.Reader, parents bool) error
	// Freeze stops every process, Thaw lets them go on.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	// Live lists the processes that really live.
	Live() []LiveProcess
	// End ends everything and returns when all is surely gone, or ctx has ended.
	// Any number of calls.
	End(ctx context.Context) error
}

// Program is what to start.
type Program struct {
	Cmd  string
	Args []string
	Env  []string
	Cwd  string
	// Output takes what the tree writes: stream 1 or 2, one call at a time for each.
	// It may block, and p is valid during the call alone.
	Output func(stream int, p []byte)
}

// Tree is a process and all that descends from it.
type Tree interface {
	// PID is the leader's, as seen inside.
	PID() int
	// Stdin is the leader's standard input.
	Stdin() io.WriteCloser
	// Signal signals the leader, or every process of the tree. SIGKILL for all does
	// not let go until the tree is gone.
	Signal(number int, all bool) error
	// Exited is closed when the leader has ended and all that it wrote before was
	// given to Output. Exit is valid from then on.
	Exited() <-chan struct{}
	Exit() Exit
	// Gone is closed when no process of the tree is left, for certain.
	Gone() <-chan struct{}
	// Silent is closed when nobody can write any more, and Output had all.
	Silent() <-chan struct{}
}

// Exit is a leader's end: a code, or a signal's number that is not 0.
type Exit struct{ Code, Signal int }

// StartError is a program that could not be executed.
type StartError struct{ Err error }

func (e *StartError) Error() string { return "starting the program: " + e.Err.Error() }

func (e *StartError) Unwrap() error { return e.Err }

// LiveProcess is a process that lives in a sandbox.
type LiveProcess struct {
	// Sandbox is the sandbox's id.
	Sandbox string
	// PID is the host's; 0 for a program that is no process.
	PID int
	// Argv is its command line now.
	Argv []string
}

// errEnded is what a machine answers that has ended.
var errEnded = errors.New("the sandbox has ended")
