package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const (
	// reconcileTimeout bounds the end of one dead worker's lease at start.
	reconcileTimeout = 3 * time.Second
	foreignPause     = 2 * time.Millisecond
	// scanPause is the time between two looks at all processes of the host.
	scanPause = 20 * time.Millisecond
	// dyingTime is how long a dead worker's lock may outlive it.
	dyingTime = time.Second
)

// reconcile ends what dead instances left. Their leases have ended with them, as a
// rule; what cannot be proven stays in the inventory.
func (p *Provider) reconcile() {
	instances, err := os.ReadDir(p.state.root)
	if err != nil {
		p.log.Warn().Err(err).Msg("cannot look for dead workers' leases")
		return
	}
	for _, entry := range instances {
		instance := entry.Name()
		if instance == p.config.Instance {
			p.reconcileInstance(instance)
			continue
		}
		lock, err := p.lockDead(instance)
		if err != nil {
			continue // it lives, or it is not ours to read
		}
		p.cleaning = instance
		gone := p.reconcileInstance(instance)
		p.cleaning = ""
		if gone {
			p.removeGroups(instance)
			err = removeInstance(filepath.Join(p.state.root, instance))
		}
		if err := errors.Join(err, lock.Close()); err != nil {
			p.log.Warn().Err(err).Str("instance", instance).Msg("cannot remove a dead worker's state")
		}
	}
}

// removeGroups removes what a dead instance's leases stood in.
func (p *Provider) removeGroups(instance string) {
	if p.config.Cgroup == nil {
		return
	}
	ctx, cancel := ownContext(reconcileTimeout)
	defer cancel()
	if err := p.config.Cgroup.RemoveInstance(ctx, instance); err != nil {
		p.log.Warn().Err(err).Str("instance", instance).Msg("cannot remove a dead worker's control groups")
	}
}

// sweepGroups removes the control groups of this instance that no record names: an
// earlier worker was killed between making one and noting it, or while it tried what
// they can do. This instance's lock is ours and nothing of it runs yet.
func (p *Provider) sweepGroups() {
	if p.config.Cgroup == nil {
		return
	}
	ids, err := p.config.Cgroup.Leases()
	if err != nil {
		p.log.Warn().Err(err).Msg("cannot look for a dead worker's control groups")
		return
	}
	records, err := p.state.of(p.config.Instance)
	if err != nil {
		p.log.Warn().Err(err).Msg("cannot tell a dead worker's control groups")
		return
	}
	for _, id := range ids {
		if slices.ContainsFunc(records, func(r record) bool { return r.Lease == id }) {
			continue // reconcile could not prove it gone: it stays in the inventory
		}
		ctx, cancel := ownContext(reconcileTimeout)
		remains, err := p.config.Cgroup.Adopt(id, nil)
		if err == nil {
			err = errors.Join(remains.Kill(), remains.Remove(ctx))
		}
		cancel()
		if err != nil {
			p.log.Warn().Err(err).Str("lease", id).Msg("cannot remove a dead worker's control groups")
		}
	}
}

// lockDead takes the lock of an instance that is dead. A process that its worker was
// just forking may hold it for a moment longer than the worker lives.
func (p *Provider) lockDead(instance string) (*os.File, error) {
	ctx, cancel := ownContext(dyingTime)
	defer cancel()
	for {
		lock, err := lockInstance(filepath.Join(p.state.root, instance))
		if !errors.Is(err, errInstanceLives) || !p.workerDead(instance) || pause(ctx, foreignPause) != nil {
			return lock, err
		}
	}
}

// workerDead says whether the worker that wrote an instance's records has surely
// ended. Without records nobody knows, and nothing has to be done.
func (p *Provider) workerDead(instance string) bool {
	records, err := p.state.of(instance)
	if err != nil {
		return false
	}
	for _, r := range records {
		if r.Boot == p.host.bootID && r.Worker > 0 {
			start, err := startTime(r.Worker)
			return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && start != r.WorkerStart
		}
	}
	return false
}

// reconcileInstance ends the leases that a dead instance has left and says whether
// all of them are gone.
func (p *Provider) reconcileInstance(instance string) bool {
	records, err := p.state.of(instance)
	if err != nil {
		p.log.Warn().Err(err).Str("instance", instance).Msg("cannot read a dead worker's state")
		return false
	}
	all := true
	if err := p.state.sweep(instance); err != nil {
		all = false
		p.log.Warn().Err(err).Str("instance", instance).Msg("cannot sweep a dead worker's state")
	}
	for _, r := range records {
		ctx, cancel := ownContext(reconcileTimeout)
		proof, err := p.destroyForeign(ctx, p.handle(r))
		cancel()
		if err != nil || !proof.Proven {
			all = false
			p.log.Warn().Err(err).Str("lease", r.Lease).Msg("cannot prove that a dead worker's lease is gone")
			p.mu.Lock()
			p.leftovers = append(p.leftovers, p.handle(r))
			p.mu.Unlock()
			continue
		}
		p.log.Info().Str("lease", r.Lease).Str("evidence", proof.Evidence[0].Detail).Msg("removed a dead worker's lease")
	}
	return all
}

// Leftovers are the leases of dead workers that could not be proven gone when the
// provider was made. Their workers may have died before anybody else knew of them.
func (p *Provider) Leftovers() []sandbox.Handle {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.leftovers)
}

// destroyForeign ends a lease that this provider did not make, or has forgotten
// because it is gone.
func (p *Provider) destroyForeign(ctx context.Context, handle sandbox.Handle) (sandbox.Proof, error) {
	r, err := p.identify(handle)
	if err != nil {
		return sandbox.Proof{}, err
	}
	if r.Boot != "" && r.Boot != p.host.bootID {
		return p.foreignGone(r, sandbox.Evidence{
			Kind: sandbox.EvidenceBoot, Detail: "the host has booted since: boot id was " + r.Boot + ", is " + p.host.bootID,
		})
	}
	evidence, err := p.endForeign(ctx, r)
	if err != nil {
		return sandbox.Proof{}, err
	}
	if p.config.Cgroup != nil {
		remains, err := p.config.Cgroup.Adopt(r.Lease, r.Groups)
		if err != nil {
			return sandbox.Proof{}, sandbox.Errorf(sandbox.Unavailable, "destroy", "%w", err)
		}
		if err := errors.Join(remains.Kill(), remains.Remove(ctx)); err != nil {
			return sandbox.Proof{}, sandbox.Errorf(sandbox.Busy, "destroy", "control groups of lease %s: %w", r.Lease, err)
		}
		return p.foreignGone(r, evidence, sandbox.Evidence{Kind: sandbox.EvidenceCgroup, Detail: "its control groups are removed"})
	}
	return p.foreignGone(r, evidence)
}

// identify completes a handle from the books. A lease that is in none of them
// keeps an empty instance.
func (p *Provider) identify(handle sandbox.Handle) (record, error) {
	r := recordOf(handle.Lease, handle.Detail)
	if !token(r.Lease) || r.Instance != "" && !token(r.Instance) {
		return r, sandbox.Errorf(sandbox.Refused, "destroy", "lease %q of instance %q: these are no tokens", r.Lease, r.Instance)
	}
	if r.Pid != 0 {
		return r, nil
	}
	known, err := p.state.all()
	if err != nil {
		return r, sandbox.Errorf(sandbox.Unavailable, "destroy", "%w", err)
	}
	for _, k := range known {
		if k.Lease == r.Lease {
			return k, nil
		}
	}
	return r, nil
}

func (p *Provider) foreignGone(r record, evidence ...sandbox.Evidence) (sandbox.Proof, error) {
	if r.Instance != "" {
		if err := p.state.remove(r.Instance, r.Lease); err != nil {
			return sandbox.Proof{}, sandbox.Errorf(sandbox.Unavailable, "destroy", "%w", err)
		}
	}
	return sandbox.Proof{Proven: true, Evidence: evidence}, nil
}

// endForeign ends lease init, if it still lives, and returns why it is gone.
func (p *Provider) endForeign(ctx context.Context, r record) (sandbox.Evidence, error) {
	if r.Pid == 0 {
		for {
			evidence, err := p.lookForeign(r)
			if sandbox.KindOf(err) != sandbox.Busy || pause(ctx, scanPause) != nil {
				return evidence, err
			}
		}
	}
	process, evidence, err := openVerified(r)
	if err != nil || process == nil {
		return evidence, err
	}
	evidence, err = endProcess(ctx, process, r.Pid)
	return evidence, errors.Join(err, process.close())
}

// endProcess kills a lease init and waits for its end.
func endProcess(ctx context.Context, process *pidfd, pid int) (evidence sandbox.Evidence, err error) {
	if err := process.signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return evidence, sandbox.Errorf(sandbox.Unavailable, "destroy", "kill lease init %d: %w", pid, err)
	}
	for {
		// A pidfd tells the end of a process whose parent has not waited for it, too.
		ended, err := process.ended()
		if err != nil {
			return evidence, sandbox.Errorf(sandbox.Unavailable, "destroy", "%w", err)
		}
		if ended {
			return sandbox.Evidence{
				Kind:   sandbox.EvidencePidfd,
				Detail: fmt.Sprintf("lease init %d has ended, and with it its pid namespaces", pid),
			}, nil
		}
		if err := pause(ctx, foreignPause); err != nil {
			return evidence, sandbox.Errorf(sandbox.Busy, "destroy", "lease init %d does not end: %w", pid, err)
		}
	}
}

// openVerified opens the lease init that r names. No process means that it is
// gone, with the evidence. A pid alone names nobody: it is opened first, and then
// its start time is compared, so that it cannot become another's in between.
func openVerified(r record) (*pidfd, sandbox.Evidence, error) {
	gone := sandbox.Evidence{Kind: sandbox.EvidenceOwnerDead, Detail: fmt.Sprintf("no process %d that started at tick %d", r.Pid, r.Start)}
	fd, err := unix.PidfdOpen(r.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, gone, nil
	}
	if err != nil {
		return nil, gone, sandbox.Errorf(sandbox.Unavailable, "destroy", "open process %d: %w", r.Pid, err)
	}
	process := newPidfd(fd)
	start, err := startTime(r.Pid)
	if err == nil && start == r.Start {
		if err := calledLeaseInit(r); err != nil {
			return nil, gone, errors.Join(err, process.close())
		}
		return process, gone, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return nil, gone, errors.Join(sandbox.Errorf(sandbox.Unavailable, "destroy", "look at process %d: %w", r.Pid, err), process.close())
	}
	return nil, gone, process.close()
}

// calledLeaseInit is nil if the process that r names says it is lease init of that
// lease, or says nothing because it has ended. Records come from files and from the
// ledger: whoever could write there is not to choose which process is killed.
func calledLeaseInit(r record) error {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.Pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return sandbox.Errorf(sandbox.Unavailable, "destroy", "look at process %d: %w", r.Pid, err)
	}
	if len(line) > 0 && !strings.HasPrefix(string(line), cmdline(r.Lease)) {
		return sandbox.Errorf(sandbox.Refused, "destroy", "process %d (%.64q) is not lease init of %s", r.Pid, line, r.Lease)
	}
	return nil
}

// cmdline is how the command line of a lease's lease init begins.
func cmdline(lease string) string { return leaseinit.Marker + "\x00" + lease + "\x00" }

// lookForeign is for a lease whose lease init may have been forked but was never
// noted. It has not been let in, so it ends when its worker does. A process that
// says it is that lease's is doubt; nobody's word is enough to kill it.
func (p *Provider) lookForeign(r record) (sandbox.Evidence, error) {
	if r.Instance != "" && r.Instance != p.config.Instance && r.Instance != p.cleaning {
		lock, err := lockInstance(filepath.Join(p.state.root, r.Instance))
		if errors.Is(err, errInstanceLives) {
			return sandbox.Evidence{}, sandbox.Errorf(sandbox.Busy, "destroy", "lease %s: its worker lives and has not noted a process", r.Lease)
		}
		if err == nil {
			err = lock.Close()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return sandbox.Evidence{}, sandbox.Errorf(sandbox.Unavailable, "destroy", "lock of instance %s: %w", r.Instance, err)
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return sandbox.Evidence{}, sandbox.Errorf(sandbox.Unavailable, "destroy", "%w", err)
	}
	want := cmdline(r.Lease)
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		line, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if err == nil && strings.HasPrefix(string(line), want) {
			return sandbox.Evidence{}, sandbox.Errorf(sandbox.Busy, "destroy", "process %s may be lease init of %s", entry.Name(), r.Lease)
		}
	}
	if r.Instance == "" {
		return sandbox.Evidence{Kind: sandbox.EvidenceNotFound, Detail: "no worker on this host has it in its books, and no process is its lease init"}, nil
	}
	return sandbox.Evidence{Kind: sandbox.EvidenceOwnerDead, Detail: "its worker is dead and no process is its lease init"}, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
