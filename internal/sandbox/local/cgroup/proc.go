package cgroup

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Membership is one line of /proc/<pid>/cgroup: the group of a process in one
// hierarchy (cgroups(7)).
type Membership struct {
	// Hierarchy is 0 for the v2 tree.
	Hierarchy int
	// Controllers is empty for the v2 tree; a named v1 hierarchy without
	// controllers has one entry "name=…".
	Controllers []string
	// Path starts with a slash and is relative to the process's cgroup
	// namespace; it may begin with "/..", when the group is outside of it.
	Path string
	// Deleted says that the group was removed while the process was in it.
	Deleted bool
}

// ParseMemberships reads /proc/<pid>/cgroup.
func ParseMemberships(data []byte) ([]Membership, error) {
	var all []Membership
	for line := range bytes.Lines(data) {
		text := strings.TrimSuffix(string(line), "\n")
		if text == "" {
			continue
		}
		id, rest, ok := strings.Cut(text, ":")
		controllers, path, ok2 := strings.Cut(rest, ":")
		hierarchy, err := strconv.Atoi(id)
		if !ok || !ok2 || err != nil || hierarchy < 0 || !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("line %q is not hierarchy:controllers:/path", text)
		}
		m := Membership{Hierarchy: hierarchy}
		if controllers != "" {
			m.Controllers = strings.Split(controllers, ",")
		}
		m.Path, m.Deleted = strings.CutSuffix(path, " (deleted)")
		all = append(all, m)
	}
	return all, nil
}

// Mount is what matters here of one line of /proc/<pid>/mountinfo
// (proc_pid_mountinfo(5)).
type Mount struct {
	// Root is the directory of the file system that is mounted.
	Root string
	// Point is where, as this process sees it.
	Point string
	// Type is the file system's type: cgroup2, cgroup, …
	Type string
	// ReadOnly says that the mount or the file system is read-only.
	ReadOnly bool
	// Options are those of the file system; for a v1 hierarchy they name its
	// controllers.
	Options []string
}

// ParseMountinfo reads /proc/<pid>/mountinfo and returns the mounts of control
// groups only, in the order in which they were mounted.
func ParseMountinfo(data []byte) ([]Mount, error) {
	var all []Mount
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		front, back, ok := strings.Cut(text, " - ")
		fields, tail := strings.Fields(front), strings.Fields(back)
		if !ok || len(fields) < 6 || len(tail) < 2 {
			return nil, fmt.Errorf("line %q has too few fields", text)
		}
		if tail[0] != "cgroup" && tail[0] != "cgroup2" {
			continue
		}
		m := Mount{Root: unescape(fields[3]), Point: unescape(fields[4]), Type: tail[0]}
		// The source may be empty, and then the options are the second word.
		m.Options = strings.Split(tail[len(tail)-1], ",")
		m.ReadOnly = slices.Contains(strings.Split(fields[5], ","), "ro") || slices.Contains(m.Options, "ro")
		all = append(all, m)
	}
	return all, nil
}

// unescape undoes mountinfo's \ooo for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if code, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// keyed finds the number behind key in a "key number" file such as cpu.stat or
// memory.events.
func keyed(data []byte, key string) (int64, bool) {
	for line := range bytes.Lines(data) {
		value, ok := bytes.CutPrefix(line, []byte(key+" "))
		if ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}

// number reads a file with one number.
func number(data []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
	return n, err == nil && n >= 0
}
