package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/leaseinit"
	"github.com/sallyport/sallyport/internal/wire"
)

// survivalTime is how long anything of a killed worker may live, where nothing else
// wants the processors.
const survivalTime = 100 * time.Millisecond

// morgue counts what a stack's dead workers have left.
type morgue struct {
	s      *stack
	state  string // the workers' common state directory
	marker string // in the argv of all jobs
	took   []time.Duration
	late   []string
}

func (s *stack) morgue(state string) *morgue {
	return &morgue{s: s, state: state, marker: fmt.Sprintf("1000.%09d", rand.IntN(1_000_000_000))}
}

// leases are the leases that the state directory or the instances' control groups
// name.
func (m *morgue) leases() []string {
	m.s.t.Helper()
	seen := map[string]bool{}
	for _, file := range m.files() {
		seen[strings.SplitN(filepath.Base(file), ".", 2)[0]] = true
	}
	for _, group := range m.groups() {
		seen[filepath.Base(group)] = true
	}
	delete(seen, "probe")
	var leases []string
	for lease := range seen {
		leases = append(leases, lease)
	}
	return leases
}

// files are the state files of leases, finished or not.
func (m *morgue) files() []string {
	m.s.t.Helper()
	files, err := filepath.Glob(filepath.Join(m.state, "local", "leases", "*", "*.json*"))
	require.NoError(m.s.t, err)
	return files
}

// groups are the control groups of leases.
func (m *morgue) groups() []string {
	m.s.t.Helper()
	instances, err := filepath.Glob(filepath.Join(m.state, "local", "leases", "*"))
	require.NoError(m.s.t, err)
	var groups []string
	for _, instance := range instances {
		groups = append(groups, groupsOf(m.s.t, filepath.Base(instance))...)
	}
	return groups
}

// groupsOf are the control groups of an instance's leases, in every hierarchy.
func groupsOf(t *testing.T, instance string) []string {
	t.Helper()
	var groups []string
	for _, depth := range []string{"", "*/", "*/*/", "*/*/*/", "*/*/*/*/"} {
		found, err := filepath.Glob("/sys/fs/cgroup/" + depth + "sallyport/" + instance + "/*")
		require.NoError(t, err)
		for _, path := range found {
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				groups = append(groups, path)
			}
		}
	}
	return groups
}

// living are the processes that have the marker in their argv, are lease init or a
// stub of one of leases, or are in a control group of one. A zombie is dead: who has
// to wait for it is the host's first process.
func (m *morgue) living(leases []string) []string {
	m.s.t.Helper()
	var living []string
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(m.s.t, err)
	for _, p := range processes {
		line, err := os.ReadFile(p + "/cmdline")
		if err != nil {
			continue
		}
		groups, err := os.ReadFile(p + "/cgroup")
		if err != nil {
			continue
		}
		ours := strings.Contains(string(line), m.marker)
		for _, lease := range leases {
			ours = ours || strings.HasPrefix(string(line), leaseinit.Marker+"\x00"+lease+"\x00") || strings.Contains(string(groups), "/"+lease)
		}
		if ours && !dead(p) {
			living = append(living, p+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return living
}

// dead says whether a process is a zombie or gone.
func dead(proc string) bool {
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return true
	}
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	return strings.HasPrefix(rest, " Z") || strings.HasPrefix(rest, " X")
}

// kill kills a worker, sees that nothing of it lives after survivalTime, and returns
// the leases that it had.
func (m *morgue) kill(w *service) []string {
	m.s.t.Helper()
	crowd := runnable(m.s.t)
	w.signal(syscall.SIGKILL)
	died := time.Now()
	m.s.within(w.done, "the worker does not die")
	leases := m.leases()
	took, living := time.Since(died), m.living(leases)
	for len(living) > 0 && took < patience {
		crowd = max(crowd, runnable(m.s.t))
		took, living = time.Since(died), m.living(leases)
	}
	require.Empty(m.s.t, living, "of a worker that was killed %s ago", took)
	m.took = append(m.took, took)
	if took > time.Duration(crowd*float64(survivalTime)) {
		m.late = append(m.late, fmt.Sprintf("%s with %.1f to a processor", took, crowd))
	}
	return leases
}

// runnable is how many threads of this host want each processor, at least 1: what
// ends shares the processors with all that runs.
func runnable(t *testing.T) float64 {
	t.Helper()
	load, err := os.ReadFile("/proc/loadavg")
	require.NoError(t, err)
	now, _, _ := strings.Cut(strings.Fields(string(load))[3], "/")
	n, err := strconv.Atoi(now)
	require.NoError(t, err)
	return max(1, float64(n)/float64(runtime.NumCPU()))
}

// left is what the next worker has not cleaned away of dead leases.
func (m *morgue) left(leases []string) []string {
	m.s.t.Helper()
	var left []string
	named := func(path string) bool {
		return slices.ContainsFunc(leases, func(lease string) bool { return strings.HasPrefix(filepath.Base(path), lease) })
	}
	for _, path := range slices.Concat(m.files(), m.groups()) {
		if named(path) {
			left = append(left, path)
		}
	}
	return append(left, m.mounts()...)
}

// mounts are the host's mounts that a lease could have left. Leases build their
// root over one of these directories, in a mount namespace of their own.
func (m *morgue) mounts() []string {
	m.s.t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(m.s.t, err)
	var mounts []string
	for line := range strings.Lines(string(table)) {
		at := strings.Fields(line)[4]
		if strings.HasPrefix(at, m.s.dir) || strings.HasSuffix(at, "/workspace") || at == "/mnt" || at == "/media" || at == "/srv" || at == "/opt" {
			mounts = append(mounts, line)
		}
	}
	return mounts
}

// report asserts that all that was killed was dead in time.
func (m *morgue) report() {
	m.s.t.Helper()
	slices.Sort(m.took)
	n := len(m.took)
	m.s.t.Logf("%d kills: nothing lived after %s in half of them, %s in nine of ten, %s at the latest", n, m.took[n/2], m.took[n*9/10], m.took[n-1])
	if soaking {
		// Beside other tests the processors are shared by more than a load average
		// tells, so that only the long form, which runs for itself, judges the time.
		require.Empty(m.s.t, m.late, "nothing may live after %s of a processor that nobody else wants", survivalTime)
	}
}

// load keeps jobs of all kinds in the queue until the test ends.
func (m *morgue) load(lanes int) (stop func()) {
	end := make(chan struct{})
	var publishers sync.WaitGroup
	kinds := []string{
		"true",
		"sleep 0.02",
		"exec sleep %s",
		"(setsid sleep %[1]s &) ; sleep 0.05",
		"trap '' TERM HUP INT; for i in 1 2 3 4 5; do (setsid sh -c 'trap \"\" TERM; sleep %[1]s' &) ; done; sleep %[1]s",
		"head -c 300000 /dev/zero | tr '\\0' x; (sleep %[1]s &); exit 3",
		"while :; do echo %[1]s; done",
		"exec 3<>/tmp/x; for i in 1 2 3; do (while :; do : ; done) & done; sleep %[1]s",
	}
	for lane := range lanes {
		publishers.Go(func() {
			for i := 0; ; i++ {
				script := kinds[(i+lane)%len(kinds)] + "; : %[1]s"
				if strings.HasPrefix(script, "exec sleep") {
					script = "exec sleep %[1]s"
				}
				r := wire.Request{V: wire.Version, Argv: []string{"sh", "-c", fmt.Sprintf(script, m.marker)}}
				r.Limits.WallMS, r.Limits.GraceMS = new(int64(400)), new(int64(50))
				if !m.publish(id("load-%d-%d", lane, i), r) {
					return
				}
				select {
				case <-end:
					return
				case <-time.After(15 * time.Millisecond):
				}
			}
		})
	}
	return func() { close(end); publishers.Wait() }
}

// publish puts a job into the queue that nobody waits for.
func (m *morgue) publish(id string, r wire.Request) bool {
	body, err := json.Marshal(r)
	if err == nil {
		_, err = m.s.js.Publish(m.s.t.Context(), "exec.job.default.default."+id, body)
	}
	if err != nil {
		m.s.t.Errorf("publish: %v", err)
	}
	return err == nil
}

// morgueConfig has leases that are made and destroyed all the time, beside some that
// are kept.
var morgueConfig = strings.Replace(withAckWait("2s"), "profiles:", `profiles:
  default:
    reuse: tenant
    max_uses: 2
    warm: 2`, 1)

// TestKilledWorkersLeaveNothing kills the worker at any moment under load: while it
// starts, makes leases, runs jobs, ends them, destroys leases. All that it had is
// dead at once, and the next worker finds and removes what a dead one cannot.
func TestKilledWorkersLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		user  int
		kills int
	}{{"root", 0, soak(20, 500)}, {"ordinary user", 65534, soak(6, 100)}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if os.Geteuid() != 0 && c.user != 0 {
				return // the other subtest is this one
			}
			s := newUserStack(t, morgueConfig, c.user)
			m := s.morgue(filepath.Join(s.dir, "w"))
			stop := m.load(3)
			defer stop()
			var dead []string
			for range c.kills {
				w := s.startUser(c.user, "w", "--slots", "4")
				if rand.IntN(4) > 0 {
					w.waitReady()
					require.Empty(t, m.left(dead), "left by dead workers: %s", w.log)
				}
				<-time.After(time.Duration(rand.IntN(350)) * time.Millisecond)
				dead = append(dead, m.kill(w)...)
			}
			m.lastRites(c.user, dead)
		})
	}
}

// lastRites has a last worker clean up and end in order: then nothing at all is left.
func (m *morgue) lastRites(user int, dead []string) {
	m.s.t.Helper()
	w := m.s.startUser(user, "w", "--slots", "4")
	w.waitReady()
	require.Empty(m.s.t, m.left(dead), "left by dead workers: %s", w.log)
	w.stop()
	require.Empty(m.s.t, m.leases())
	require.Empty(m.s.t, m.living(dead))
	require.Empty(m.s.t, m.s.leftovers(m.s.instances()))
	require.NotEmpty(m.s.t, dead, "no lease was ever killed")
	m.report()
	m.s.t.Logf("%d leases of dead workers", len(dead))
}

// newUserStack is a stack whose files an ordinary user may read.
func newUserStack(t *testing.T, config string, user int) *stack {
	t.Helper()
	s := newStack(t)
	dir, err := os.MkdirTemp("", "sallyport-death-") //nolint:usetesting // TempDir stands in a directory that is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	s.dir, s.config = dir, filepath.Join(dir, "sallyport.yaml")
	require.NoError(t, os.WriteFile(s.config, []byte(config), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "w"), 0o700))
	require.NoError(t, os.Chown(filepath.Join(dir, "w"), user, user))
	require.NoError(t, os.Chmod(filepath.Dir(binary), 0o755))
	return s.apply()
}

// startUser starts a worker as a user and does not wait for it.
func (s *stack) startUser(user int, state string, args ...string) *service {
	s.t.Helper()
	port := freePort(s.t)
	args = append([]string{
		"worker", "--server", s.url, "--config", s.config, "--state-dir", filepath.Join(s.dir, state),
		"--http", port, "--require", "namespaces", "--drain", "1s",
	}, args...)
	w := s.startAs(user, args...)
	w.http = port
	return w
}

// TestWorkerKilledInASpecialMoment kills it while a lease is being made, at several
// points of that, and while one is being destroyed.
func TestWorkerKilledInASpecialMoment(t *testing.T) {
	t.Parallel()
	s := newUserStack(t, strings.Replace(morgueConfig, "max_uses: 2", "max_uses: 1", 1), 0)
	m := s.morgue(filepath.Join(s.dir, "w"))
	var dead []string
	for round := range soak(8, 120) {
		w := s.startUser(0, "w", "--slots", "4")
		w.waitReady()
		require.Empty(t, m.left(dead), "%s", w.log)
		seen := m.leases()
		// The job uses up a lease: the pool destroys it and makes another.
		require.True(t, m.publish(id("moment-%d", round), wire.Request{V: wire.Version, Argv: []string{"sh", "-c", "true " + m.marker}}))
		moment := func() bool {
			now := m.leases()
			made := slices.ContainsFunc(now, func(l string) bool { return !slices.Contains(seen, l) })
			gone := slices.ContainsFunc(seen, func(l string) bool { return !slices.Contains(now, l) })
			seen = append(seen, now...)
			return round%2 == 0 && made || round%2 == 1 && gone
		}
		for began := time.Now(); !moment(); {
			require.Less(t, time.Since(began), patience)
		}
		<-time.After(time.Duration(round/2%4) * 2 * time.Millisecond)
		dead = append(dead, m.kill(w)...)
	}
	m.lastRites(0, dead)
}

// TestTwoWorkersOnOneHost has one worker killed and started again while another
// one runs jobs, with one state directory and with two: neither touches the other's
// leases.
func TestTwoWorkersOnOneHost(t *testing.T) {
	t.Parallel()
	for name, states := range map[string][2]string{"one state directory": {"w", "w"}, "two state directories": {"w", "v"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newUserStack(t, morgueConfig, 0)
			out, code := s.command("streams", "apply", "--server", s.url, "--config", s.config, "--queues", "default,dying")
			require.Equal(t, 0, code, out)
			m := s.morgue(filepath.Join(s.dir, states[0]))
			dying := s.startUser(0, states[0], "--slots", "2", "--queues", "dying")
			dying.waitReady()
			other := s.startUser(0, states[1], "--slots", "4")
			other.waitReady()
			for i := range 6 {
				body := fmt.Sprintf(`{"v":1,"argv":["sh","-c","setsid sleep %s & sleep %s"]}`, m.marker, m.marker)
				_, err := s.js.Publish(t.Context(), "exec.job.default.dying."+id("d%d", i), []byte(body))
				require.NoError(t, err)
			}
			require.Eventually(t, func() bool { return marked(t, m.marker) > 0 }, patience, 5*time.Millisecond)
			const jobs = 50
			var all []*followed
			for i := range jobs {
				all = append(all, s.submit(id("steady-%d", i), shell(fmt.Sprintf("echo %d; sleep 0.1; exit %d", i, i))))
				switch i {
				case 10, 30:
					dying.signal(syscall.SIGKILL)
					s.within(dying.done, "it does not die")
				case 11, 31:
					dying = s.startUser(0, states[0], "--slots", "2", "--queues", "dying")
				}
			}
			for i, f := range all {
				f.wait().exited(i)
				require.Equal(t, strconv.Itoa(i)+"\n", string(f.stdout))
				require.Equal(t, 1, f.result.Attempt)
			}
			require.Equal(t, 0.0, other.metric(t, "sallyport_leases_quarantined_total"))
			dying.waitReady()
			dying.stop()
			other.stop()
			require.Empty(t, s.leftovers(s.instances()))
		})
	}
}
