package local_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkWarm is one /bin/true in a warm lease, from Prepare to Reset, beside
// the bare fork and exec of the same program in the same loop.
func BenchmarkWarm(b *testing.B) {
	for name, groups := range map[string]bool{"namespaces": false, "cgroup": true} {
		b.Run(name, func(b *testing.B) {
			p := provider(b, groups)
			box := create(b, p)
			for b.Loop() {
				requireExit(b, 0, run(b, box, command("/bin/true")))
			}
			requireGone(b, box)
		})
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, exec.CommandContext(b.Context(), "/bin/true").Run())
		}
	})
}

// BenchmarkCold is create, one /bin/true, destroy.
func BenchmarkCold(b *testing.B) {
	p := provider(b, false)
	for b.Loop() {
		box := create(b, p)
		requireExit(b, 0, run(b, box, command("/bin/true")))
		requireGone(b, box)
	}
}
