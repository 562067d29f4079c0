package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// books is what a worker and its leases have of the host.
type books struct {
	descriptors, routines     float64
	resident                  int64
	groups, mounts, processes int // processes are lease inits
}

func (s *stack) books(w *service) books {
	s.t.Helper()
	b := books{
		descriptors: float64(descriptors(s.t, w.cmd.Process.Pid)), routines: w.metric(s.t, "go_goroutines"),
		resident: resident(s.t, w.cmd.Process.Pid), processes: len(childrenOf(s.t, w.cmd.Process.Pid)),
	}
	for _, instance := range s.instances() {
		b.groups += len(groupsOf(s.t, instance))
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(s.t, err)
	b.mounts = strings.Count(string(table), s.dir)
	return b
}

// output is what job i prints: some bytes of all values, their number and order its
// own.
func output(i int) []byte {
	line := fmt.Appendf(nil, "%d\x00\xff\xfe%c\n", i, rune(i%256))
	return bytes.Repeat(line, 1+i%97)
}

// TestManyJobsAtOnce runs many jobs, sixteen at a time: each has its exit code, every
// byte that it wrote, and nothing else; and afterwards the worker has what it had.
func TestManyJobsAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce = 16
	s := newStack(t).apply()
	w := s.worker("w1", "--slots", "16")
	run := func(name string, n int) time.Duration {
		began := time.Now()
		var lanes sync.WaitGroup
		wrong := make(chan string, n)
		for lane := range atOnce {
			lanes.Go(func() {
				for i := lane; i < n; i += atOnce {
					want := string(output(i))
					// An argument has no NUL: octal for printf.
					script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do printf '%%s' %d; printf '\\000\\377\\376%s\\n'; i=$((i+1)); done; exit %d",
						1+i%97, i, octal(string(rune(i%256))), i%251)
					f := s.submit(id("%s-%d", name, i), shell(script)).wait()
					if f.result.ExitCode == nil || *f.result.ExitCode != i%251 || string(f.stdout) != want || len(f.stderr) > 0 || f.result.Attempt != 1 {
						wrong <- fmt.Sprintf("job %d: %d bytes of %d, %s", i, len(f.stdout), len(want), f.raw)
					}
				}
			})
		}
		lanes.Wait()
		close(wrong)
		for text := range wrong {
			require.Fail(t, text)
		}
		return time.Since(began)
	}
	// Whatever grows once has grown then.
	run("warm", soak(400, 5000))
	s.queueEmpty()
	before := s.books(w)
	n := soak(1000, 5000)
	took := run("many", n)
	s.queueEmpty()
	t.Logf("%d jobs at %d in %s: %.0f jobs/s", n, atOnce, took.Round(time.Millisecond), float64(n)/took.Seconds())
	// What the worker keeps for each lease: descriptors, goroutines, control groups.
	const files, routines = 20, 4
	var after books
	settled := func() bool {
		after = s.books(w)
		more := float64(max(0, after.processes-before.processes))
		return after.descriptors <= before.descriptors+files*more+4 && after.routines <= before.routines+routines*more+8 &&
			after.processes <= before.processes+atOnce && after.mounts == before.mounts &&
			after.groups*before.processes == before.groups*after.processes
	}
	for began := time.Now(); !settled() && time.Since(began) < patience; {
		<-time.After(50 * time.Millisecond)
	}
	t.Logf("before %+v", before)
	t.Logf("after  %+v", after)
	require.True(t, settled(), "something is left")
	limit := int64(16 << 20)
	if raceEnabled { // which multiplies memory
		limit = 64 << 20
	}
	require.Less(t, after.resident, before.resident+limit, "memory of the worker")
	w.stop()
	require.Empty(t, s.leftovers(s.instances()))
	left, err := filepath.Glob(filepath.Join(s.dir, "w1", "local", "leases", "*", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func octal(text string) string {
	var b strings.Builder
	for i := range len(text) {
		fmt.Fprintf(&b, "\\%03o", text[i])
	}
	return b.String()
}
