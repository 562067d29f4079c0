package sandboxtest

import (
	"fmt"
	"strings"
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

func outputOrder(s *suite) {
	var ops []Op
	var out, errs strings.Builder
	for i := range 50 {
		ops = append(ops, Print(fmt.Sprint("out ", i)), Eprint(fmt.Sprint("err ", i)))
		fmt.Fprintf(&out, "out %d\n", i)
		fmt.Fprintf(&errs, "err %d\n", i)
	}
	sink := &Sink{}
	s.wait(s.start(s.create(), sink, ops...))
	require.Equal(s, out.String(), sink.String(sandbox.Stdout))
	require.Equal(s, errs.String(), sink.String(sandbox.Stderr))
	require.Empty(s, sink.Faults())
}

func littleLeavesAtOnce(s *suite) {
	sink := &Sink{}
	run := s.start(s.create(), sink, Print("now"), Sleep(long))
	require.Eventually(s, func() bool { return sink.String(sandbox.Stdout) == "now\n" }, patience, tick)
	_, err := run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
}

func floodIsExact(s *suite) {
	const size = 8<<20 + 5
	sink := &Sink{}
	end := s.wait(s.start(s.create(), sink, Write(size), Eprint("done")))
	require.Equal(s, &sandbox.Exit{}, end.Exit)
	requireSame(s, pattern(size), sink.String(sandbox.Stdout))
	require.Equal(s, "done\n", sink.String(sandbox.Stderr))
	require.Empty(s, sink.Faults())
	require.Less(s, sink.Calls(sandbox.Stdout), size/1024, "a flood comes in large pieces")
}

// A sink that blocks holds the process back: it cannot get rid of more than what
// the pipes and one piece hold.
func backPressure(s *suite) {
	const size = 4 << 20
	sink := &Sink{Hold: make(chan struct{})}
	sb := s.create()
	run := s.start(sb, sink, Write(size), Print("end"))
	require.Eventually(s, func() bool { return sink.Calls(sandbox.Stdout) == 1 }, patience, tick)
	end := s.waitFor(run, 2*never)
	require.Nil(s, end.Exit, "the program ended although nobody took its output")
	require.False(s, end.Proof.Proven)
	require.Equal(s, 1, sink.Calls(sandbox.Stdout))
	close(sink.Hold)
	require.Equal(s, &sandbox.Exit{}, s.wait(run).Exit)
	requireSame(s, pattern(size)+"end\n", sink.String(sandbox.Stdout))
	require.Empty(s, sink.Faults())
}

// A sink that blocks for ever keeps neither the end nor its proof back.
func endWithBlockedSink(s *suite) {
	sink := &Sink{Hold: make(chan struct{})}
	run := s.start(s.create(), sink, Write(4<<20))
	require.Eventually(s, func() bool { return sink.Calls(sandbox.Stdout) == 1 }, patience, tick)
	proof, err := run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	requireProven(s, proof)
	end := s.waitFor(run, never)
	require.True(s, end.Proof.Proven, "known so far")
	require.NotNil(s, end.Exit, "known so far")
	close(sink.Hold)
	s.wait(run)
	require.True(s, strings.HasPrefix(pattern(4<<20), sink.String(sandbox.Stdout)), "a strict prefix")
}

func sinkErrorStopsReading(s *suite) {
	sink := &Sink{Fail: sandbox.Stdout}
	run := s.start(s.create(), sink, Print("refused"), Sleep(2*never), Eprint("unread"), Write(1<<20))
	require.Eventually(s, func() bool { return sink.Calls(sandbox.Stdout) == 1 }, patience, tick)
	end := s.waitFor(run, 6*never)
	require.Nil(s, end.Exit, "held back by its full pipe")
	proof, err := run.Terminate(s.ctx(), 0)
	require.NoError(s, err)
	requireProven(s, proof)
	s.wait(run)
	require.Equal(s, 1, sink.Calls(sandbox.Stdout), "stdout was read on")
	require.Zero(s, sink.Calls(sandbox.Stderr), "stderr was read on")
}
