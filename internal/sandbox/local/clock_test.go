package local_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// TestTimesAreMonotonic: the times of a run's end carry a reading of the clock that
// nobody can set, so that limits and durations made of them hold when somebody sets
// the other one. Lease init and the worker read the same clock.
func TestTimesAreMonotonic(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		for range 20 {
			began := time.Now()
			r := run(t, box, shell("sleep 0.01"))
			over := time.Now()
			for _, at := range []time.Time{r.EndedAt, r.ProvenAt} {
				require.NotEqual(t, at, at.Round(0), "no monotonic reading")
				require.GreaterOrEqual(t, at.Sub(began), 10*time.Millisecond)
				require.LessOrEqual(t, at.Sub(began), over.Sub(began))
			}
			require.LessOrEqual(t, r.EndedAt.Sub(began), r.ProvenAt.Sub(began))
		}
	})
}
