package seccomp_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	source "github.com/moby/profiles/seccomp"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/seccomp"
)

// arches are all processors that there is a list for, by their names in Go.
func arches() map[string]seccomp.Arch {
	return map[string]seccomp.Arch{"amd64": seccomp.AMD64(), "arm64": seccomp.ARM64()}
}

// refused is what the source list allows and ours does not.
var refused = map[string]string{
	"ptrace":            "a program has no business in another; and it is an old road into the kernel",
	"process_vm_readv":  "as ptrace",
	"process_vm_writev": "as ptrace",
	"process_mrelease":  "as ptrace",
	"name_to_handle_at": "half of a way around directories that are not shown",
	"memfd_secret":      "memory that nobody can look at, not even to count it",
	"listmount":         "tells about mounts; new, so programs do without",
	"statmount":         "as listmount",
	"fanotify_mark":     "of no use without fanotify_init, which is refused",
	"adjtimex":          "the clock is not a job's; reading it so is rare",
	"clock_adjtime":     "as adjtimex",
	"modify_ldt":        "for 16- and 32-bit code; many holes in the past",
	"get_thread_area":   "for 32-bit code",
	"set_thread_area":   "for 32-bit code",
	"epoll_ctl_old":     "no kernel has it",
	"epoll_wait_old":    "no kernel has it",
	"sync":              "answered with success: what a job writes is in memory",
	"syncfs":            "as sync",
	"io_setup":          "one job could reserve all asynchronous requests of the host",
	"io_destroy":        "of no use without io_setup",
	"io_submit":         "as io_destroy",
	"io_cancel":         "as io_destroy",
	"io_getevents":      "as io_destroy",
	"io_pgetevents":     "as io_destroy",
	"uretprobe":         "called by the kernel's own probes, which nobody sets inside",
}

// byArgument is what ours decides by an argument; the source list does so, too, or
// allows it whole.
var byArgument = []string{
	"ioctl", "socket", "socketpair", "setsockopt", "personality", "clone", "mmap", "memfd_create", "shmget", "prlimit64", "setrlimit", "fcntl",
}

// sourceList is what the source list allows a container without any capability, with
// whatever arguments.
func sourceList(t *testing.T, arch string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, rule := range source.DefaultProfile().Syscalls {
		var includes, excludes source.Filter
		if rule.Includes != nil {
			includes = *rule.Includes
		}
		if rule.Excludes != nil {
			excludes = *rule.Excludes
		}
		switch {
		case rule.Action != "SCMP_ACT_ALLOW", len(includes.Caps) > 0:
		case len(includes.Arches) > 0 && !slices.Contains(includes.Arches, arch):
		case slices.Contains(excludes.Arches, arch):
		default:
			for _, name := range rule.Names {
				names[name] = true
			}
		}
	}
	return names
}

// TestListIsTheSourceList compares with moby's default profile: ours allows nothing
// that it does not, and each call that ours refuses has a reason.
func TestListIsTheSourceList(t *testing.T) {
	explained := map[string]bool{}
	for name, arch := range arches() {
		theirs := sourceList(t, name)
		require.Greater(t, len(theirs), 300)
		ours := map[string]bool{}
		for _, call := range append(seccomp.Allowed(), byArgument...) {
			if _, has := arch.Numbers()[call]; has {
				ours[call] = true
			}
		}
		for call := range ours {
			require.True(t, theirs[call], "%s: the source list does not allow %s", name, call)
			require.Empty(t, refused[call], call)
		}
		for call := range theirs {
			if _, has := arch.Numbers()[call]; has && !ours[call] {
				require.NotEmpty(t, refused[call], "%s: %s is refused without a reason", name, call)
				explained[call] = true
			}
		}
		t.Logf("%s: %d calls allowed, %d of %d", name, len(ours), len(ours), len(arch.Numbers()))
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(refused)), slices.Collect(maps.Keys(explained)), "a reason without a call")
}

// TestListIsWellFormed finds misspelt and doubled names.
func TestListIsWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, call := range slices.Concat(seccomp.Allowed(), seccomp.Missing(), byArgument) {
		require.False(t, seen[call], "%s is named twice", call)
		seen[call] = true
		known := false
		for _, arch := range arches() {
			_, has := arch.Numbers()[call]
			known = known || has
		}
		require.True(t, known, "no processor has %s", call)
	}
}

// TestNumbers compares the numbers with those of golang.org/x/sys.
func TestNumbers(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	require.NoError(t, err)
	constant := regexp.MustCompile(`(?m)^\s*SYS_(\w+)\s*=\s*(\d+)$`)
	for name, arch := range arches() {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), fmt.Sprintf("zsysnum_linux_%s.go", name)))
		require.NoError(t, err)
		want := map[string]uint32{}
		for _, found := range constant.FindAllStringSubmatch(string(text), -1) {
			number, err := strconv.ParseUint(found[2], 10, 32)
			require.NoError(t, err)
			want[strings.ToLower(found[1])] = uint32(number)
		}
		require.Equal(t, want, arch.Numbers(), "%s: numbers.go is not up to date", name)
	}
}
