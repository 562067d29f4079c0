package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const (
	// cpuInterval is how often the CPU time is looked at where it is limited: a run
	// may exceed its limit by this much on each core.
	cpuInterval = 50 * time.Millisecond
	// proofTimeout bounds each look for evidence after the stub was reaped.
	proofTimeout = 2 * time.Second
)

// run is one process tree.
type run struct {
	box  *box
	seq  uint32
	sink sandbox.Sink
	// cwd, name and candidates are for errors.
	cwd, name  string
	candidates []string
	cpu        time.Duration
	stub       *pidfd
	outputs    [2]*output
	input      *input

	// events are the reports about this run: at most Forked, Waiting or Unready,
	// Unready, Leftover and Reaped.
	events chan reply
	// wake tells settle that the ladder was stepped on.
	wake chan struct{}
	// proved is closed when the proof is complete or surely will not be, done when
	// the output is handed over, too.
	proved, done chan struct{}
	readers      sync.WaitGroup

	mu     sync.Mutex
	gate   gate
	ladder ladder
	end    sandbox.End
	err    error
}

// gate is the start gate.
type gate int

const (
	gateClosed gate = iota
	gateOpen
	gateShut // for good
)

var _ sandbox.Run = (*run)(nil)

// Prepare forks the stub, which sets everything up and waits at the gate.
func (b *box) Prepare(ctx context.Context, process sandbox.Process, sink sandbox.Sink) (sandbox.Run, error) {
	job, err := b.job(process)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Refused, "prepare", "%w", err)
	}
	r, err := b.enter(process, job, sink)
	if err != nil {
		return nil, err
	}
	if err := r.prepare(ctx, process, job); err != nil {
		r.abort()
		return nil, b.unusable("prepare", err)
	}
	b.provider.runs.Go(r.settle)
	if err := r.place(ctx, process.Files); err != nil {
		return nil, r.unplaced(ctx, err)
	}
	return r, nil
}

// workspace is where a job starts, and what a relative directory is relative to.
const workspace = "/workspace"

// job translates a process for the stub, or says what is wrong with it.
func (b *box) job(process sandbox.Process) (*leaseinit.Job, error) {
	if err := b.provider.unenforced(process.Limits); err != nil {
		return nil, err
	}
	if files, most := process.Limits.OpenFiles, b.provider.mostFiles(); files > 0 && uint64(files) > most {
		return nil, fmt.Errorf("open_files: %d is above %d, which is this worker's own hard limit, for an ordinary user half of it: raise that (LimitNOFILE= of its service, ulimit -Hn) or ask for less", files, most)
	}
	job := &leaseinit.Job{Argv: process.Argv, Env: process.Env, Cwd: process.Cwd}
	switch {
	case job.Cwd == "":
		job.Cwd = workspace
	case job.Cwd[0] != '/':
		job.Cwd = workspace + "/" + job.Cwd // the kernel resolves it, links and all
	}
	if err := errors.Join(checkProcess(process), sandbox.CheckFiles(process.Files)); err != nil {
		return nil, err
	}
	job.Candidates = candidates(process.Argv[0], process.Env)
	b.provider.applyLimits(job, process.Limits)
	return job, nil
}

// enter makes the run the sandbox's only one.
func (b *box) enter(process sandbox.Process, job *leaseinit.Job, sink sandbox.Sink) (*run, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return nil, sandbox.Errorf(sandbox.Gone, "prepare", "%w", b.broken)
	}
	if b.run != nil {
		return nil, sandbox.Errorf(sandbox.Busy, "prepare", "the last run was not reset")
	}
	b.runs++
	job.Seq = b.runs
	b.run = &run{
		box: b, seq: b.runs, sink: sink, cpu: process.Limits.CPU,
		cwd: job.Cwd, name: process.Argv[0], candidates: job.Candidates,
		events: make(chan reply, 8), wake: make(chan struct{}, 1),
		proved: make(chan struct{}), done: make(chan struct{}),
		end: sandbox.End{Started: sandbox.StartedNo, Usage: noUsage()},
	}
	return b.run, nil
}

func noUsage() sandbox.Usage {
	return sandbox.Usage{CPUUser: -1, CPUSystem: -1, MemoryPeakBytes: -1, PidsPeak: -1}
}

// prepare gets the stub to the gate.
func (r *run) prepare(ctx context.Context, process sandbox.Process, job *leaseinit.Job) error {
	b := r.box
	if b.group != nil {
		if err := b.group.SetLimits(b.provider.groupLimits(process.Limits)); err != nil {
			return err
		}
		if err := b.group.Begin(ctx); err != nil {
			return err
		}
	}
	theirs, err := r.openStreams(process)
	if err != nil {
		return err
	}
	if err := errors.Join(r.sendJob(job, theirs), closeFiles(theirs)); err != nil {
		return err
	}
	return r.awaitGate(ctx)
}

// openStreams makes the pipes and returns the job's ends, in the order 0, 1, 2.
func (r *run) openStreams(process sandbox.Process) ([]*os.File, error) {
	pool := &r.box.provider.buffers
	input, stdin, err := newInput(process.Stdin)
	if err != nil {
		return nil, err
	}
	r.input = input
	theirs := []*os.File{stdin}
	for i, stream := range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
		out, file, err := newOutput(stream, pool)
		if err != nil {
			return nil, errors.Join(err, closeFiles(theirs))
		}
		r.outputs[i] = out
		theirs = append(theirs, file)
	}
	if err := r.box.giveStreams(theirs); err != nil {
		return nil, errors.Join(err, closeFiles(theirs))
	}
	return theirs, nil
}

// giveStreams makes the job's user the owner of its pipes, so that it may open them
// again by name: /dev/stderr is what scripts write to. An ordinary user's pipes are the
// job's anyway.
func (b *box) giveStreams(streams []*os.File) error {
	if !b.provider.host.root {
		return nil
	}
	owner := int(b.provider.host.rangeBase + b.slot*rangeSize + jobUID)
	for _, f := range streams {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fmt.Errorf("look at a stream: %w", err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFIFO {
			continue // the host's /dev/null
		}
		if err := unix.Fchown(int(f.Fd()), owner, owner); err != nil {
			return fmt.Errorf("give a stream to the job's user: %w", err)
		}
	}
	return nil
}

func closeFiles(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (r *run) sendJob(job *leaseinit.Job, theirs []*os.File) error {
	msg := job.Encode()
	fds := make([]int, 0, 4)
	for _, f := range theirs {
		fds = append(fds, int(f.Fd()))
	}
	if len(msg) <= leaseinit.MaxInline {
		return r.box.conn.send(msg, fds...)
	}
	file, err := memoryFile(msg)
	if err != nil {
		return err
	}
	err = r.box.conn.send(leaseinit.Enclose(len(msg)), append(fds, int(file.Fd()))...)
	return errors.Join(err, file.Close())
}

// memoryFile makes an anonymous file with data.
func memoryFile(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("job", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a memory file: %w", err)
	}
	file := os.NewFile(uintptr(fd), "job")
	if _, err := file.Write(data); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// awaitGate waits until the stub waits at the gate. Lease init and the stub speak
// independently, so their reports come in any order.
func (r *run) awaitGate(ctx context.Context) error {
	for waiting := false; !waiting || r.stub == nil; {
		select {
		case e := <-r.events:
			if e.report.Kind == leaseinit.Forked {
				r.stub = newPidfd(e.pidfd)
				continue
			}
			if err := e.check(leaseinit.Waiting); err != nil {
				return err
			}
			waiting = true
		case <-r.box.gone:
			return errors.New("lease init ended during the preparation")
		case <-ctx.Done():
			return fmt.Errorf("the stub does not get ready: %w", context.Cause(ctx))
		}
	}
	return nil
}

// abort lets go of a run that did not get to the gate. The sandbox is not used
// again.
func (r *run) abort() {
	if r.stub != nil {
		r.signal(unix.SIGKILL)
	}
	err := r.closeAll()
	r.mu.Lock()
	r.gate = gateShut
	r.err = errors.Join(sandbox.Errorf(sandbox.Unavailable, "wait", "the run was not prepared"), err)
	r.mu.Unlock()
	close(r.proved)
	close(r.done)
}

// closeAll closes what the worker holds of the run.
func (r *run) closeAll() error {
	var errs []error
	for _, out := range r.outputs {
		if out != nil {
			errs = append(errs, out.close())
		}
	}
	if r.input != nil {
		errs = append(errs, r.input.close())
	}
	if r.stub != nil {
		errs = append(errs, r.stub.close())
	}
	return errors.Join(errs...)
}

// signal sends sig to the stub. One that has ended needs none.
func (r *run) signal(sig unix.Signal) {
	if err := r.stub.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.box.provider.log.Warn().Err(err).Str("lease", r.box.spec.Lease).Int("signal", int(sig)).Msg("cannot signal a run")
	}
}

// Open opens the gate.
func (r *run) Open(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.gate {
	case gateClosed:
	case gateOpen:
		return sandbox.Errorf(sandbox.Protocol, "open", "the gate is open already")
	case gateShut:
		return sandbox.Errorf(sandbox.Refused, "open", "the run has ended before its gate was opened")
	}
	// Nothing of the job runs before the signal is sent.
	if err := r.stub.signal(unix.SIGUSR1); err != nil {
		r.gate = gateShut
		return sandbox.Errorf(sandbox.Refused, "open", "the stub is gone: %w", err)
	}
	r.gate = gateOpen
	r.end.Started = sandbox.StartedMaybe
	stop := sync.OnceFunc(func() {
		for _, out := range r.outputs {
			out.stop()
		}
	})
	for _, out := range r.outputs {
		r.readers.Go(func() { out.copy(r.sink, stop) })
	}
	if r.input.pending() {
		r.box.provider.runs.Go(r.feed)
	}
	return nil
}

// feed copies the input. An input that breaks off is the caller's fault and only
// its process's problem.
func (r *run) feed() {
	if err := r.input.copy(); err != nil {
		r.box.provider.log.Warn().Err(err).Str("lease", r.box.spec.Lease).Msg("the input of a run broke off")
	}
}

// Wait waits for the end.
func (r *run) Wait(ctx context.Context) (sandbox.End, error) {
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
		return r.end, r.err
	default:
		r.noteOutput()
		return r.end, sandbox.Errorf(sandbox.Ambiguous, "wait", "the run has not ended: %w", context.Cause(ctx))
	}
}

// Terminate ends the run.
func (r *run) Terminate(ctx context.Context, grace time.Duration) (sandbox.Proof, error) {
	r.mu.Lock()
	now := time.Now()
	if r.gate == gateOpen {
		r.ladder.begin(now, grace)
	} else {
		r.gate = gateShut
		r.ladder.beginHard(now)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	select {
	case <-r.proved:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.end.Proof.Proven {
		cause := context.Cause(ctx)
		if cause == nil {
			cause = r.err
		}
		return r.end.Proof, sandbox.Errorf(sandbox.Ambiguous, "terminate", "the end of the run is not proven: %w", cause)
	}
	return r.end.Proof, nil
}

func (r *run) proven() bool {
	select {
	case <-r.done:
	default:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end.Proof.Proven && r.err == nil
}
