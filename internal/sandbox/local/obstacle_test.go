package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// obstacleEnv makes this program a probe on a host with the obstacle that it names.
const obstacleEnv = "SALLYPORT_TEST_OBSTACLE"

// asProbe puts an obstacle in its own way, as a container or a careful
// administrator would, and prints what a probe says then. It never returns.
func asProbe(obstacle string) {
	report, err := probeWith(obstacle)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func probeWith(obstacle string) (report local.Report, err error) {
	if err := obstacles()[obstacle](); err != nil {
		return report, fmt.Errorf("%s: %w", obstacle, err)
	}
	dir, err := os.MkdirTemp("", "sallyport-test-")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	group, groups := cgroup.Open(cgroup.Config{Instance: "obstacle-" + newLease()[:8]})
	p, err := local.New(local.Config{StateDir: dir, Host: "testhost", Instance: "test", Cgroup: group, Log: zerolog.Nop()})
	if err != nil {
		return report, err
	}
	report = p.Probe(context.Background(), groups, "")
	err = p.Close()
	if group != nil {
		err = errors.Join(err, group.Close(context.Background()))
	}
	return report, err
}

func obstacles() map[string]func() error {
	return map[string]func() error{
		"none": func() error { return nil },
		// As docker masks it.
		"masked proc": func() error {
			return unix.Mount("tmpfs", "/proc/bus", "tmpfs", unix.MS_RDONLY, "")
		},
		"no user namespaces": func() error {
			return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0o600)
		},
		// As docker's own filter does it.
		"filtered clone": func() error {
			return filterClone()
		},
		"read-only groups": func() error {
			mounts, err := filepath.Glob("/sys/fs/cgroup/*")
			for _, dir := range append(mounts, "/sys/fs/cgroup") {
				attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
				// What is no mount point is part of one that is.
				if e := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &attr); e != nil && e != unix.EINVAL {
					err = errors.Join(err, e)
				}
			}
			return err
		},
	}
}

// filterClone loads a filter for all threads that refuses new user namespaces.
func filterClone() error {
	stmt := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	jump := func(code uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k}
	}
	filter := []unix.SockFilter{
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0),
		jump(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, unix.SYS_CLONE3, 3, 0),
		jump(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, unix.SYS_CLONE, 0, 4),
		stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 16),
		jump(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, unix.CLONE_NEWUSER, 1, 2),
		stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(unix.ENOSYS)),
		stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM)),
		stmt(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW),
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return e
	}
	return nil
}

// TestProbeMeetsObstacles: what stands in the way of sandboxes is said, with what
// to do about it.
func TestProbeMeetsObstacles(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("not tested: to put obstacles in the way takes root")
		return
	}
	probe := func(t *testing.T, obstacle string, flags uintptr) local.Report {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = []string{obstacleEnv + "=" + obstacle, "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Unshareflags: syscall.CLONE_NEWNS}
		if flags&syscall.CLONE_NEWUSER != 0 { // a namespace whose settings are its own
			ids := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
			cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
		}
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err)
		var report local.Report
		require.NoError(t, json.Unmarshal(out, &report), "%s", out)
		t.Log(report)
		return report
	}
	for _, tt := range []struct {
		obstacle string
		flags    uintptr
		why, fix string
	}{
		{"masked proc", 0, "mount /proc (/proc): operation not permitted", "/proc is partly masked here (/proc/bus), as in a container: run it with --security-opt systempaths=unconfined"},
		{"no user namespaces", syscall.CLONE_NEWUSER, "start lease init: ", "user.max_user_namespaces is 0 here: sysctl -w"},
		{"filtered clone", 0, "start lease init: ", "the worker itself runs under a system-call filter, as in a container"},
	} {
		t.Run(tt.obstacle, func(t *testing.T) {
			t.Parallel()
			report := probe(t, tt.obstacle, tt.flags)
			require.Equal(t, "none", report.Level)
			require.Equal(t, []string{local.PropertySandbox}, report.Lacks())
			p := report.Property(local.PropertySandbox)
			require.Contains(t, p.Why, tt.why)
			require.NotEmpty(t, p.Fix)
			require.Contains(t, p.Fix[0], tt.fix)
		})
	}
	t.Run("read-only groups", func(t *testing.T) {
		t.Parallel()
		report := probe(t, "read-only groups", 0)
		require.Equal(t, "namespaces", report.Level)
		require.Equal(t, []string{local.PropertyCgroupProof, local.PropertyMemory, local.PropertyCPUShare, local.PropertyCPUTime}, report.Lacks())
		p := report.Property(local.PropertyMemory)
		require.Contains(t, p.Why, "read-only")
		require.Contains(t, p.Fix[0], "mounted read-write")
		require.True(t, report.Property(local.PropertyPids).Holds, "RLIMIT_NPROC does it")
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		report := probe(t, "none", 0)
		memory := report.Property(local.PropertyMemory)
		switch {
		case strings.Contains(memory.Why, "other processes are in the worker's own group"):
			// The tests' own process, in a version 2 group: it keeps what the tree
			// itself counts, and RLIMIT_NPROC.
			require.Equal(t, []string{local.PropertyMemory, local.PropertyCPUShare}, report.Lacks())
			require.Contains(t, report.Property(local.PropertyPids).By, "RLIMIT_NPROC")
			require.Contains(t, memory.Fix[0], "start the worker alone in its control group")
		case hasGroups(t):
			require.Empty(t, report.Lacks())
			require.Contains(t, memory.By, "/job/memory.")
		}
	})
}
