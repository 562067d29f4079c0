package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Report is what a probe found on this host.
type Report struct {
	// Level is Isolation.Level: "namespaces+cgroup" or "namespaces"; "none" where no
	// sandbox could be made.
	Level      string
	Properties []Property
}

// Property is one thing that a sandbox should have.
type Property struct {
	Name  string
	Holds bool
	// By says what enforces it. Why and Fix are set where it does not hold.
	By, Why, Fix string
}

// String is one line for each property.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "isolation level: %s\n", r.Level)
	for _, p := range r.Properties {
		if p.Holds {
			fmt.Fprintf(&b, "  %-22s enforced by %s\n", p.Name, p.By)
			continue
		}
		fmt.Fprintf(&b, "  %-22s not enforced: %s\n", p.Name, p.Why)
		if p.Fix != "" {
			fmt.Fprintf(&b, "  %-22s fix: %s\n", "", p.Fix)
		}
	}
	return b.String()
}

// Lacks names the properties that do not hold.
func (r Report) Lacks() []string {
	var names []string
	for _, p := range r.Properties {
		if !p.Holds {
			names = append(names, p.Name)
		}
	}
	return names
}

func (r *Report) add(name string, holds bool, by, why, fix string) {
	if holds {
		why, fix = "", ""
	} else {
		by = ""
	}
	r.Properties = append(r.Properties, Property{name, holds, by, why, fix})
}

// lookAround prints what can be seen from inside, one fact a line.
const lookAround = `
for ns in user pid mnt net ipc uts cgroup; do echo "$ns $(readlink /proc/self/ns/$ns)"; done
while read -r key value rest; do case $key in CapPrm:|CapBnd:|NoNewPrivs:|Seccomp:) echo "$key $value";; esac; done </proc/self/status
devices=; while read -r name rest; do case $name in *:) devices="$devices$name";; esac; done </proc/net/dev; echo "net-devices $devices"
(: >/usr/.probe) 2>/dev/null && echo "usr-writable yes"
(: >/.probe) 2>/dev/null && echo "root-writable yes"
(: >/workspace/.probe) 2>/dev/null && echo "workspace-writable yes"
`

const (
	probePids = 4
	// forkMany fails when it may not have more than probePids processes.
	forkMany = `i=0; while [ $i -lt 20 ]; do sleep 60 & i=$((i+1)); done; exit 0`
)

// Probe makes a real sandbox and looks from inside what holds: no setting of the
// host is taken for an answer. It takes some tens of milliseconds.
func (p *Provider) Probe(ctx context.Context) Report {
	r := Report{Level: "none"}
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails (crypto/rand)
	box, err := p.Create(ctx, sandbox.Spec{Lease: hex.EncodeToString(id[:]), Profile: "probe"})
	if err != nil {
		r.add("sandbox", false, "", err.Error(), "see the words in parentheses, or run the worker as root on the host")
		return r
	}
	defer func() {
		ctx, cancel := cleanup(ctx, closeTimeout)
		defer cancel()
		_, err := box.Destroy(ctx)
		r.add("destruction", err == nil, "lease init's pidfd, waited for", fmt.Sprint(err), "")
	}()
	end, _, err := probeRun(ctx, box, sandbox.Process{Argv: []string{"/bin/true"}})
	if err == nil && (end.Exit == nil || *end.Exit != (sandbox.Exit{})) {
		err = fmt.Errorf("/bin/true did not exit with 0: %+v, %+v", end.Exit, end.StartError)
	}
	r.add("sandbox", err == nil, "a program that ran in one", fmt.Sprint(err), "")
	if err != nil {
		return r
	}
	r.Level = p.capabilities.Isolation.Level
	var kinds []string
	for _, e := range end.Proof.Evidence {
		kinds = append(kinds, string(e.Kind))
	}
	r.add("process-tree proof", end.Proof.Proven, strings.Join(kinds, ", "), "the end of a run could not be proven", "")
	p.probeInside(ctx, box, &r)
	p.probeLimits(ctx, box, &r)
	return r
}

// probeInside looks at what is visible from inside.
func (p *Provider) probeInside(ctx context.Context, box sandbox.Sandbox, r *Report) {
	env := []string{"PATH=/usr/bin:/bin"}
	end, out, err := probeRun(ctx, box, sandbox.Process{Argv: []string{"/bin/sh", "-c", lookAround}, Env: env})
	if err == nil && end.StartError != nil {
		err = fmt.Errorf("no /bin/sh to look from: %s", end.StartError.Reason)
	}
	if err != nil {
		r.add("look from inside", false, "", err.Error(), "")
		return
	}
	facts := map[string]string{}
	for line := range strings.Lines(out) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			facts[key] = value
		}
	}
	for _, ns := range []struct{ name, file string }{
		{"user", "user"}, {"pid", "pid"}, {"mount", "mnt"}, {"network", "net"}, {"ipc", "ipc"}, {"uts", "uts"}, {"cgroup", "cgroup"},
	} {
		outside, err := os.Readlink("/proc/self/ns/" + ns.file)
		inside := facts[ns.file]
		r.add(ns.name+" namespace", err == nil && inside != "" && inside != outside, inside, "it is the worker's own", "")
	}
	const none = "0000000000000000"
	r.add("no capabilities", facts["CapPrm:"] == none && facts["CapBnd:"] == none, "empty sets, the bounding set too", "CapPrm "+facts["CapPrm:"]+", CapBnd "+facts["CapBnd:"], "")
	r.add("no_new_privs", facts["NoNewPrivs:"] == "1", "prctl(PR_SET_NO_NEW_PRIVS)", "it is not set", "")
	r.add("no network", facts["net-devices"] == "lo:", "an empty network namespace", "devices: "+facts["net-devices"], "")
	r.add("read-only system", facts["usr-writable"] == "" && facts["root-writable"] == "" && facts["workspace-writable"] == "yes",
		"read-only mounts, with a workspace", "a system directory can be written to, or the workspace cannot", "")
	r.add("system-call filter", facts["Seccomp:"] == "2", "seccomp", "no filter is loaded", "")
}

// probeLimits says which limits hold. That of processes is tried.
func (p *Provider) probeLimits(ctx context.Context, box sandbox.Sandbox, r *Report) {
	by := "RLIMIT_NPROC in the lease's user namespace"
	if p.groupPids() {
		by = "control group"
	}
	process := sandbox.Process{Argv: []string{"/bin/sh", "-c", forkMany}, Env: []string{"PATH=/usr/bin:/bin"}}
	process.Limits.Pids = probePids
	end, _, err := probeRun(ctx, box, process)
	holds := err == nil && end.Exit != nil && *end.Exit != (sandbox.Exit{})
	r.add("pids limit", holds, by, "a job could have more processes than its limit", "")
	enforces, why := p.capabilities.Enforces, p.capabilities.Unenforced
	r.add("memory limit", enforces.Memory, "control group", why[limitMemory], howCgroup)
	r.add("cpu limit", enforces.CPU, "control group's cpu time", why[limitCPU], howCgroup)
	r.add("cpu share", enforces.CPUShare, "control group", why[limitCPUShare], howCgroup)
	r.add("disk and inode limits", true, "a sized tmpfs for the workspace, /tmp and /dev/shm each", "", "")
	r.add("open files limit", true, "RLIMIT_NOFILE", "", "")
}

// probeRun runs a process to its proven end and resets the sandbox.
func probeRun(ctx context.Context, box sandbox.Sandbox, process sandbox.Process) (sandbox.End, string, error) {
	out := &probeOutput{}
	run, err := box.Prepare(ctx, process, out)
	if err != nil {
		return sandbox.End{}, "", err
	}
	if err := run.Open(ctx); err != nil {
		return sandbox.End{}, "", err
	}
	end, err := run.Wait(ctx)
	if err != nil {
		return end, "", err
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	return end, out.text.String(), box.Reset(ctx)
}

// probeOutput keeps the standard output of a probe.
type probeOutput struct {
	mu   sync.Mutex
	text strings.Builder
}

// maxProbeOutput is far more than lookAround prints.
const maxProbeOutput = 64 << 10

func (o *probeOutput) Write(stream sandbox.Stream, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if stream != sandbox.Stdout {
		return nil
	}
	if o.text.Len()+len(p) > maxProbeOutput {
		return errors.New("a probe prints too much")
	}
	o.text.Write(p)
	return nil
}
