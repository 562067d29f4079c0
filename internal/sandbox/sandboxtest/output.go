package sandboxtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// tick is how often a condition is looked at.
const tick = 2 * time.Millisecond

func outputTests() []namedTest {
	return []namedTest{
		{"Order", outputOrder},
		{"LittleLeavesAtOnce", littleLeavesAtOnce},
		{"FloodIsExact", floodIsExact},
		{"BackPressure", backPressure},
		{"EndWithBlockedSink", endWithBlockedSink},
		{"SinkErrorStopsReading", sinkErrorStopsReading},
	}
}

func outputOrder(t *testing.T, s *suite) {
	var ops []Op
	var out, errs strings.Builder
	for i := range 50 {
		ops = append(ops, Print(fmt.Sprint("out ", i)), Eprint(fmt.Sprint("err ", i)))
		fmt.Fprintf(&out, "out %d\n", i)
		fmt.Fprintf(&errs, "err %d\n", i)
	}
	sink := &Sink{}
	s.wait(t, s.start(t, s.create(t), sink, ops...))
	require.Equal(t, out.String(), sink.String(sandbox.Stdout))
	require.Equal(t, errs.String(), sink.String(sandbox.Stderr))
	require.Empty(t, sink.Faults())
}

func littleLeavesAtOnce(t *testing.T, s *suite) {
	sink := &Sink{}
	run := s.start(t, s.create(t), sink, Print("now"), Sleep(long))
	require.Eventually(t, func() bool { return sink.String(sandbox.Stdout) == "now\n" }, patience, tick)
	_, err := run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
}

func floodIsExact(t *testing.T, s *suite) {
	const size = 8<<20 + 5
	sink := &Sink{}
	end := s.wait(t, s.start(t, s.create(t), sink, Write(size), Eprint("done")))
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	requireSame(t, pattern(size), sink.String(sandbox.Stdout))
	require.Equal(t, "done\n", sink.String(sandbox.Stderr))
	require.Empty(t, sink.Faults())
	require.Less(t, sink.Calls(sandbox.Stdout), size/1024, "a flood comes in large pieces")
}

// A sink that blocks holds the process back: it cannot get rid of more than what
// the pipes and one piece hold.
func backPressure(t *testing.T, s *suite) {
	const size = 4 << 20
	sink := &Sink{Hold: make(chan struct{})}
	sb := s.create(t)
	run := s.start(t, sb, sink, Write(size), Print("end"))
	require.Eventually(t, func() bool { return sink.Calls(sandbox.Stdout) == 1 }, patience, tick)
	end := s.waitFor(t, run, 2*never)
	require.Nil(t, end.Exit, "the program ended although nobody took its output")
	require.False(t, end.Proof.Proven)
	require.Equal(t, 1, sink.Calls(sandbox.Stdout))
	close(sink.Hold)
	require.Equal(t, &sandbox.Exit{}, s.wait(t, run).Exit)
	requireSame(t, pattern(size)+"end\n", sink.String(sandbox.Stdout))
	require.Empty(t, sink.Faults())
}

// A sink that blocks for ever keeps neither the end nor its proof back.
func endWithBlockedSink(t *testing.T, s *suite) {
	sink := &Sink{Hold: make(chan struct{})}
	run := s.start(t, s.create(t), sink, Write(4<<20))
	require.Eventually(t, func() bool { return sink.Calls(sandbox.Stdout) == 1 }, patience, tick)
	proof, err := run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
	requireProven(t, proof)
	end := s.waitFor(t, run, never)
	require.True(t, end.Proof.Proven, "known so far")
	require.NotNil(t, end.Exit, "known so far")
	close(sink.Hold)
	s.wait(t, run)
	require.True(t, strings.HasPrefix(pattern(4<<20), sink.String(sandbox.Stdout)), "a strict prefix")
}

func sinkErrorStopsReading(t *testing.T, s *suite) {
	sink := &Sink{Fail: sandbox.Stdout}
	run := s.start(t, s.create(t), sink, Print("refused"), Sleep(2*never), Eprint("unread"), Write(1<<20))
	require.Eventually(t, func() bool { return sink.Calls(sandbox.Stdout) == 1 }, patience, tick)
	end := s.waitFor(t, run, 6*never)
	require.Nil(t, end.Exit, "held back by its full pipe")
	proof, err := run.Terminate(s.ctx(t), 0)
	require.NoError(t, err)
	requireProven(t, proof)
	s.wait(t, run)
	require.Equal(t, 1, sink.Calls(sandbox.Stdout), "stdout was read on")
	require.Zero(t, sink.Calls(sandbox.Stderr), "stderr was read on")
}
