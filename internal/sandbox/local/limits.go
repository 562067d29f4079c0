package local

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const (
	// defaultOpenFiles is the usual soft limit of a login (getrlimit(2)).
	defaultOpenFiles = 1024
	// lockedBytes and pendingSignals bound kernel memory that no control group of
	// every kernel counts; message queues need a file system that jobs do not have.
	lockedBytes    = 64 << 10
	pendingSignals = 1024
	// shmInodes bounds /dev/shm, tmpInodesPerMiB /tmp.
	shmInodes       = 1024
	tmpInodesPerMiB = 256
)

// The names of limits in requests.
const (
	limitCPU      = "cpu_ms"
	limitMemory   = "memory_bytes"
	limitCPUShare = "cpu_share"
	limitPids     = "pids"
)

const howCgroup = "run the worker as root, or give it a delegated control group: Delegate=yes in its systemd unit, or systemd-run --user --scope -p Delegate=yes"

// findCapabilities says what this host lets the provider do.
func (p *Provider) findCapabilities() (sandbox.Capabilities, error) {
	c := sandbox.Capabilities{
		Scope: "kernel", Host: p.config.Host, Reset: true, Files: true,
		Enforces:   sandbox.Enforced{Pids: true, Disk: true, Inodes: true, OpenFiles: true},
		Unenforced: map[string]string{},
		Isolation: sandbox.Isolation{
			Level: "namespaces",
			Applied: []string{
				"user, pid, mount, network, ipc and uts namespaces",
				"nested pid, mount, ipc and cgroup namespaces for each job", "read-only root", "no network",
				"no capabilities", "no_new_privs", "no further user namespaces", "system-call filter",
			},
		},
	}
	if !p.host.root {
		c.Isolation.Missing = append(c.Isolation.Missing, "a uid for each lease: all have the worker's, and its supplementary groups")
	}
	if p.config.Cgroup != nil {
		c.Isolation.Level = "namespaces+cgroup"
		var err error
		if c.Enforces.CPU, err = p.measuresCPU(); err != nil {
			return c, err
		}
		c.Enforces.Memory, _, c.Enforces.CPUShare = p.config.Cgroup.Enforces()
	}
	for _, limit := range []struct {
		name, what string
		enforced   bool
	}{
		{limitCPU, "the CPU time of a process tree", c.Enforces.CPU},
		{limitMemory, "the memory of a process tree", c.Enforces.Memory},
		{limitCPUShare, "the CPU share of a process tree", c.Enforces.CPUShare},
		{limitPids, "the number of tasks", c.Enforces.Pids},
	} {
		if limit.enforced {
			c.Isolation.Applied = append(c.Isolation.Applied, limit.name+" limit")
			continue
		}
		c.Unenforced[limit.name] = fmt.Sprintf("%s cannot be limited without a control group that has it: %s", limit.what, howCgroup)
		c.Isolation.Missing = append(c.Isolation.Missing, limit.name+" limit")
	}
	return c, nil
}

// measuresCPU tries whether the control groups tell the CPU time.
func (p *Provider) measuresCPU() (bool, error) {
	lease, err := p.config.Cgroup.NewLease(fmt.Sprintf("capabilities-%d", os.Getpid()), cgroup.Limits{})
	if err != nil {
		return false, err
	}
	used, err := lease.CPUTime()
	ctx, cancel := ownContext(closeTimeout)
	defer cancel()
	if removeErr := lease.Remove(ctx); removeErr != nil {
		return false, removeErr
	}
	return err == nil && used >= 0, err
}

// unenforced is an error that names the first limit in l that this host cannot
// enforce.
func (p *Provider) unenforced(l sandbox.Limits) error {
	for _, limit := range []struct {
		name     string
		value    int64
		enforced bool
	}{
		{limitCPU, int64(l.CPU), p.capabilities.Enforces.CPU},
		{limitMemory, l.MemoryBytes, p.capabilities.Enforces.Memory},
		{limitCPUShare, l.CPUShare, p.capabilities.Enforces.CPUShare},
	} {
		if limit.value > 0 && !limit.enforced {
			return fmt.Errorf("%s cannot be enforced here: %s", limit.name, p.capabilities.Unenforced[limit.name])
		}
	}
	return nil
}

// groupLimits are the limits of a run that its control group enforces. That of
// processes has another way where the group has none (applyLimits); the others were
// refused.
func (p *Provider) groupLimits(l sandbox.Limits) cgroup.Limits {
	g := cgroup.Limits{MemoryBytes: l.MemoryBytes, CPUShare: l.CPUShare}
	if p.groupPids() {
		g.Pids = l.Pids
	}
	return g
}

// applyLimits writes what the stub enforces into job.
func (p *Provider) applyLimits(job *leaseinit.Job, l sandbox.Limits) {
	disk, inodes, tmp := l.DiskBytes, l.Inodes, p.config.TmpBytes
	if disk == 0 {
		disk = p.config.WorkspaceBytes
	}
	if inodes == 0 {
		inodes = p.config.WorkspaceInodes
	}
	if l.DiskBytes > 0 {
		tmp = min(tmp, l.DiskBytes)
	}
	// The root of a file system counts as an inode, too.
	job.Workspace = fmt.Sprintf("size=%d,nr_inodes=%d,mode=755,uid=%d,gid=%d", disk, inodes+1, jobUID, jobUID)
	job.Tmp = fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777", tmp, tmp*tmpInodesPerMiB>>20+64)
	job.Shm = fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777", tmp, shmInodes)
	files := uint64(l.OpenFiles)
	if files == 0 {
		files = defaultOpenFiles
	}
	job.Rlimits = []leaseinit.Rlimit{
		{Resource: unix.RLIMIT_NOFILE, Value: min(files, p.mostFiles())},
		// One page more than fits, so that a program which fills its file system is told
		// that it is full, and not killed.
		{Resource: unix.RLIMIT_FSIZE, Value: uint64(max(disk, tmp)) + uint64(os.Getpagesize())},
		{Resource: unix.RLIMIT_MEMLOCK, Value: lockedBytes},
		{Resource: unix.RLIMIT_MSGQUEUE, Value: 0},
		{Resource: unix.RLIMIT_SIGPENDING, Value: pendingSignals},
	}
	if l.Pids > 0 && !p.groupPids() {
		job.Processes = uint64(l.Pids)
	}
}

// mostFiles is the greatest limit on open files that a job may have. Descriptors that
// are on their way through Unix sockets are counted for the user: as an ordinary user,
// who has all leases' jobs, a process may not send any while there are more of them
// than it may have open itself (unix(7), ETOOMANYREFS). Jobs stay below what the worker
// and lease init may have, so that these can.
func (p *Provider) mostFiles() uint64 {
	if p.host.root {
		return p.host.hardFiles
	}
	return p.host.hardFiles / 2
}

// groupPids says whether the control group limits the number of tasks.
func (p *Provider) groupPids() bool {
	if p.config.Cgroup == nil {
		return false
	}
	_, pids, _ := p.config.Cgroup.Enforces()
	return pids
}

func hardLimitFiles() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	return r.Max, nil
}
