package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

// killPatience is how long a killed lease init may take before its control groups
// are killed, too.
const killPatience = 300 * time.Millisecond

// enotsupp is an error of the kernel's own that has no name outside (524).
const enotsupp = syscall.Errno(524)

// box is a sandbox: one lease init and what is below.
type box struct {
	provider *Provider
	spec     sandbox.Spec
	slot     uint32

	// These are set by create, before anybody else has the box.
	record record
	group  *cgroup.Lease
	conn   *conn
	init   *os.File // pidfd
	initFD *pidfd   // the same process, for signals

	// replies are lease init's answers outside of runs.
	replies chan reply
	// gone is closed when lease init has been waited for, released when the box's
	// goroutines are to end although it is not, lost as the contract says.
	gone, released, lost chan struct{}
	releaseOnce          sync.Once
	// ending is held by the one that creates or destroys.
	ending chan struct{}
	proof  sandbox.Proof // of the end; guarded by ending

	mu         sync.Mutex
	run        *run // the last one; nil after a reset
	runs       uint32
	broken     error // why it may not be used again
	destroying bool
}

// reply is a report and what came with it.
type reply struct {
	report leaseinit.Report
	about  string
	pidfd  int
}

var _ sandbox.Sandbox = (*box)(nil)

func newBox(p *Provider, spec sandbox.Spec) *box {
	b := &box{
		provider: p, spec: spec,
		replies: make(chan reply, 4),
		gone:    make(chan struct{}), released: make(chan struct{}), lost: make(chan struct{}),
		ending: make(chan struct{}, 1),
	}
	b.ending <- struct{}{} // until create has ended
	return b
}

// create makes lease init and waits until it is ready.
func (b *box) create(ctx context.Context) (err error) {
	defer func() { <-b.ending }()
	p := b.provider
	setup, root, err := b.setup()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.close()) }()
	var groups []string
	if p.config.Cgroup != nil {
		groups = p.config.Cgroup.LeaseDirs(b.spec.Lease)
	}
	if b.record, err = p.state.intend(b.spec.Lease, groups); err != nil {
		return err
	}
	var groupDir *os.File
	if p.config.Cgroup != nil {
		if b.group, err = p.config.Cgroup.NewLease(b.spec.Lease, p.groupLimits(b.spec.Limits)); err != nil {
			return err
		}
		groupDir = b.group.InitFD()
	}
	if err := b.fork(groupDir); err != nil {
		return err
	}
	if b.group != nil {
		if err := b.group.AttachInit(b.record.Pid); err != nil {
			return err
		}
	}
	files, err := b.admit(&setup)
	if err != nil {
		return err
	}
	if root.tree != nil {
		files = append(files, int(root.tree.Fd()))
	}
	if err := b.conn.send(setup.Encode(), files...); err != nil {
		return fmt.Errorf("send set-up: %w", err)
	}
	return b.answer(ctx, leaseinit.Ready)
}

// admit gives lease init what it needs to put jobs into their control groups, and
// returns the descriptors that go with its set-up.
func (b *box) admit(setup *leaseinit.Setup) (fds []int, err error) {
	if b.group == nil {
		return nil, nil
	}
	for _, f := range b.group.JobFiles() {
		fds = append(fds, int(f.Fd()))
	}
	dir := b.group.JobDir()
	if dir == nil {
		return fds, nil
	}
	if b.provider.host.root {
		err = b.group.Admit(b.provider.host.firstUID(b.slot))
	}
	setup.Into = true
	return append(fds, int(dir.Fd())), err
}

// setup is what lease init needs, with the root view, which the caller closes.
func (b *box) setup() (leaseinit.Setup, view, error) {
	s := leaseinit.Setup{Hostname: "sandbox", JobUID: jobUID, Switch: b.provider.host.root}
	s.Filter, s.JobFilter = b.provider.policy.Lease.Bytes(), b.provider.policy.Job.Bytes()
	root, err := b.view(b.spec.Root)
	if err != nil {
		return s, root, fmt.Errorf("root of profile %s: %w", b.spec.Profile, err)
	}
	s.View, s.Overlay, s.Tree = root.ops, root.overlay, root.tree != nil
	if s.Base, err = basePath(s.View); err != nil {
		err = errors.Join(err, root.close())
	}
	return s, root, err
}

// fork starts lease init, which does nothing before it gets its set-up.
func (b *box) fork(groupDir *os.File) error {
	p := b.provider
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	b.conn = ours
	process, err := p.launcher.launch(&p.host, b.slot, b.spec.Lease, theirs, p.null, groupDir)
	err = errors.Join(err, theirs.Close())
	if process.pid == 0 {
		return err
	}
	// From here on there is a process, which receive sees end.
	b.record.Pid = process.pid
	dup, dupErr := unix.FcntlInt(uintptr(process.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	b.initFD = newPidfd(dup)
	b.init, err = pollable(process.pidfd, "pidfd of lease init")
	if err := errors.Join(err, dupErr); err != nil {
		return err
	}
	p.runs.Go(b.receive)
	if b.record.Start, err = startTime(process.pid); err != nil {
		return fmt.Errorf("start time of lease init: %w", err)
	}
	return p.state.write(b.record)
}

// receive hands on what lease init says, and sees its end. The socket's end comes
// at once when lease init dies; that it is gone, and everything below with it, is
// known only when it can be waited for.
func (b *box) receive() {
	var buf [4096]byte
	for {
		n, passed, err := b.conn.receive(buf[:])
		if err != nil {
			break
		}
		report, about, ok := leaseinit.DecodeReport(buf[:n])
		if !ok || !b.dispatch(reply{report, about, passed}) {
			b.breakDown(sandbox.Errorf(sandbox.Protocol, "receive", "lease init says what makes no sense"))
			if err := b.initFD.signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				b.provider.log.Error().Err(err).Str("lease", b.spec.Lease).Msg("cannot kill a lease init that makes no sense")
			}
		}
	}
	b.breakDown(sandbox.Errorf(sandbox.Gone, "receive", "lease init has ended"))
	if b.reap() == nil {
		close(b.gone)
	}
}

// dispatch gives a message to who waits for it, and says whether there is room for
// it: lease init never says more than it was asked.
func (b *box) dispatch(r reply) bool {
	to := b.replies
	switch r.report.Kind {
	case leaseinit.Ready, leaseinit.Fatal, leaseinit.WasReset, leaseinit.NotReset:
	case leaseinit.Forked, leaseinit.Refused, leaseinit.Waiting, leaseinit.Unready, leaseinit.Leftover, leaseinit.Reaped:
		b.mu.Lock()
		run := b.run
		b.mu.Unlock()
		if run == nil || run.seq != r.report.Seq {
			return false
		}
		to = run.events
	default:
		return false
	}
	select {
	case to <- r:
		return true
	default:
		return false
	}
}

// breakDown notes that the sandbox is no longer usable, and why, unless it is being
// destroyed.
func (b *box) breakDown(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return
	}
	b.broken = err
	if !b.destroying {
		close(b.lost)
	}
}

// reap waits for lease init's end and takes its exit status, so that no zombie
// stays.
func (b *box) reap() error {
	raw, err := b.init.SyscallConn()
	if err != nil {
		return err
	}
	var waitErr error
	err = raw.Read(func(fd uintptr) (ended bool) {
		ended, waitErr = b.provider.launcher.family.wait(b.record.Pid, int(fd))
		return ended
	})
	return errors.Join(err, waitErr)
}

// answer waits for lease init's answer of the wanted kind.
func (b *box) answer(ctx context.Context, want leaseinit.ReportKind) error {
	select {
	case r := <-b.replies:
		return r.check(want)
	case <-b.gone:
		// What it said last is why.
		select {
		case r := <-b.replies:
			return r.check(want)
		default:
			return errors.New("lease init ended without a word")
		}
	case <-ctx.Done():
		return fmt.Errorf("lease init does not answer: %w", context.Cause(ctx))
	}
}

func (r reply) check(want leaseinit.ReportKind) error {
	if r.report.Kind == want {
		return nil
	}
	about := r.about
	if about != "" {
		about = " (" + about + ")"
	}
	err := syscall.Errno(r.report.Errno)
	return fmt.Errorf("%s%s: %w%s", r.report.Stage, about, err, stageHint(r.report.Stage, err))
}

// stageHint says what usually stands behind an error of lease init.
func stageHint(stage leaseinit.Stage, err syscall.Errno) string {
	denied := err == unix.EPERM || err == unix.EACCES
	switch {
	case stage == leaseinit.StageProc && denied:
		return " (/proc is partly masked, as in a container: run it with --security-opt systempaths=unconfined, or on the host)"
	case stage == leaseinit.StageOverlay && err == unix.ENODEV:
		return " (the kernel has no overlayfs: modprobe overlay on the host)"
	case stage == leaseinit.StageOverlay && denied:
		return " (an overlay in a user namespace needs Linux 5.11, and no AppArmor or seccomp rule against mounts)"
	case stage == leaseinit.StageOverlay && err == unix.EINVAL:
		return " (the lower directory's file system cannot be part of an overlay, or, where the worker is root, Linux 5.19 or newer is needed)"
	case stage == leaseinit.StageView && err == unix.EACCES:
		return " (lease init is a user of its own: every directory on the way to the profile's root must be open to others, chmod o+x)"
	case denied && (stage == leaseinit.StagePrivate || stage == leaseinit.StageRoot || stage == leaseinit.StageView):
		return " (mounting is forbidden in user namespaces here: with kernel.apparmor_restrict_unprivileged_userns=1 an AppArmor profile with \"userns,\" is needed; in a container, a seccomp profile that allows mount)"
	case stage == leaseinit.StagePivot && err == unix.EINVAL:
		return " (the worker's root is no mount point, as in a chroot or an initramfs)"
	case stage == leaseinit.StageFilter && err == enotsupp:
		return " (too many filters: net.core.bpf_jit_limit is used up; raise it)"
	case err == unix.ENOSYS:
		return " (Linux 5.14 or newer is needed)"
	}
	return ""
}

// abandon ends what create has begun and makes its error: Ambiguous where
// something may be left.
func (b *box) abandon(ctx context.Context, cause error) error {
	ctx, cancel := cleanup(ctx, closeTimeout)
	defer cancel()
	if _, err := b.Destroy(ctx); err != nil {
		return sandbox.Errorf(sandbox.Ambiguous, "create", "%w; and it cannot be proven gone: %w", cause, err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "create", "%w", cause)
}

func (b *box) Handle() sandbox.Handle { return b.provider.handle(b.record) }

func (b *box) Isolation() sandbox.Isolation { return b.provider.capabilities.Isolation }

func (b *box) Lost() <-chan struct{} { return b.lost }

// Reset has lease init take the workspace away and look that no process is left.
// Everything else that a run could leave was in its own namespaces and went with
// them.
func (b *box) Reset(ctx context.Context) error {
	b.mu.Lock()
	run, broken := b.run, b.broken
	b.mu.Unlock()
	if broken != nil {
		return sandbox.Errorf(sandbox.Gone, "reset", "%w", broken)
	}
	if run == nil {
		return nil
	}
	if !run.proven() {
		return sandbox.Errorf(sandbox.Busy, "reset", "the end of the last run is not proven")
	}
	if b.group != nil && b.group.Spent() {
		return b.unusable("reset", errors.New("its control group was killed: no process can be born there any more"))
	}
	if err := b.conn.send(leaseinit.EncodeReset()); err != nil {
		return b.unusable("reset", fmt.Errorf("ask lease init: %w", err))
	}
	if err := b.answer(ctx, leaseinit.WasReset); err != nil {
		return b.unusable("reset", err)
	}
	b.mu.Lock()
	b.run = nil
	b.mu.Unlock()
	return nil
}

// unusable notes that the sandbox may not be used again, and makes the error.
func (b *box) unusable(op string, cause error) error {
	err := sandbox.Errorf(sandbox.Unavailable, op, "%w", cause)
	b.breakDown(err)
	return err
}

// Destroy kills lease init and returns when it has been waited for and its control
// groups are removed.
func (b *box) Destroy(ctx context.Context) (sandbox.Proof, error) {
	select {
	case b.ending <- struct{}{}:
		defer func() { <-b.ending }()
	case <-ctx.Done():
		return sandbox.Proof{}, sandbox.Errorf(sandbox.Busy, "destroy", "it is being destroyed: %w", context.Cause(ctx))
	}
	if b.proof.Proven {
		return b.proof, nil
	}
	b.mu.Lock()
	b.destroying = true
	b.mu.Unlock()
	evidence, err := b.end(ctx)
	if err != nil {
		return sandbox.Proof{Evidence: evidence}, sandbox.Errorf(sandbox.Busy, "destroy", "%w", err)
	}
	if err := b.provider.state.remove(b.provider.config.Instance, b.spec.Lease); err != nil {
		return sandbox.Proof{Evidence: evidence}, sandbox.Errorf(sandbox.Unavailable, "destroy", "%w", err)
	}
	b.letGo()
	b.provider.forget(b)
	b.proof = sandbox.Proof{Proven: true, Evidence: evidence}
	return b.proof, nil
}

// end kills and waits, and returns what it saw.
func (b *box) end(ctx context.Context) ([]sandbox.Evidence, error) {
	var evidence []sandbox.Evidence
	if b.init == nil {
		evidence = append(evidence, sandbox.Evidence{Kind: sandbox.EvidenceNeverMade, Detail: "no process was started"})
	} else {
		if err := b.endInit(ctx); err != nil {
			return nil, err
		}
		evidence = append(evidence, sandbox.Evidence{
			Kind:   sandbox.EvidencePidfd,
			Detail: fmt.Sprintf("lease init %d was waited for: its pid namespaces, mounts and network are gone with it", b.record.Pid),
		})
	}
	b.mu.Lock()
	run := b.run
	b.mu.Unlock()
	if run != nil {
		// It still has to look at what is removed next.
		select {
		case <-run.proved:
		case <-ctx.Done():
			return evidence, fmt.Errorf("the last run is not settled: %w", context.Cause(ctx))
		}
	}
	if b.group != nil {
		if err := b.group.Remove(ctx); err != nil {
			return evidence, fmt.Errorf("remove control groups: %w", err)
		}
		evidence = append(evidence, sandbox.Evidence{Kind: sandbox.EvidenceCgroup, Detail: "its control groups are removed"})
	}
	return evidence, nil
}

func (b *box) endInit(ctx context.Context) error {
	if err := b.initFD.signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill lease init: %w", err)
	}
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	for {
		select {
		case <-b.gone:
			return nil
		case <-patience.C:
			if b.group != nil {
				if err := b.group.Kill(); err != nil {
					return fmt.Errorf("kill control groups: %w", err)
				}
			}
		case <-ctx.Done():
			return fmt.Errorf("lease init %d does not end: %w", b.record.Pid, context.Cause(ctx))
		}
	}
}

// letGo closes what the worker holds of the sandbox and ends its goroutines.
func (b *box) letGo() {
	b.releaseOnce.Do(func() {
		close(b.released)
		var errs []error
		if b.conn != nil {
			errs = append(errs, b.conn.close())
		}
		if b.init != nil {
			errs = append(errs, b.init.Close(), b.initFD.close())
		}
		if err := errors.Join(errs...); err != nil {
			b.provider.log.Warn().Err(err).Str("lease", b.spec.Lease).Msg("cannot let go of a sandbox")
		}
	})
}
