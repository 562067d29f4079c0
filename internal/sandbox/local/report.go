package local

import (
	"fmt"
	"strings"
)

// Report is what a probe found on this host.
type Report struct {
	// Level is Isolation.Level: "namespaces+cgroup" or "namespaces"; "none" where no
	// sandbox could be made.
	Level string `json:"level"`
	// Kernel is the kernel's name and release, User "root" or "an ordinary user".
	Kernel     string     `json:"kernel"`
	User       string     `json:"user"`
	Properties []Property `json:"properties"`
}

// Property is one thing that a sandbox should have.
type Property struct {
	// Name is one of the Property constants.
	Name  string `json:"name"`
	Holds bool   `json:"holds"`
	// By says what enforces it. Why and Fix are set where it does not hold: why,
	// and ways out, any of which helps.
	By  string   `json:"by,omitempty"`
	Why string   `json:"why,omitempty"`
	Fix []string `json:"fix,omitempty"`
}

// The properties, in the order of a report. A report of a host on which no sandbox
// can be made has the first alone.
const (
	PropertySandbox      = "sandbox"
	PropertyProof        = "process-tree proof"
	PropertyCgroupProof  = "control-group proof"
	PropertyInside       = "look from inside"
	PropertyUser         = "user namespace"
	PropertyPid          = "pid namespace"
	PropertyMount        = "mount namespace"
	PropertyNetwork      = "network namespace"
	PropertyIPC          = "ipc namespace"
	PropertyUTS          = "uts namespace"
	PropertyCgroup       = "cgroup namespace"
	PropertyNesting      = "no further namespaces"
	PropertyCapabilities = "no capabilities"
	PropertyNoNewPrivs   = "no_new_privs"
	PropertyFilter       = "system-call filter"
	PropertyNoNetwork    = "no network"
	PropertyReadOnly     = "read-only system"
	PropertyUIDs         = "uids of its own"
	PropertyFork         = "fork"
	PropertyPids         = "pids limit"
	PropertyMemory       = "memory limit"
	PropertyCPUShare     = "cpu share limit"
	PropertyCPUTime      = "cpu time limit"
	PropertyDisk         = "disk limit"
	PropertyInodes       = "inode limit"
	PropertyOpenFiles    = "open files limit"
	PropertyDestruction  = "destruction"
)

// String is one line for each property.
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "isolation level: %s (%s, running as %s)\n", r.Level, r.Kernel, r.User)
	for _, p := range r.Properties {
		if p.Holds {
			fmt.Fprintf(&b, "  %-22s enforced by %s\n", p.Name, p.By)
			continue
		}
		fmt.Fprintf(&b, "  %-22s not enforced: %s\n", p.Name, p.Why)
		for _, fix := range p.Fix {
			fmt.Fprintf(&b, "  %-22s fix: %s\n", "", fix)
		}
	}
	return b.String()
}

// Property is the property of that name; one that was not looked at does not hold.
func (r Report) Property(name string) Property {
	for _, p := range r.Properties {
		if p.Name == name {
			return p
		}
	}
	return Property{Name: name, Why: "no sandbox could be made to look from"}
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

// holds notes a property that holds.
func (r *Report) holds(name, by string) {
	r.Properties = append(r.Properties, Property{Name: name, Holds: true, By: by})
}

// lacks notes a property that does not.
func (r *Report) lacks(name, why string, fix ...string) {
	r.Properties = append(r.Properties, Property{Name: name, Why: why, Fix: fix})
}

// note notes a property that holds, or not for the reason why.
func (r *Report) note(name string, holds bool, by, why string, fix ...string) {
	if holds {
		r.holds(name, by)
		return
	}
	r.lacks(name, why, fix...)
}

// tried notes a property that was tried: by, unless err says what went wrong.
func (r *Report) tried(name, by string, err error) {
	if err != nil {
		r.lacks(name, "tried: "+err.Error())
		return
	}
	r.holds(name, by)
}
