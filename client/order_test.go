package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

func TestStoredEventsComeInOrder(t *testing.T) {
	const result = 0
	for name, c := range map[string]struct {
		stored []uint64 // sequence numbers; 0 is the result, which has none of its own
		want   []uint64
		lost   []wire.LostRange
	}{
		"its beginning is gone":        {[]uint64{7, 8, result}, []uint64{7, 8, result}, []wire.LostRange{{From: 1, To: 6}}},
		"the first behind the second":  {[]uint64{2, 1, 2, 3, result}, []uint64{1, 2, 3, result}, nil},
		"plain":                        {[]uint64{1, 2, 3, result}, []uint64{1, 2, 3, result}, nil},
		"repeated":                     {[]uint64{1, 2, 3, 2, 3, 4, result}, []uint64{1, 2, 3, 4, result}, nil},
		"behind its successor":         {[]uint64{1, 2, 4, 3, 4, 5, result}, []uint64{1, 2, 3, 4, 5, result}, nil},
		"never came":                   {[]uint64{1, 2, 4, 5, result}, []uint64{1, 2, 4, 5, result}, []wire.LostRange{{From: 3, To: 3}}},
		"never came, others did twice": {[]uint64{1, 4, 5, 4, 5, 7, result}, []uint64{1, 4, 5, 7, result}, []wire.LostRange{{From: 2, To: 3}, {From: 6, To: 6}}},
		"from a cursor":                {[]uint64{7, 8, result}, []uint64{7, 8, result}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := order{begun: name != "from a cursor"}
			var got []uint64
			for _, seq := range c.stored {
				ev := Event{Type: wire.EventStdout, Attempt: 1, Seq: seq}
				if seq == result {
					ev.Type = wire.EventResult
				}
				for _, s := range o.add(stored{event: ev}) {
					got = append(got, s.event.Seq)
				}
			}
			require.Equal(t, c.want, got)
			require.Equal(t, c.lost, o.lost)
		})
	}
	t.Run("what is missing is not waited for without a bound", func(t *testing.T) {
		var o order
		require.Len(t, o.add(stored{event: Event{Type: wire.EventStdout, Attempt: 1, Seq: 1}}), 1)
		got := 0
		for seq := range uint64(holdEvents) {
			got += len(o.add(stored{event: Event{Type: wire.EventStdout, Attempt: 1, Seq: seq + 3}}))
		}
		require.Equal(t, holdEvents, got)
		require.Equal(t, []wire.LostRange{{From: 2, To: 2}}, o.lost)
	})
	t.Run("what is missing before the result", func(t *testing.T) {
		o := order{begun: true}
		add := func(typ wire.EventType, attempt int, seq uint64) int {
			return len(o.add(stored{event: Event{Type: typ, Attempt: attempt, Seq: seq}}))
		}
		require.Equal(t, 1, add(wire.EventStdout, 1, 1))
		require.Equal(t, 1, add(wire.EventResult, 1, 4))
		require.Equal(t, []wire.LostRange{{From: 2, To: 3}}, o.lost)
		require.Equal(t, 1, add(wire.EventResult, 1, 4), "repeated")
		require.Equal(t, []wire.LostRange{{From: 2, To: 3}}, o.lost)
		o = order{begun: true}
		require.Equal(t, 1, add(wire.EventResult, 1, 9), "everything but the result is gone")
		require.Equal(t, []wire.LostRange{{From: 1, To: 8}}, o.lost)
	})
	t.Run("another attempt begins with its first event", func(t *testing.T) {
		var o order // from a cursor
		add := func(attempt int, seq uint64) int {
			return len(o.add(stored{event: Event{Type: wire.EventStdout, Attempt: attempt, Seq: seq}}))
		}
		require.Equal(t, 1, add(1, 7))
		require.Equal(t, 0, add(2, 2), "waits for the first")
		require.Equal(t, 1, add(2, 1))
		require.Equal(t, 1, add(2, 2))
	})
	t.Run("an attempt that was given up", func(t *testing.T) {
		var o order
		add := func(attempt int, seq uint64) int {
			return len(o.add(stored{event: Event{Type: wire.EventStdout, Attempt: attempt, Seq: seq}}))
		}
		require.Equal(t, 1, add(1, 1))
		require.Equal(t, 1, add(2, 1))
		require.Equal(t, 0, add(1, 2))
		require.Equal(t, 1, add(2, 2))
	})
}
