package cgroup

import (
	"fmt"
	"strings"
)

// Report is what Open found, for a person and for the sandbox's isolation block.
type Report struct {
	// Layout is Host.Layout.
	Layout string
	// Dirs are this instance's groups, the v2 one first; empty when there are none.
	Dirs []string
	// Memory, Pids and CPU say whether the limit is enforced.
	Memory, Pids, CPU Finding
	// Proof says whether a job's leaf can be seen empty.
	Proof Finding
	// Moved is the leaf into which the worker moved itself, because a v2 group
	// with processes of its own cannot hand controllers down (cgroups(7), "no
	// internal processes"); empty when it stayed.
	Moved string
	// Weaker lists what works less well than it could, one sentence each.
	Weaker []string
}

// Finding is about one thing that control groups can do here.
type Finding struct {
	OK bool
	// By names the file or the files that do it.
	By string
	// Why and Fix are set where OK is false.
	Why string
	Fix []string
}

func (f Finding) String() string {
	if f.OK {
		return "by " + f.By
	}
	return "no: " + f.Why
}

// String is the report in a few lines.
func (r Report) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "control groups: %s\n", r.Layout)
	for _, item := range []struct {
		name    string
		finding Finding
	}{{"memory", r.Memory}, {"pids", r.Pids}, {"cpu", r.CPU}, {"proof", r.Proof}} {
		fmt.Fprintf(&out, "  %-7s %s\n", item.name, item.finding)
		for _, fix := range item.finding.Fix {
			fmt.Fprintf(&out, "          fix: %s\n", fix)
		}
	}
	if r.Moved != "" {
		fmt.Fprintf(&out, "  moved   the worker into %s\n", r.Moved)
	}
	for _, sentence := range r.Weaker {
		fmt.Fprintf(&out, "  weaker  %s\n", sentence)
	}
	return out.String()
}

// nothing is a report in which why and fix hold for everything.
func nothing(layout, why string, fix ...string) Report {
	finding := Finding{Why: why, Fix: fix}
	return Report{Layout: layout, Memory: finding, Pids: finding, CPU: finding, Proof: finding}
}
