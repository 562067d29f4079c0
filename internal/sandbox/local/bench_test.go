package local_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
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

// BenchmarkParallel is /bin/true in eight warm leases at once.
func BenchmarkParallel(b *testing.B) {
	p := provider(b, true)
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		box, err := p.Create(b.Context(), sandbox.Spec{Lease: newLease()})
		for err == nil && pb.Next() {
			err = once(b.Context(), box)
		}
		if err != nil {
			b.Error(err)
		}
	})
}

func once(ctx context.Context, box sandbox.Sandbox) error {
	r, err := box.Prepare(ctx, command("/bin/true"), newRecorder())
	if err != nil {
		return err
	}
	if err := r.Open(ctx); err != nil {
		return err
	}
	if _, err := r.Wait(ctx); err != nil {
		return err
	}
	return box.Reset(ctx)
}

// BenchmarkBareParallel is the bare fork and exec, eight at once.
func BenchmarkBareParallel(b *testing.B) {
	b.SetParallelism(4)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := exec.CommandContext(b.Context(), "/bin/true").Run(); err != nil {
				b.Error(err)
			}
		}
	})
}
