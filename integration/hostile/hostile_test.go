package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
)

const (
	// leases are in use at the same time.
	leases = 6
	// soakEnv asks for the long form, rounds times over.
	soakEnv, rounds = "SALLYPORT_SOAK", 10
	// imageEnv is where a test that runs itself as another user finds the root that
	// is already made; empty where nothing was compiled.
	imageEnv = "SALLYPORT_HOSTILE_IMAGE"
	nobody   = 65534
)

// signalRows have a program end by each signal that ends one.
func signalRows() []row {
	ignored := []int{17, 18, 19, 20, 21, 22, 23, 28} // by default: not ended by these
	var all []row
	for s := 1; s <= 64; s++ {
		if s != 32 && s != 33 && !slices.Contains(ignored, s) {
			all = append(all, row{name: "99_signal_exit", args: []string{strconv.Itoa(s)}, want: does(signaled), signal: s})
		}
	}
	return all
}

// TestEveryProgramHasARow keeps the table and the directory the same.
func TestEveryProgramHasARow(t *testing.T) {
	var inTable []string
	for _, r := range rows() {
		inTable = append(inTable, r.name)
	}
	slices.Sort(inTable)
	have := append(names(t, ".c"), names(t, ".sh")...)
	slices.Sort(have)
	require.Equal(t, have, slices.Compact(inTable))
}

// TestHostile runs everything as root, with the host's control groups, with a root
// that jobs only read and with one that they may write to, and as an ordinary user
// without control groups. Where an ordinary user tests, that is all.
func TestHostile(t *testing.T) {
	if dir, again := os.LookupEnv(imageEnv); again {
		_, err := os.Stat(filepath.Join(dir, inside))
		newHost(t, dir, err == nil, false).test(t)
		return
	}
	dir, compiled := image(t)
	if !compiled {
		t.Logf("not tested, for want of a C compiler: %s", strings.Join(names(t, ".c"), ", "))
	}
	if os.Geteuid() != 0 {
		newHost(t, dir, compiled, false).test(t)
		return
	}
	t.Run("cgroup", func(t *testing.T) { newHost(t, dir, compiled, true).test(t) })
	t.Run("overlay", func(t *testing.T) {
		h := newHost(t, local.OverlayPrefix+dir, compiled, true)
		box, err := h.p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: h.root})
		if err != nil {
			t.Logf("not tested, for want of overlays in user namespaces: %v", err)
			return
		}
		requireGone(t, box)
		h.all(t)
	})
	t.Run("ordinary user", func(t *testing.T) { asOrdinaryUser(t, dir) })
}

// asOrdinaryUser runs this test as another user.
func asOrdinaryUser(t *testing.T, dir string) {
	tmp, err := os.MkdirTemp("", "sallyport-hostile-") //nolint:usetesting // TempDir stands in a directory that is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(tmp)) })
	require.NoError(t, os.Chown(tmp, nobody, nobody))
	tests := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestHostile$", "-test.v")
	tests.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "HOME=" + tmp, imageEnv + "=" + dir, soakEnv + "=" + os.Getenv(soakEnv),
	}
	tests.Dir = "/"
	tests.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := tests.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestHostile")
	t.Logf("%s", out)
}

// host is where the jobs of one test run.
type host struct {
	p        *local.Provider
	root     string
	compiled bool
	groups   bool
	before   int // descriptors of this process
}

func newHost(t *testing.T, root string, compiled, groups bool) *host {
	t.Helper()
	// The runtime's poller has descriptors of its own from now on.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, errors.Join(r.Close(), w.Close()))
	h := &host{root: root, compiled: compiled, groups: groups, before: descriptors(t)}
	config := local.Config{
		StateDir: t.TempDir(), Host: "testhost", Instance: "hostile" + newLease()[:8], Log: zerolog.New(zerolog.NewTestWriter(t)),
	}
	var group *cgroup.Group
	if groups {
		var report cgroup.Report
		group, report = cgroup.Open(cgroup.Config{Instance: config.Instance})
		require.NotNil(t, group, "%s", report)
		config.Cgroup = group
	}
	h.p, err = local.New(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, h.p.Close())
		if groups {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			left, err := group.Leases()
			require.NoError(t, err)
			require.Empty(t, left)
			require.NoError(t, group.Close(ctx))
		}
		require.Empty(t, leaseInits(t, ""))
		require.Eventually(t, func() bool { return descriptors(t) <= h.before }, patience, 10*time.Millisecond, "more than %d descriptors", h.before)
		// Others on this host may mount what they like.
		data, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		require.NotContains(t, string(data), config.StateDir)
		require.NotContains(t, string(data), strings.TrimPrefix(root, local.OverlayPrefix))
	})
	return h
}

func (h *host) test(t *testing.T) {
	h.all(t)
	h.neighbours(t)
}

// all runs every row that applies, in a random order, in several leases.
func (h *host) all(t *testing.T) {
	var todo []row
	var without []string
	for _, r := range rows() {
		switch {
		case r.groups && !h.groups:
			without = append(without, r.name)
		case h.compiled || strings.Contains(r.name, "_sh_"):
			todo = append(todo, r)
		}
	}
	if len(without) > 0 {
		t.Logf("not tested, for want of control groups: %s", strings.Join(without, ", "))
	}
	times := 1
	if os.Getenv(soakEnv) != "" {
		times = rounds
	}
	todo = slices.Repeat(todo, times)
	rand.Shuffle(len(todo), func(i, j int) { todo[i], todo[j] = todo[j], todo[i] })
	next := make(chan row, len(todo))
	for _, r := range todo {
		next <- r
	}
	close(next)
	t.Run("leases", func(t *testing.T) {
		for i := range leases {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				l := h.lease(t)
				for r := range next {
					l.try(t, r)
				}
				l.end(t)
			})
		}
	})
}

// lease is one that is used again and again.
type lease struct {
	host   *host
	box    sandbox.Sandbox
	pid    string
	before initState
	last   string
}

func (h *host) lease(t testing.TB) *lease {
	t.Helper()
	box, err := h.p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Profile: "hostile", Root: h.root, Limits: limits(h.groups)})
	require.NoError(t, err)
	l := &lease{host: h, box: box, pid: box.Handle().Detail["pid"]}
	// What lease init keeps from its first job on is there from then on.
	run(t, box, h.groups, job{argv: []string{"/bin/true"}, wall: patience})
	l.before = l.state(t)
	return l
}

// try runs a row, and looks at what it left.
func (l *lease) try(t *testing.T, r row) {
	t.Helper()
	name := strings.Join(append([]string{r.name}, r.args...), " ")
	j := job{argv: append([]string{inside, r.name}, r.args...), wall: r.wall, grace: r.grace}
	if strings.Contains(r.name, "_sh_") {
		j.argv = []string{scripts + r.name + ".sh"}
	}
	if r.stdin != nil {
		j.stdin = r.stdin()
	}
	if j.wall == 0 {
		j.wall = patience / 2 // far more than a program takes that ends by itself
	}
	if j.grace == 0 {
		j.grace = 300 * time.Millisecond
	}
	ok := t.Run(name, func(t *testing.T) {
		if l.last != "" {
			t.Logf("after %s", l.last)
		}
		e := run(t, l.box, l.host.groups, j)
		t.Logf("%s in %v: exit %+v, leftover %v, %d killed for memory", e.outcome(), e.took, e.Exit, e.Leftover, e.OOM)
		verify(t, r, e, strings.HasPrefix(l.host.root, local.OverlayPrefix))
		l.clean(t)
	})
	l.last = name
	if !ok {
		// Its lease is in doubt: the others get a new one.
		requireGone(t, l.box)
		*l = *l.host.lease(t)
	}
}

// verify compares an end with what is expected.
func verify(t testing.TB, r row, e ended, ownRoot bool) {
	t.Helper()
	want := r.want
	if len(want) == 0 {
		want = does(exited)
	}
	about := fmt.Sprintf("exit %+v start %+v\nstdout: %.2000s\nstderr: %.2000s", e.Exit, e.StartError, e.stdout, e.stderr)
	require.Contains(t, want, e.outcome(), about)
	if r.writesRoot && ownRoot {
		return
	}
	require.NotContains(t, string(e.stdout), "ALLOWED")
	switch e.outcome() {
	case exited:
		require.Equal(t, r.code, e.Exit.Code, about)
		require.True(t, r.perhaps || r.leftover == e.Leftover, about)
	case signaled:
		require.Equal(t, r.signal, e.Exit.Signal, about)
		require.Zero(t, e.OOM)
	case wall, output, oom, notStarted, unknown:
	}
	require.Equal(t, sandbox.StartedYes, e.Started)
	if r.check != nil {
		r.check(t, e)
	}
}

// clean wants the lease to be as it was: by the next job's eyes and by ours.
func (l *lease) clean(t testing.TB) {
	t.Helper()
	require.Equal(t, l.before, l.state(t))
	argv := []string{"/bin/sh", "-c", `[ $$ = 2 ] && for f in /proc/[0-9]* /workspace/* /tmp/* /dev/shm/*; do
		case $f in /proc/1|/proc/2) ;; *) [ ! -e "$f" ] || exit 1 ;; esac; done`}
	if l.host.compiled {
		argv = []string{inside, "49_previous_job"}
	}
	next := run(t, l.box, l.host.groups, job{argv: argv, wall: patience})
	require.NotNil(t, next.Exit)
	require.Equal(t, sandbox.Exit{}, *next.Exit, "%s after %v, %d killed for memory, peak %d, %v\nstdout: %s",
		next.outcome(), next.took, next.OOM, next.Usage.MemoryPeakBytes, next.Proof.Evidence, next.stdout)
}

func (l *lease) end(t testing.TB) {
	t.Helper()
	requireGone(t, l.box)
}

func requireGone(t testing.TB, box sandbox.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	proof, err := box.Destroy(ctx)
	require.NoError(t, err)
	require.True(t, proof.Proven)
}

// initState is what a lease init has when no job is there.
type initState struct {
	descriptors, mounts, threadsBelow int
}

func (l *lease) state(t testing.TB) initState {
	t.Helper()
	fds, err := os.ReadDir("/proc/" + l.pid + "/fd")
	if os.Geteuid() != 0 {
		fds, err = nil, nil // not to be seen by an ordinary user
	}
	require.NoError(t, err)
	below := 0
	tasks, err := filepath.Glob("/proc/" + l.pid + "/task/*/children")
	require.NoError(t, err)
	for _, file := range tasks {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		below += len(strings.Fields(string(data)))
	}
	s := initState{descriptors: len(fds), threadsBelow: below}
	if data, err := os.ReadFile("/proc/" + l.pid + "/mountinfo"); err == nil {
		s.mounts = strings.Count(string(data), "\n")
	}
	return s
}

// descriptors counts those of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(fds)
}

// leaseInits are the living lease inits of this process.
func leaseInits(t testing.TB, prefix string) []string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, line := range lines {
		pid := strings.Split(line, "/")[2]
		data, err := os.ReadFile(line)
		if err != nil || !strings.HasPrefix(string(data), leaseinit.Marker+"\x00"+prefix) {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && strings.Contains(string(stat), fmt.Sprintf(" %d ", os.Getpid())) {
			found = append(found, pid)
		}
	}
	return found
}

func newLease() string {
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) //nolint:gosec // unique is enough here
}
