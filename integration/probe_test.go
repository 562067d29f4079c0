package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// metric reads a service's metric, the sum over its labels; -1 where there is none.
func (w *service) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, body := w.get("/metrics")
	sum, found := 0.0, false
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		words := strings.Fields(rest)
		n, err := strconv.ParseFloat(words[len(words)-1], 64)
		require.NoError(t, err)
		sum, found = sum+n, true
	}
	if !found {
		return -1
	}
	return sum
}

// descriptors is how many files a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(list)
}

// childrenOf lists a process's children.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	var pids []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // that thread has ended
		}
		for word := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(word)
			require.NoError(t, err)
			pids = append(pids, child)
		}
	}
	return pids
}

// inLease says whether a process is in the control group, or has the mounts, of a
// lease.
func inLease(pid int, lease string) bool {
	for _, file := range []string{"cgroup", "mountinfo", "cmdline"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
		if err == nil && strings.Contains(string(b), lease) {
			return true
		}
	}
	return false
}

// marked counts the processes of this host whose command line has a word.
func marked(t *testing.T, word string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	n := 0
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), word) {
			n++
		}
	}
	return n
}
