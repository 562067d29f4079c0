package leasepool_test

import (
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/leasepool"
)

// BenchmarkAcquireRelease is what the pool itself costs a job whose tenant has a
// lease, with a provider that costs nothing.
func BenchmarkAcquireRelease(b *testing.B) {
	pool, err := leasepool.New(&quarantine{}, zerolog.Nop(), leasepool.Config{
		Capacity: 64, Profiles: []leasepool.Profile{{Name: "default", Provider: &provider{name: "fake"}, ReuseTenant: true, MaxUses: 1_000_000}},
	})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	over := make(chan error, 1)
	go func() { over <- pool.Run(ctx) }()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l, err := pool.Acquire(ctx, tenant)
			if err != nil {
				b.Error(err)
				return
			}
			pool.Release(l, ended)
		}
	})
	b.StopTimer()
	cancel()
	require.NoError(b, <-over)
}
