package cgroup_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// said is a tree whose counters say what they are told to.
type said struct {
	*tree
	text string
}

func (s *said) OpenCounter(string, bool) (cgroup.Counter, error) { return &saying{s}, nil }

type saying struct{ *said }

func (s *saying) Read(p []byte) (int, error) { return copy(p, s.text), nil }
func (s *saying) Reset() error               { return nil }
func (s *saying) Close() error               { return nil }

// FuzzCounters: whatever the kernel's counters say before and after a job, its usage
// is an error, unknown (-1), or a number that is not negative; and a leaf is empty
// only if it says so.
func FuzzCounters(f *testing.F) {
	const stat = "usage_usec 12\nuser_usec 7\nsystem_usec 5\npopulated 0\noom_kill 0\nmax 0\n"
	f.Add(stat, "usage_usec 20\nuser_usec 9\nsystem_usec 11\npopulated 0\noom_kill 2\nmax 1\n")
	f.Add("0\n", "18446744073709551615\n")
	f.Add("user_usec 9223372036854775807\nsystem_usec 0\nmax 0\noom_kill 0\n", "user_usec -1\nsystem_usec\nmax x\n")
	f.Fuzz(func(t *testing.T, before, after string) {
		fs := &said{tree: newTree(t, "/"), text: stat}
		fs.realRoot = true
		g, _ := open(t, fs)
		l := lease(t, g, cgroup.Limits{})
		fs.text = before
		if l.Begin(t.Context()) != nil {
			return
		}
		fs.text = after
		u, err := l.Usage()
		if err != nil {
			return
		}
		for _, n := range []int64{int64(u.CPUUser), int64(u.CPUSystem), u.MemoryPeakBytes, u.PidsPeak, u.OOMKills, u.PidsMaxHits} {
			require.GreaterOrEqual(t, n, int64(-1))
		}
		if cpu, err := l.CPUTime(); err == nil {
			require.GreaterOrEqual(t, int64(cpu), int64(-1))
		}
	})
}
