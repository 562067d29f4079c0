package createos_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos"
)

func TestPacerSpacesStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pacer := createos.NewPacer(300 * time.Millisecond)
		begin := time.Now()
		var all sync.WaitGroup
		var mu sync.Mutex
		var starts []time.Duration
		for range 3 {
			all.Go(func() {
				if err := pacer.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				starts = append(starts, time.Since(begin))
			})
		}
		all.Wait()
		require.Equal(t, []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond}, starts)
	})
}

// One who gives up, waiting for its turn or for its time, takes nothing from the others.
func TestPacerAbortedWaiterLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pacer := createos.NewPacer(time.Second)
		require.NoError(t, pacer.Wait(t.Context()))
		begin := time.Now()
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		for range 2 { // one holds the turn, one waits for it
			all.Go(func() {
				if err := pacer.Wait(ctx); !errors.Is(err, enough) {
					t.Errorf("an aborted wait: %v", err)
				}
			})
		}
		synctest.Wait()
		var start time.Duration
		all.Go(func() {
			if err := pacer.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			start = time.Since(begin)
		})
		synctest.Wait()
		time.Sleep(400 * time.Millisecond)
		cancel(enough)
		all.Wait()
		require.Equal(t, time.Second, start)
		require.ErrorIs(t, pacer.Wait(ctx), enough, "a wait that is over before it begins")
	})
}

func TestPacerHoldKeepsEverybodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pacer := createos.NewPacer(time.Millisecond)
		pacer.Hold(5 * time.Second)
		pacer.Hold(time.Second)
		begin := time.Now()
		require.NoError(t, pacer.Wait(t.Context()))
		require.Equal(t, 5*time.Second, time.Since(begin))
	})
}
