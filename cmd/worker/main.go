// Command sallyport runs Sallyport's services and talks to them.
//
// Exit codes: 0 all went well; 1 it did not; 2 the command line or the
// configuration is wrong; 3 no NATS server could be reached; 4 refused, because
// this host cannot isolate as required or the streams are not as planned.
// `sallyport run` exits with the job's own code instead, see docs/cli.md.
package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	// First: a process that is a lease's init never comes as far as main.
	_ "github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

func main() {
	// What this process inherited by accident is nobody else's business: no
	// sandbox starts with it (close_range(2), Linux 5.11).
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, "sallyport: close_range:", err)
		os.Exit(exitRefused)
	}
	// A reader of ours that goes away is an error of the write, not our end: a job
	// has to be cancelled then.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, hurry := signals()
	os.Exit(execute(ctx, process{
		args: os.Args[1:], environ: os.Environ(), root: os.Geteuid() == 0, hurry: hurry,
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, pretty: isTerminal(os.Stderr),
	}))
}

// signals returns a context that ends with the first SIGINT or SIGTERM and one
// that ends with the second. A third finds the default action and ends the
// process at once.
func signals() (first, second context.Context) {
	first, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	second, hurry := context.WithCancel(context.Background())
	context.AfterFunc(first, func() {
		again, stopAgain := signal.NotifyContext(second, os.Interrupt, syscall.SIGTERM)
		stop()
		context.AfterFunc(again, func() { stopAgain(); hurry() })
	})
	return first, second
}
