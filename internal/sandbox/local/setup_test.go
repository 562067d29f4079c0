package local_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// patience is how long anything may take that is expected to come.
const patience = 20 * time.Second

func newLease() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// provider makes a provider with or without control groups, as the host has them.
func provider(t testing.TB, withGroups bool) *local.Provider {
	t.Helper()
	config := local.Config{
		StateDir: t.TempDir(), Host: "testhost", Instance: "test" + newLease()[:8], Log: zerolog.New(zerolog.NewTestWriter(t)),
	}
	if withGroups {
		group, report := cgroup.Open(cgroup.Config{Instance: config.Instance})
		require.NotNil(t, group, "%s", report)
		config.Cgroup = group
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			require.NoError(t, group.Close(ctx))
		})
	}
	p, err := local.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// each runs test with namespaces alone, and with control groups where the host
// gives some.
func each(t *testing.T, test func(t *testing.T, p *local.Provider)) {
	t.Run("namespaces", func(t *testing.T) { test(t, provider(t, false)) })
	if hasGroups(t) {
		t.Run("cgroup", func(t *testing.T) { test(t, provider(t, true)) })
	}
}

// hasGroups says whether control groups can limit memory here. As root they must.
func hasGroups(t testing.TB) bool {
	t.Helper()
	group, report := cgroup.Open(cgroup.Config{Instance: "look" + newLease()[:8]})
	if group != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, group.Close(ctx))
	}
	if !report.Memory.OK {
		t.Logf("not tested with control groups: %s", report.Memory.Why)
	}
	return report.Memory.OK
}

func create(t testing.TB, p *local.Provider) sandbox.Sandbox {
	t.Helper()
	box, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Profile: "test"})
	require.NoError(t, err)
	return box
}

// recorder is a sink that keeps everything.
type recorder struct {
	mu             sync.Mutex
	stdout, stderr bytes.Buffer
	pieces         []int
	seen           chan struct{} // closed at the first write
	once           sync.Once
	refuse         error
}

func newRecorder() *recorder { return &recorder{seen: make(chan struct{})} }

func (r *recorder) Write(stream sandbox.Stream, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	if stream == sandbox.Stdout {
		r.stdout.Write(p)
	} else {
		r.stderr.Write(p)
	}
	r.pieces = append(r.pieces, len(p))
	r.once.Do(func() { close(r.seen) })
	return nil
}

func (r *recorder) out() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stdout.String()
}

func (r *recorder) err() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stderr.String()
}

// result is a run that has ended.
type result struct {
	sandbox.End
	stdout, stderr string
}

func command(argv ...string) sandbox.Process {
	return sandbox.Process{Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}}
}

func shell(script string) sandbox.Process { return command("/bin/sh", "-c", script) }

func withStdin(p sandbox.Process, r io.Reader) sandbox.Process {
	p.Stdin = r
	return p
}

// begin starts a process.
func begin(t testing.TB, box sandbox.Sandbox, process sandbox.Process) (sandbox.Run, *recorder) {
	t.Helper()
	rec := newRecorder()
	r, err := box.Prepare(t.Context(), process, rec)
	require.NoError(t, err)
	require.NoError(t, r.Open(t.Context()))
	return r, rec
}

// finish waits for a run's end, which must be proven, and resets the sandbox.
func finish(t testing.TB, box sandbox.Sandbox, r sandbox.Run, rec *recorder) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	end, err := r.Wait(ctx)
	require.NoError(t, err)
	require.True(t, end.Proof.Proven, "evidence: %v", end.Proof.Evidence)
	require.NoError(t, box.Reset(ctx))
	return result{end, rec.out(), rec.err()}
}

func run(t testing.TB, box sandbox.Sandbox, process sandbox.Process) result {
	t.Helper()
	r, rec := begin(t, box, process)
	return finish(t, box, r, rec)
}

func requireExit(t testing.TB, code int, r result) {
	t.Helper()
	require.Nil(t, r.StartError, "stderr: %s", r.stderr)
	require.Equal(t, sandbox.StartedYes, r.Started)
	require.NotNil(t, r.Exit)
	require.Equal(t, sandbox.Exit{Code: code}, *r.Exit, "stdout: %s stderr: %s", r.stdout, r.stderr)
}

func requireGone(t testing.TB, box sandbox.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	proof, err := box.Destroy(ctx)
	require.NoError(t, err)
	require.True(t, proof.Proven)
}

// openDir is a temporary directory that everybody may enter.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sallyport-test-") //nolint:usetesting // TempDir stands in a directory that is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

func mounts(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return strings.Count(string(data), "\n")
}
