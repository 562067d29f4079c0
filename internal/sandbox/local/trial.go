package local

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// trialPatience bounds one run of a probe. The longest takes some tenths of a
// second; a loaded host gets much more.
const trialPatience = 10 * time.Second

// trial is a run of a probe that tries one thing.
type trial struct {
	// script is what /bin/sh runs.
	script string
	limits sandbox.Limits
	// stop ends the run by force after this time; zero lets it end by itself.
	stop time.Duration
}

// outcome is how a trial ended.
type outcome struct {
	sandbox.End

	out string
	// took is the time from the opening of the gate to the end of the shell.
	took time.Duration
}

// run runs the trial to its proven end and resets the sandbox.
func (t trial) run(ctx context.Context, box sandbox.Sandbox) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, trialPatience)
	defer cancel()
	out := &trialOutput{}
	run, err := box.Prepare(ctx, sandbox.Process{
		Argv: []string{"/bin/sh", "-c", t.script}, Env: []string{"PATH=/usr/bin:/bin"}, Limits: t.limits,
	}, out)
	if err != nil {
		return outcome{}, err
	}
	began := time.Now()
	if err := run.Open(ctx); err != nil {
		return outcome{}, err
	}
	if t.stop > 0 {
		short, cancel := context.WithTimeout(ctx, t.stop)
		_, err := run.Wait(short)
		cancel()
		if err != nil {
			if _, err := run.Terminate(ctx, 0); err != nil {
				return outcome{}, err
			}
		}
	}
	end, err := run.Wait(ctx)
	if err != nil {
		return outcome{}, err
	}
	if end.StartError != nil {
		return outcome{}, fmt.Errorf("/bin/sh cannot be executed: %s", end.StartError.Reason)
	}
	return outcome{end, out.String(), end.EndedAt.Sub(began)}, box.Reset(ctx)
}

// trialOutput keeps the standard output of a trial.
type trialOutput struct {
	mu   sync.Mutex
	text strings.Builder
}

// maxTrialOutput is far more than a trial prints.
const maxTrialOutput = 64 << 10

func (o *trialOutput) Write(stream sandbox.Stream, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if stream != sandbox.Stdout {
		return nil
	}
	if o.text.Len()+len(p) > maxTrialOutput {
		return errors.New("a probe prints too much")
	}
	o.text.Write(p)
	return nil
}

func (o *trialOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// last is the last whole number that was printed on a line of its own, 0 if none
// was.
func (o outcome) last() int64 {
	words := strings.Fields(o.out)
	if len(words) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(words[len(words)-1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// tryFork sees a shell fork and wait, which a set-up that is not whole does not
// survive.
func tryFork(ctx context.Context, box sandbox.Sandbox) error {
	o, err := trial{script: "/bin/true && (exit 3); echo $?"}.run(ctx, box)
	if err == nil && o.last() != 3 {
		err = fmt.Errorf("a shell that forks ended otherwise than it should: %+v, output %q", o.Exit, o.out)
	}
	return err
}

// tryPids sees fork fail at the limit. Some shells try again for many seconds
// before they say so; what counts is how far they got.
func tryPids(ctx context.Context, box sandbox.Sandbox) error {
	const limit, more = 4, 20
	o, err := trial{
		// A small image may have no sleep.
		script: fmt.Sprintf(`stay='exec sleep 60'; command -v sleep >/dev/null || stay='while :; do :; done'
			i=1; while [ $i -lt %d ]; do (eval "$stay") & i=$((i+1)); echo $i; done`, more),
		limits: sandbox.Limits{Pids: limit}, stop: 2 * time.Second,
	}.run(ctx, box)
	if err == nil && (o.last() < 1 || o.last() > limit) {
		err = fmt.Errorf("with a limit of %d, a shell and its children became %d processes", limit, o.last())
	}
	return err
}

// tryMemory sees a program that takes too much end for that.
func tryMemory(ctx context.Context, box sandbox.Sandbox) error {
	const limit = 16 << 20
	o, err := trial{
		// A word that is doubled 24 times has 64 MiB.
		script: "x=abcd; i=0; while [ $i -lt 24 ]; do x=$x$x; i=$((i+1)); done; echo $i",
		limits: sandbox.Limits{MemoryBytes: limit},
	}.run(ctx, box)
	if err == nil && (o.OOM < 1 || o.last() != 0) {
		err = fmt.Errorf("a shell that took 64 MiB with a limit of 16 MiB ended with %+v, and no kill for memory was counted (%d)", o.Exit, o.OOM)
	}
	return err
}

// shareTries bounds how often a busy loop may be seen to use more than its share. Where
// others want the processors, too, or a virtual machine's are taken away, the kernel holds
// it back late; where nothing holds it back, it is so every time.
const shareTries = 3

// tryCPUShare sees a busy loop held back.
func tryCPUShare(ctx context.Context, box sandbox.Sandbox) (err error) {
	for range shareTries {
		if err = measureShare(ctx, box); err == nil {
			break
		}
	}
	return err
}

// measureShare compares what a busy loop uses with its share.
func measureShare(ctx context.Context, box sandbox.Sandbox) error {
	const (
		percent = 10
		busy    = 150 * time.Millisecond
		// The share is counted in periods of 100 ms, of which the first and the last
		// may be cut off; and a quota is overdrawn by some milliseconds.
		slack = 2*percent*time.Millisecond + 30*time.Millisecond
	)
	o, err := trial{
		script: "while :; do :; done", limits: sandbox.Limits{CPUShare: percent}, stop: busy,
	}.run(ctx, box)
	if err != nil {
		return err
	}
	used, most := o.Usage.CPUUser+o.Usage.CPUSystem, o.took*percent/100+slack
	if o.Usage.Source != "cgroup" || used > most {
		return fmt.Errorf("with a share of %d %% of a core, a busy loop used %s (as told by %s) in %s",
			percent, used.Round(time.Millisecond), o.Usage.Source, o.took.Round(time.Millisecond))
	}
	return nil
}

// tryCPUTime sees a busy loop ended when its time is used up.
func tryCPUTime(ctx context.Context, box sandbox.Sandbox) error {
	const limit = 20 * time.Millisecond
	o, err := trial{
		script: "while :; do :; done", limits: sandbox.Limits{CPU: limit}, stop: trialPatience / 2,
	}.run(ctx, box)
	if err == nil && !o.CPUExceeded {
		err = fmt.Errorf("a busy loop was not ended after %s of CPU time", limit)
	}
	return err
}

// tryDisk sees the workspace fill up.
func tryDisk(ctx context.Context, box sandbox.Sandbox) error {
	const limit = 192 << 10
	o, err := trial{
		// A word that is doubled 15 times has 128 KiB.
		script: `x=abcd; i=0; while [ $i -lt 15 ]; do x=$x$x; i=$((i+1)); done
			printf %s "$x" >a && echo 1; printf %s "$x" >b && echo 2`,
		limits: sandbox.Limits{DiskBytes: limit},
	}.run(ctx, box)
	if err == nil && o.last() != 1 {
		err = fmt.Errorf("of two files of 128 KiB in a workspace of 192 KiB, %d could be written", o.last())
	}
	return err
}

// tryInodes sees the workspace take no more files.
func tryInodes(ctx context.Context, box sandbox.Sandbox) error {
	const limit, more = 8, 20
	o, err := trial{
		script: fmt.Sprintf("i=0; while [ $i -lt %d ] && true >f$i; do i=$((i+1)); echo $i; done", more),
		limits: sandbox.Limits{Inodes: limit},
	}.run(ctx, box)
	if err == nil && (o.last() < 1 || o.last() > limit) {
		err = fmt.Errorf("with a limit of %d inodes, %d files could be made", limit, o.last())
	}
	return err
}

// tryOpenFiles sees an open(2) refused when all descriptors are taken.
func tryOpenFiles(ctx context.Context, box sandbox.Sandbox) error {
	o, err := trial{
		script: "(exec 3</dev/null) && echo 1; (exec 3</dev/null && exec 4</dev/null) && echo 2",
		limits: sandbox.Limits{OpenFiles: 4},
	}.run(ctx, box)
	if err == nil && o.last() != 1 {
		err = fmt.Errorf("with a limit of 4 open files, a shell opened %d more than its three", o.last())
	}
	return err
}
