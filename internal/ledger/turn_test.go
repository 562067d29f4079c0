package ledger_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/ledger"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// stuck are books in which an update hangs until it is let go.
type stuck struct {
	ledger.Books
	begun, let chan struct{}
}

func (s stuck) GetEpoch(context.Context, string) (*bus.StoredEpoch, error) {
	return nil, bus.ErrNoRecord
}

func (s stuck) PutEpoch(context.Context, wire.EpochRecord, uint64) (uint64, error) { return 1, nil }

func (s stuck) Intend(context.Context, wire.LeaseRecord) (uint64, error) { return 2, nil }

func (s stuck) Update(context.Context, wire.LeaseRecord, uint64) (uint64, error) {
	close(s.begun)
	<-s.let
	return 3, nil
}

// TestAWaitForAnotherWriteEndsWithItsContext: one write of an entry that hangs does
// not hold up who has no time for it.
func TestAWaitForAnotherWriteEndsWithItsContext(t *testing.T) {
	t.Parallel()
	books := stuck{begun: make(chan struct{}), let: make(chan struct{})}
	k, err := ledger.New(books, zerolog.Nop(), ledger.Config{Worker: "w", Host: "h", Bound: time.Minute})
	require.NoError(t, err)
	require.NoError(t, k.Begin(t.Context()))
	h := sandbox.Handle{Provider: "fake", Lease: "l", Host: "h"}
	require.NoError(t, k.Intend(t.Context(), h, "default"))
	confirmed := make(chan error, 1)
	go func() { confirmed <- k.Confirm(t.Context(), h) }()
	<-books.begun
	short, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, k.Destroyed(short, "l", sandbox.Proof{}), context.Canceled)
	_, err = k.Quarantine(short, "l", wire.Quarantine{})
	require.ErrorIs(t, err, context.Canceled)
	close(books.let)
	require.NoError(t, <-confirmed)
}

// sleepy are books that write, and then the whole machine sleeps.
type sleepy struct {
	ledger.Books
	nap time.Duration
}

func (s *sleepy) GetEpoch(context.Context, string) (*bus.StoredEpoch, error) {
	return nil, bus.ErrNoRecord
}

func (s *sleepy) PutEpoch(context.Context, wire.EpochRecord, uint64) (uint64, error) { return 1, nil }

func (s *sleepy) Intend(context.Context, wire.LeaseRecord) (uint64, error) {
	time.Sleep(s.nap)
	return 2, nil
}

func (s *sleepy) Update(_ context.Context, _ wire.LeaseRecord, expect uint64) (uint64, error) {
	time.Sleep(s.nap)
	return expect + 1, nil
}

// TestAnEpochThatLapsesDuringAWrite: what was written in time is not made or used,
// since by now others may end it.
func TestAnEpochThatLapsesDuringAWrite(t *testing.T) {
	t.Parallel()
	h := sandbox.Handle{Provider: "fake", Lease: "l", Host: "h"}
	for name, c := range map[string]struct {
		call func(context.Context, *ledger.Keeper) error
		want error
	}{
		"intend": {func(ctx context.Context, k *ledger.Keeper) error {
			return k.Intend(ctx, sandbox.Handle{Provider: "fake", Lease: "m", Host: "h"}, "default")
		}, ledger.ErrLapsed},
		"confirm": {func(ctx context.Context, k *ledger.Keeper) error { return k.Confirm(ctx, h) }, leasepool.ErrOvertaken},
		"use": {func(ctx context.Context, k *ledger.Keeper) error {
			return k.Use(ctx, "l", leasepool.Use{Tenant: "t", Use: 1})
		}, leasepool.ErrOvertaken},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				books := &sleepy{}
				k, err := ledger.New(books, zerolog.Nop(), ledger.Config{Worker: "w", Host: "h", Bound: time.Minute})
				require.NoError(t, err)
				require.NoError(t, k.Begin(t.Context()))
				require.NoError(t, k.Intend(t.Context(), h, "default"))
				books.nap = 3 * time.Minute
				require.ErrorIs(t, c.call(t.Context(), k), c.want)
			})
		})
	}
}
