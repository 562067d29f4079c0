package local

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// surroundings are settings of the host, and of a container around the worker, that
// are known to stand in the way of sandboxes. They only explain what a real try has
// shown: no property is ever said to hold, or not, because of them.
type surroundings struct {
	root bool
	// userNamespaces is user.max_user_namespaces; -1 where it cannot be read.
	userNamespaces int64
	// apparmor: kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu 23.10 and
	// newer); unprivileged: kernel.unprivileged_userns_clone is 0 (Debian's).
	apparmor, unprivileged bool
	// filtered says that the worker itself runs under a system-call filter.
	filtered bool
	// masked are places in /proc over which something is mounted.
	masked []string
	// container says that this is the inside of one.
	container bool
}

// lookAbout reads the surroundings from the file system at root.
func lookAbout(root string) surroundings {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	s := surroundings{
		root: os.Geteuid() == 0, userNamespaces: -1,
		apparmor:     read("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1",
		unprivileged: read("proc/sys/kernel/unprivileged_userns_clone") == "0",
	}
	if n, err := strconv.ParseInt(read("proc/sys/user/max_user_namespaces"), 10, 64); err == nil {
		s.userNamespaces = n
	}
	for line := range strings.Lines(read("proc/self/status")) {
		if mode, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			s.filtered = strings.TrimSpace(mode) == "2"
		}
	}
	for line := range strings.Lines(read("proc/self/mountinfo")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], "/proc/") && f[4] != "/proc/sys/fs/binfmt_misc" {
			s.masked = append(s.masked, f[4])
		}
	}
	for _, mark := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := os.Stat(filepath.Join(root, mark)); err == nil {
			s.container = true
		}
	}
	return s
}

// fixes are ways out where no sandbox could be made, those first that follow from
// what was seen.
func (s surroundings) fixes() []string {
	var fixes []string
	add := func(seen bool, fix string) {
		if seen {
			fixes = append(fixes, fix)
		}
	}
	add(s.userNamespaces == 0, "user.max_user_namespaces is 0 here: sysctl -w user.max_user_namespaces=15000 (on the host, where this is a container)")
	add(s.apparmor && !s.root, "kernel.apparmor_restrict_unprivileged_userns is 1 here: give the worker's binary an AppArmor profile with \"userns,\", or run it as root")
	add(s.unprivileged && !s.root, "kernel.unprivileged_userns_clone is 0 here: sysctl -w kernel.unprivileged_userns_clone=1, or run the worker as root")
	add(len(s.masked) > 0, "/proc is partly masked here ("+strings.Join(s.masked[:min(len(s.masked), 3)], ", ")+
		"), as in a container: run it with --security-opt systempaths=unconfined, or run the worker on the host")
	add(s.filtered, "the worker itself runs under a system-call filter, as in a container: run that with a seccomp profile that allows clone and unshare with namespaces, mount, pivot_root and sethostname (--security-opt seccomp=unconfined allows all)")
	add(s.container && len(fixes) == 0, "this is a container: run it with --privileged, or run the worker on the host")
	add(!s.root && !s.container, "run the worker as root")
	return fixes
}

// kernel is the kernel's name and release.
func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown kernel"
	}
	return unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:]) + " on " + unix.ByteSliceToString(name.Machine[:])
}
