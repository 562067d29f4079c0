package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// TestAdmitRefusesWhatCannotStart: a memory limit below what starts the program
// would fail before the start, again and again.
func TestAdmitRefusesWhatCannotStart(t *testing.T) {
	t.Parallel()
	profiles := map[string]wire.Profile{"default": {Name: "default", Max: wire.Limits{MemoryBytes: new(int64(1 << 30))}}}
	admit := func(memory int64) *wire.Invalid {
		r := &wire.Request{V: 1, Argv: []string{"true"}, Limits: wire.Limits{MemoryBytes: &memory}}
		_, _, bad := wire.Admit(r, profiles, func(p wire.Profile) wire.Profile { return p }, "default")
		return bad
	}
	for _, memory := range []int64{1, 4096, 4<<20 - 1} {
		bad := admit(memory)
		require.NotNil(t, bad, memory)
		require.Equal(t, wire.ReasonField, bad.Reason)
		require.Equal(t, "limits.memory_bytes", bad.Field)
	}
	require.Nil(t, admit(4<<20))
	require.Equal(t, wire.ReasonTooBig, admit(2<<30).Reason)
}
