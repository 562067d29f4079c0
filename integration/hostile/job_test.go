package hostile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

const (
	// outputBytes is what a job may write.
	outputBytes = 1 << 20
	// patience is how long anything may take that is expected to come.
	patience = 20 * time.Second
	// proofTime is how long the proof may take after all that the limits allow:
	// what the product itself gives a run before it doubts.
	proofTime = 4 * time.Second
)

// The limits of every job. Wall time and grace are each row's own.
func limits(groups bool) sandbox.Limits {
	l := sandbox.Limits{Pids: 64, DiskBytes: 16 << 20, Inodes: 4096, OpenFiles: 256}
	if groups {
		l.MemoryBytes, l.CPUShare = 64<<20, 100
	}
	return l
}

// cause is why a job's run ended, if not by itself.
type cause string

const (
	causeNone   cause = ""
	causeWall   cause = "wall"
	causeOutput cause = "output"
)

// ended is a job's end.
type ended struct {
	sandbox.End
	cause          cause
	stdout, stderr []byte
	took           time.Duration
	// refused has the names of the workspace that were asked for, and why each was not
	// handed over; empty for those that were.
	refused map[string]string
}

// outcome is what the end comes to, by the same precedence as a result's.
func (e ended) outcome() outcome {
	switch {
	case e.StartError != nil:
		return notStarted
	case e.OOM > 0:
		return oom
	case e.cause == causeWall:
		return wall
	case e.cause == causeOutput:
		return output
	case e.Exit == nil:
		return unknown
	case e.Exit.Signal != 0:
		return signaled
	}
	return exited
}

// bounded is a sink that keeps what the output limit allows and then refuses.
type bounded struct {
	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	full           chan struct{}
	once           sync.Once
}

var errFull = errors.New("the output limit is reached")

func (b *bounded) Write(stream sandbox.Stream, p []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	to := &b.stdout
	if stream == sandbox.Stderr {
		to = &b.stderr
	}
	room := outputBytes - b.stdout.Len() - b.stderr.Len()
	to.Write(p[:min(room, len(p))])
	if len(p) > room {
		b.once.Do(func() { close(b.full) })
		return errFull
	}
	return nil
}

// job is what to run, and for how long.
type job struct {
	argv        []string
	stdin       io.Reader
	wall, grace time.Duration
}

// run runs a job to its end as the executor does, and wants the end proven in time
// and the sandbox reset.
func run(t testing.TB, box sandbox.Sandbox, groups bool, j job) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sink := &bounded{full: make(chan struct{})}
	r, err := box.Prepare(ctx, sandbox.Process{
		Argv: j.argv, Env: []string{"PATH=/usr/bin:/bin"}, Stdin: j.stdin, Limits: limits(groups),
	}, sink)
	require.NoError(t, err)
	begin := time.Now()
	require.NoError(t, r.Open(ctx))
	over := make(chan struct{})
	e := ended{}
	var waitErr error
	var all sync.WaitGroup
	all.Go(func() {
		defer close(over)
		e.End, waitErr = r.Wait(ctx)
	})
	why := causeNone
	timer := time.NewTimer(j.wall)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		why = causeWall
	case <-sink.full:
		why = causeOutput
	}
	var termErr error
	if why != causeNone {
		_, termErr = r.Terminate(ctx, j.grace)
	}
	all.Wait()
	e.took = time.Since(begin)
	require.NoError(t, termErr)
	require.NoError(t, waitErr)
	require.True(t, e.Proof.Proven, "evidence: %v", e.Proof.Evidence)
	require.Less(t, e.took, j.wall+j.grace+proofTime)
	e.refused = collect(ctx, t, r)
	require.NoError(t, box.Reset(ctx))
	e.cause, e.stdout, e.stderr = why, sink.stdout.Bytes(), sink.stderr.Bytes()
	if why == causeNone && sinkIsFull(sink) {
		e.cause = causeOutput
	}
	return e
}

// Bounds of what is collected.
const (
	collectFiles = 64
	collectBytes = 1 << 20
)

// collect asks for everything that a job has left in its workspace, whatever that is.
func collect(ctx context.Context, t testing.TB, r sandbox.Run) map[string]string {
	t.Helper()
	refused := map[string]string{}
	var total int64
	_, err := r.Collect(ctx, sandbox.CollectSpec{
		Patterns: []string{"**"}, MaxFiles: collectFiles, MaxFileBytes: collectBytes, MaxBytes: collectBytes,
	}, func(c sandbox.Collected) error {
		refused[c.Path] = c.Refused
		if c.Refused != "" {
			return nil
		}
		data, err := io.ReadAll(c.Content)
		require.Len(t, data, int(c.Size))
		total += c.Size
		return err
	})
	require.NoError(t, err)
	require.LessOrEqual(t, len(refused), collectFiles)
	require.LessOrEqual(t, total, int64(collectBytes))
	return refused
}

func sinkIsFull(s *bounded) bool {
	select {
	case <-s.full:
		return true
	default:
		return false
	}
}
