package local

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const (
	// defaultPath is where programs are looked up without PATH (execvp(3)).
	defaultPath = "/bin:/usr/bin"
	// maxCandidates bounds the look-up.
	maxCandidates = 64
)

// checkProcess refuses what cannot be passed to the kernel at all. How long a
// single argument may be is the kernel's to say.
func checkProcess(process sandbox.Process) error {
	if len(process.Argv) == 0 || process.Argv[0] == "" {
		return errors.New("argv has no program")
	}
	for _, entry := range process.Env {
		if strings.Index(entry, "=") <= 0 {
			return fmt.Errorf("env entry %q is not NAME=value", entry)
		}
	}
	size := len(process.Cwd)
	for _, list := range [][]string{process.Argv, process.Env, {process.Cwd}} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return errors.New("argv, env or cwd has a NUL byte")
			}
			size += len(s) + 16
		}
	}
	if size > leaseinit.MaxJob {
		return fmt.Errorf("argv and env are %d bytes, more than the %d that can be passed", size, leaseinit.MaxJob)
	}
	return nil
}

// candidates are the paths to try for a program, as execvp(3) does it: a name with
// a slash is a path, others are looked up in PATH, where an empty entry is the
// working directory.
func candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	list := defaultPath
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			list = value
			break
		}
	}
	var paths []string
	for dir := range strings.SplitSeq(list, ":") {
		if len(paths) == maxCandidates {
			break
		}
		if dir == "" {
			dir = "."
		}
		candidate := path.Join(dir, name)
		if !strings.Contains(candidate, "/") {
			candidate = "./" + candidate
		}
		paths = append(paths, candidate)
	}
	return paths
}
