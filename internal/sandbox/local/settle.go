package local

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

// settle drives the run to its end, proves it and sees the output handed over.
func (r *run) settle() {
	reaped, ok := r.watch()
	if !ok {
		r.giveUp()
		return
	}
	proof, err := r.prove(reaped)
	now := time.Now()
	usage, oom, usageErr := r.usage(reaped)

	r.mu.Lock()
	opened := r.gate == gateOpen
	r.gate = gateShut
	if !opened {
		proof.Evidence = append(proof.Evidence, sandbox.Evidence{Kind: sandbox.EvidenceNotStarted, Detail: "the gate was never opened"})
	}
	r.end.Proof, r.end.Usage, r.end.OOM, r.end.ProvenAt = proof, usage, oom, now
	if r.end.EndedAt.IsZero() {
		r.end.EndedAt = now
	}
	r.err = errors.Join(err, usageErr)
	r.mu.Unlock()
	close(r.proved)

	outErr := errors.Join(r.finishStreams(), r.closeAll())
	r.mu.Lock()
	r.noteOutput()
	if r.end.Started == sandbox.StartedYes && r.end.Exit == nil && reaped != nil && syscall.WaitStatus(reaped.StubStatus).Signaled() {
		// The stub was killed before it saw the leader end: so the kernel killed
		// the leader with all the rest.
		r.end.Exit = &sandbox.Exit{Signal: int(unix.SIGKILL)}
	}
	r.err = errors.Join(r.err, outErr)
	if r.err != nil {
		r.err = sandbox.Errorf(sandbox.Protocol, "wait", "%w", r.err)
	}
	r.mu.Unlock()
	close(r.done)
}

// giveUp is for a run whose provider closes although its end is not known.
func (r *run) giveUp() {
	r.mu.Lock()
	r.err = sandbox.Errorf(sandbox.Ambiguous, "wait", "the provider was closed before the run's end was proven")
	r.mu.Unlock()
	close(r.proved)
	for _, out := range r.outputs {
		out.stop()
	}
	r.readers.Wait()
	if err := r.closeAll(); err != nil {
		r.box.provider.log.Warn().Err(err).Str("lease", r.box.spec.Lease).Msg("cannot close a run")
	}
	close(r.done)
}

// watch waits for the stub's end, walks the ladder and looks at the CPU time. The
// report is nil where lease init is gone; not ok means that the box was released.
func (r *run) watch() (reaped *leaseinit.Report, ok bool) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var cpu <-chan time.Time
	if r.cpu > 0 {
		ticker := time.NewTicker(cpuInterval)
		defer ticker.Stop()
		cpu = ticker.C
	}
	for {
		select {
		case e := <-r.events:
			if r.note(e) {
				return &e.report, true
			}
			if e.report.Kind == leaseinit.Leftover {
				r.unthrottle()
			}
		case <-r.box.gone:
			// What was said before the end is in the channel.
			for {
				select {
				case e := <-r.events:
					if r.note(e) {
						return &e.report, true
					}
					continue
				default:
				}
				return nil, true
			}
		case <-r.box.released:
			return nil, false
		case <-cpu:
			r.checkCPU()
		case <-timer.C:
		case <-r.wake:
		}
		timer.Reset(r.climb())
	}
}

// climb does what is due on the ladder and returns when to look again.
func (r *run) climb() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch r.ladder.step(now) {
	case rungNone:
	case rungAsk:
		r.signal(unix.SIGTERM)
	case rungForce:
		r.unthrottle()
		r.signal(unix.SIGHUP)
	case rungHammer:
		r.signal(unix.SIGKILL)
	case rungGroup:
		if r.box.group != nil {
			if err := r.box.group.KillJob(); err != nil {
				r.box.provider.log.Warn().Err(err).Str("lease", r.box.spec.Lease).Msg("cannot kill a control group")
			}
		}
	}
	if r.ladder.next.IsZero() {
		return time.Hour
	}
	return max(0, r.ladder.next.Sub(now))
}

// unthrottle lets what is killed end without waiting for its share of CPU time.
func (r *run) unthrottle() {
	if r.box.group == nil {
		return
	}
	if err := r.box.group.Unthrottle(); err != nil {
		r.box.provider.log.Warn().Err(err).Str("lease", r.box.spec.Lease).Msg("cannot lift the cpu limit of a run that is ended")
	}
}

// checkCPU ends the run when it has used up its CPU time.
func (r *run) checkCPU() {
	used, err := r.box.group.CPUTime()
	if err != nil {
		r.box.provider.log.Warn().Err(err).Str("lease", r.box.spec.Lease).Msg("cannot read the cpu time of a run: it is ended")
	}
	if err == nil && used < r.cpu {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end.CPUExceeded = true
	r.ladder.begin(time.Now(), 0)
}

// note takes a report in and says whether it is the last.
func (r *run) note(e reply) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := &e.report
	if rep.Kind == leaseinit.Unready && r.end.StartError == nil {
		r.end.Started = sandbox.StartedNo
		r.end.StartError = &sandbox.StartError{Reason: sandbox.StartSetup, Errno: int(rep.Errno)}
		return false
	}
	r.noteEnd(rep)
	return rep.Kind == leaseinit.Reaped
}

// noteEnd folds the stub's report about the leader.
func (r *run) noteEnd(rep *leaseinit.Report) {
	if r.gate != gateOpen || r.end.StartError != nil {
		return
	}
	r.end.Leftover = r.end.Leftover || rep.HasLeftover != 0
	if rep.Ended != 0 && r.end.EndedAt.IsZero() {
		r.end.EndedAt = time.Now().Add(time.Duration(rep.EndedAt) - monotonic())
	}
	switch {
	case rep.Started != 0:
		r.end.Started = sandbox.StartedYes
	case rep.Stage != leaseinit.StageNone:
		r.end.Started = sandbox.StartedNo
		r.end.StartError = r.startError(rep)
		return
	default:
		return
	}
	status := syscall.WaitStatus(rep.Status)
	switch {
	case rep.Ended != 0 && status.Signaled():
		r.end.Exit = &sandbox.Exit{Signal: int(status.Signal())}
	case rep.Ended != 0:
		r.end.Exit = &sandbox.Exit{Code: status.ExitStatus()}
	}
}

// startError says why the program could not be executed.
func (r *run) startError(rep *leaseinit.Report) *sandbox.StartError {
	errno, tried := syscall.Errno(rep.Errno), ""
	if i := int(rep.Candidate); i < len(r.candidates) {
		tried = r.candidates[i]
	}
	reason, path := sandbox.StartSetup, ""
	if rep.Stage == leaseinit.StageCwd {
		reason, path = sandbox.StartBadCwd, r.cwd
	}
	if rep.Stage == leaseinit.StageInterpreter {
		reason, path = sandbox.StartBadInterpreter, tried
	}
	if rep.Stage == leaseinit.StageExec {
		reason, path = execReason(errno), tried
	}
	if reason == sandbox.StartNotFound {
		path = r.name
	}
	return &sandbox.StartError{Reason: reason, Errno: int(errno), Path: path}
}

// execReason sorts the errors of execve(2).
func execReason(err syscall.Errno) sandbox.StartReason {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG, unix.ELOOP:
		return sandbox.StartNotFound
	case unix.EACCES, unix.EPERM:
		return sandbox.StartNotExecutable
	case unix.ENOEXEC, unix.EINVAL, unix.ELIBBAD, unix.EISDIR:
		return sandbox.StartBadFormat
	case unix.E2BIG:
		return sandbox.StartTooBig
	}
	return sandbox.StartSetup
}

// prove collects the evidence that nothing of the run is left.
func (r *run) prove(reaped *leaseinit.Report) (sandbox.Proof, error) {
	var proof sandbox.Proof
	deadline := time.Now().Add(proofTimeout)
	ended, err := r.stub.ended()
	for !ended && err == nil && time.Now().Before(deadline) {
		ctx, cancel := ownContext(time.Until(deadline))
		err = pause(ctx, foreignPause)
		cancel()
		if err == nil {
			ended, err = r.stub.ended()
		}
	}
	if !ended {
		return proof, errors.Join(errors.New("the stub was reaped, but its pidfd does not say that it has ended"), err)
	}
	proof.Evidence = append(proof.Evidence, sandbox.Evidence{
		Kind: sandbox.EvidencePidfd, Detail: "pid 1 of the run's pid namespace has ended, seen on its pidfd",
	})
	if reaped != nil {
		proof.Evidence = append(proof.Evidence, sandbox.Evidence{
			Kind: sandbox.EvidenceReap, Detail: "lease init waited for it: " + describe(syscall.WaitStatus(reaped.StubStatus)),
		})
	} else {
		proof.Evidence = append(proof.Evidence, sandbox.Evidence{
			Kind: sandbox.EvidencePidfd, Detail: "lease init has ended and was waited for, and with it all pid namespaces below",
		})
	}
	if r.box.group != nil {
		ctx, cancel := ownContext(proofTimeout)
		defer cancel()
		detail, err := r.box.group.WaitEmpty(ctx)
		if err != nil {
			return proof, err
		}
		proof.Evidence = append(proof.Evidence, sandbox.Evidence{Kind: sandbox.EvidenceCgroup, Detail: detail})
	}
	proof.Proven = true
	return proof, nil
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("killed by signal %d", status.Signal())
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// usage is what the tree has used: the control group's figures, else those of the
// processes that were waited for.
func (r *run) usage(reaped *leaseinit.Report) (sandbox.Usage, int64, error) {
	u := noUsage()
	if reaped != nil && reaped.Ended != 0 {
		u.CPUUser = time.Duration(reaped.UserMicros) * time.Microsecond
		u.CPUSystem = time.Duration(reaped.SystemMicros) * time.Microsecond
		u.MemoryPeakBytes = reaped.MaxRSSKiB << 10
		u.Source = "rusage"
	}
	if r.box.group == nil {
		return u, 0, nil
	}
	g, err := r.box.group.Usage()
	if err != nil {
		return u, 0, fmt.Errorf("read usage: %w", err)
	}
	if g.CPUUser >= 0 {
		u.CPUUser, u.CPUSystem, u.Source = g.CPUUser, g.CPUSystem, "cgroup"
	}
	if g.MemoryPeakBytes >= 0 {
		u.MemoryPeakBytes = g.MemoryPeakBytes
	}
	if g.PidsPeak > 0 {
		u.PidsPeak = g.PidsPeak
	}
	return u, max(0, g.OOMKills), nil
}

// finishStreams ends the input, and sees the output to its end: with every writer
// dead, nothing but the sink can hold it up.
func (r *run) finishStreams() error {
	inErr := r.input.close()
	for _, out := range r.outputs {
		out.writersGone()
	}
	if !r.outputs[0].ended.Load() || !r.outputs[1].ended.Load() {
		inErr = errors.Join(inErr, collectSockets())
	}
	r.readers.Wait()
	for _, out := range r.outputs {
		if out.stuck {
			return errors.Join(errors.New("an output pipe is held open although nothing of the run is left"), inErr)
		}
	}
	return inErr
}

// collectSockets has the kernel look for sockets that are held only by messages in
// each other's queues (unix(7), SCM_RIGHTS). A job can leave its output's writing end
// in such a ring, where it outlives every process; the kernel breaks rings when
// somebody closes a Unix socket.
func collectSockets() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("have the kernel collect sockets: %w", err)
	}
	return errors.Join(unix.Close(fds[0]), unix.Close(fds[1]))
}

// noteOutput: what has written something was started.
func (r *run) noteOutput() {
	if r.end.Started == sandbox.StartedMaybe && r.outputs[0].total.Load()+r.outputs[1].total.Load() > 0 {
		r.end.Started = sandbox.StartedYes
	}
}
