package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// probeTimeout bounds a whole probe, which takes about half a second.
const probeTimeout = 60 * time.Second

// Probe makes a real sandbox, looks from inside what holds, and tries each limit
// that is claimed with a program that goes beyond it: no setting of the host is
// taken for an answer. groups is what was found when Config.Cgroup was opened: the
// reasons where a limit is not there. root is the root view to look from
// (sandbox.Spec.Root), which must be read-only and have a shell.
func (p *Provider) Probe(ctx context.Context, groups cgroup.Report, root string) (r Report) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	r = Report{Level: "none", Kernel: kernel(), User: "an ordinary user"}
	if p.host.root {
		r.User = "root"
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails (crypto/rand)
	box, err := p.Create(ctx, sandbox.Spec{Lease: hex.EncodeToString(id[:]), Profile: "probe", Root: root})
	if err != nil {
		r.lacks(PropertySandbox, err.Error(), lookAbout("/").fixes()...)
		return r
	}
	defer func() {
		ctx, cancel := cleanup(ctx, closeTimeout)
		defer cancel()
		_, err := box.Destroy(ctx)
		r.tried(PropertyDestruction, "lease init's pidfd, waited for", err)
	}()
	if p.probeRun(ctx, box, &r) {
		p.probeInside(ctx, box, &r)
		p.probeLimits(ctx, box, groups, &r)
	}
	return r
}

// probeRun sees a program run to its proven end.
func (p *Provider) probeRun(ctx context.Context, box sandbox.Sandbox, r *Report) bool {
	o, err := trial{script: "exit 7"}.run(ctx, box)
	if err == nil && (o.Exit == nil || *o.Exit != (sandbox.Exit{Code: 7})) {
		err = fmt.Errorf("a shell that exits with 7 ended with %+v", o.Exit)
	}
	r.tried(PropertySandbox, "a program that ran in one", err)
	if err != nil {
		return false
	}
	r.Level = p.capabilities.Isolation.Level
	var kinds []string
	for _, e := range o.Proof.Evidence {
		kinds = append(kinds, string(e.Kind))
	}
	r.note(PropertyProof, o.Proof.Proven, strings.Join(kinds, ", "), "the end of a run could not be proven")
	r.note(PropertyCgroupProof, o.Proof.Proven && slices.Contains(kinds, string(sandbox.EvidenceCgroup)),
		"the job's control group, seen empty", "there is no control group to see empty", howCgroup)
	return true
}

// lookAround prints what can be seen from inside, one fact a line.
const lookAround = `
for ns in user pid mnt net ipc uts cgroup; do echo "$ns $(readlink /proc/self/ns/$ns)"; done
while read -r key value rest; do case $key in CapPrm:|CapEff:|CapBnd:|CapAmb:|NoNewPrivs:|Seccomp:) echo "$key $value";; esac; done </proc/self/status
devices=; while read -r name rest; do case $name in *:) devices="$devices$name";; esac; done </proc/net/dev; echo "net-devices $devices"
read -r most </proc/sys/user/max_user_namespaces; echo "user-namespaces $most"
(: >/usr/.probe) 2>/dev/null && echo "usr-writable yes"
(: >/.probe) 2>/dev/null && echo "root-writable yes"
(: >/workspace/.probe) 2>/dev/null && echo "workspace-writable yes"
while read -r inside outside count; do echo "uid-map $count"; done </proc/self/uid_map
`

// probeInside looks at what is visible from inside.
func (p *Provider) probeInside(ctx context.Context, box sandbox.Sandbox, r *Report) {
	o, err := trial{script: lookAround}.run(ctx, box)
	r.tried(PropertyInside, "a shell that prints what it sees", err)
	if err != nil {
		return
	}
	facts := map[string]string{}
	for line := range strings.Lines(o.out) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			facts[key] = value
		}
	}
	for _, ns := range []struct{ name, file string }{
		{PropertyUser, "user"},
		{PropertyPid, "pid"},
		{PropertyMount, "mnt"},
		{PropertyNetwork, "net"},
		{PropertyIPC, "ipc"},
		{PropertyUTS, "uts"},
		{PropertyCgroup, "cgroup"},
	} {
		outside, err := os.Readlink("/proc/self/ns/" + ns.file)
		inside := facts[ns.file]
		r.note(ns.name, err == nil && inside != "" && inside != outside, inside, "it is the worker's own")
	}
	r.note(PropertyNesting, facts["user-namespaces"] == "0", "max_user_namespaces 0 in the sandbox's own user namespace",
		"a job may make user namespaces: "+facts["user-namespaces"])
	const none = "0000000000000000"
	var held []string
	for _, set := range []string{"CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"} {
		if facts[set] != none {
			held = append(held, set+" "+facts[set])
		}
	}
	r.note(PropertyCapabilities, held == nil, "empty sets, the bounding set too", strings.Join(held, ", "))
	r.note(PropertyNoNewPrivs, facts["NoNewPrivs:"] == "1", "prctl(PR_SET_NO_NEW_PRIVS)", "it is not set")
	r.note(PropertyFilter, facts["Seccomp:"] == "2", "seccomp", "no filter is loaded")
	r.note(PropertyNoNetwork, facts["net-devices"] == "lo:", "an empty network namespace", "devices: "+facts["net-devices"])
	r.note(PropertyReadOnly, facts["usr-writable"] == "" && facts["root-writable"] == "" && facts["workspace-writable"] == "yes",
		"read-only mounts, with a workspace", "a system directory can be written to, or the workspace cannot")
	r.note(PropertyUIDs, p.host.root && facts["uid-map"] != "1", facts["uid-map"]+" uids for each lease",
		"all leases have the worker's own uid, and its supplementary groups", "run the worker as root")
}

// probeLimits tries each limit that is claimed.
func (p *Provider) probeLimits(ctx context.Context, box sandbox.Sandbox, groups cgroup.Report, r *Report) {
	r.tried(PropertyFork, "a shell that forked and waited", tryFork(ctx, box))
	enforces, why := p.capabilities.Enforces, p.capabilities.Unenforced
	pids := "RLIMIT_NPROC in the lease's user namespace"
	if p.groupPids() {
		pids = orElse(groups.Pids.By, "control group")
	}
	for _, limit := range []struct {
		name, by string
		claimed  bool
		try      func(context.Context, sandbox.Sandbox) error
		// key is the request's name for it, finding what control groups say about it.
		key     string
		finding cgroup.Finding
	}{
		{PropertyPids, pids, enforces.Pids, tryPids, "", groups.Pids},
		{PropertyMemory, orElse(groups.Memory.By, "control group"), enforces.Memory, tryMemory, limitMemory, groups.Memory},
		{PropertyCPUShare, orElse(groups.CPU.By, "control group"), enforces.CPUShare, tryCPUShare, limitCPUShare, groups.CPU},
		{PropertyCPUTime, "the control group's CPU time, looked at every " + cpuInterval.String(), enforces.CPU, tryCPUTime, limitCPU, groups.CPU},
		{PropertyDisk, "the size of the workspace's tmpfs", enforces.Disk, tryDisk, "", cgroup.Finding{}},
		{PropertyInodes, "the inodes of the workspace's tmpfs", enforces.Inodes, tryInodes, "", cgroup.Finding{}},
		{PropertyOpenFiles, "RLIMIT_NOFILE", enforces.OpenFiles, tryOpenFiles, "", cgroup.Finding{}},
	} {
		if limit.claimed {
			r.tried(limit.name, limit.by, limit.try(ctx, box))
			continue
		}
		fix := limit.finding.Fix
		if len(fix) == 0 {
			fix = []string{howCgroup}
		}
		r.lacks(limit.name, orElse(limit.finding.Why, why[limit.key]), fix...)
	}
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// Err is nil where all the named properties hold; else it says what is missing,
// why, what there is and what to do.
func (r Report) Err(names ...string) error {
	var missing, reasons, have []string
	for _, name := range names {
		property := r.Property(name)
		if property.Holds {
			continue
		}
		missing = append(missing, name)
		reasons = append(reasons, fmt.Sprintf("    %s: %s", name, property.Why))
		for _, fix := range property.Fix {
			if line := "      fix: " + fix; !slices.Contains(reasons, line) {
				reasons = append(reasons, line)
			}
		}
	}
	if missing == nil {
		return nil
	}
	for _, property := range r.Properties {
		if property.Holds {
			have = append(have, property.Name)
		}
	}
	if have == nil {
		have = []string{"nothing"}
	}
	lines := append([]string{"  missing: " + strings.Join(missing, ", ")}, reasons...)
	lines = append(lines, "  have:    "+r.Level+": "+strings.Join(have, ", "))
	return errors.New(strings.Join(lines, "\n"))
}
