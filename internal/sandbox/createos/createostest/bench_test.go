package createostest_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
)

// BenchmarkHost is the time of a sandbox, and of a program in one.
func BenchmarkHost(b *testing.B) {
	host := createostest.NewHost()
	ctx := context.Background()
	b.Run("sandbox", func(b *testing.B) {
		for b.Loop() {
			m, err := host.Boot(ctx, "sb-bench")
			require.NoError(b, err)
			require.NoError(b, m.End(ctx))
		}
	})
	b.Run("program", func(b *testing.B) {
		m, err := host.Boot(ctx, "sb-bench")
		require.NoError(b, err)
		for b.Loop() {
			tree, err := m.Start(ctx, createostest.Program{Cmd: "/bin/true", Cwd: "/", Output: func(int, []byte) {}})
			require.NoError(b, err)
			<-tree.Exited()
			<-tree.Gone()
		}
		require.NoError(b, m.End(ctx))
	})
}
