package fake_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/sandbox/sandboxtest"
)

// workerDir makes this test binary a worker of the world in that directory.
const workerDir = "FAKE_TEST_WORKER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(workerDir); dir != "" {
		if err := work(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Some tests wait for what takes its time, and run beside others: more of them than
	// there are processors. The flag -parallel rules.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// work makes the sandboxes of a worker, starts a program in one, says so, and
// waits for its death.
func work(dir string) error {
	world, err := fake.OpenWorld(dir)
	if err != nil {
		return err
	}
	p := fake.New(world, fake.Config{OutlivesWorker: true})
	ctx := context.Background()
	for _, lease := range []string{"plain", "stubborn"} {
		box, err := p.Create(ctx, sandbox.Spec{Lease: lease})
		if err != nil {
			return err
		}
		argv := []string{"fake", "print:up", "forever"}
		if lease == "stubborn" {
			argv = append(argv, "destroy:fail*3")
		}
		up := make(output, 1)
		run, err := box.Prepare(ctx, sandbox.Process{Argv: argv}, up)
		if err != nil {
			return err
		}
		if err := run.Open(ctx); err != nil {
			return err
		}
		<-up
	}
	if _, err := p.Destroy(ctx, sandbox.Handle{Provider: "fake", Host: "fake", Lease: "stubborn"}); err == nil {
		return fmt.Errorf("destroyed at the first try")
	}
	fmt.Println("ready")
	<-make(chan struct{})
	return nil
}

// output takes one piece.
type output chan struct{}

func (o output) Write(sandbox.Stream, []byte) error {
	o <- struct{}{}
	return nil
}

// shared opens the world in dir; it is closed with the test.
func shared(t *testing.T, dir string) (*fake.World, *fake.Provider) {
	t.Helper()
	world, err := fake.OpenWorld(dir)
	require.NoError(t, err)
	p := fake.New(world, fake.Config{OutlivesWorker: true})
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		require.NoError(t, world.Close())
	})
	return world, p
}

func handleOf(lease string) sandbox.Handle {
	return sandbox.Handle{Provider: "fake", Host: "fake", Lease: lease}
}

// A worker that is killed leaves its sandboxes, with the destroy knobs as far as
// they were used up, to whoever opens the world next.
func TestAKilledWorkerLeavesItsSandboxes(t *testing.T) {
	dir := t.TempDir()
	worker := exec.Command(os.Args[0], "-test.run=^$")
	worker.Env = append(os.Environ(), workerDir+"="+dir)
	worker.Stderr = os.Stderr
	out, err := worker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, worker.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)

	world, reaper := shared(t, dir)
	require.Equal(t, []string{"plain", "stubborn"}, world.Live(), "while it lives")
	require.NoError(t, worker.Process.Kill())
	require.Error(t, worker.Wait())

	left, err := reaper.Inventory(t.Context())
	require.NoError(t, err)
	require.Len(t, left, 2)
	require.Equal(t, map[string]string{"number": "1"}, left[0].Detail)
	_, err = reaper.Create(t.Context(), sandbox.Spec{Lease: "plain"})
	require.Equal(t, sandbox.Refused, sandbox.KindOf(err), "a lease id is used once, whoever did")
	for range 2 { // the worker's own try was the first of three
		_, err := reaper.Destroy(t.Context(), left[1])
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	}
	for _, h := range left {
		proof, err := reaper.Destroy(t.Context(), h)
		require.NoError(t, err)
		require.True(t, proof.Proven)
	}
	require.Empty(t, world.Live())
	require.Equal(t, []int{2, 2, 2}, []int{world.Created(), world.Destroyed(), world.Started()}, "counts are the world's")
	_, err = reaper.Create(t.Context(), sandbox.Spec{Lease: "plain"})
	require.Equal(t, sandbox.Refused, sandbox.KindOf(err), "nor is it free afterwards")
}

func TestTheOwnerSeesWhatAnotherProcessDestroyed(t *testing.T) {
	dir := t.TempDir()
	_, owner := shared(t, dir)
	_, reaper := shared(t, dir)
	sb, err := owner.Create(t.Context(), sandbox.Spec{Lease: "lease"})
	require.NoError(t, err)
	run, err := sb.Prepare(t.Context(), sandbox.Process{Argv: []string{"fake", "forever"}}, &sandboxtest.Sink{})
	require.NoError(t, err)
	require.NoError(t, run.Open(t.Context()))
	_, err = reaper.Destroy(t.Context(), sb.Handle())
	require.NoError(t, err)
	select {
	case <-sb.Lost():
	case <-time.After(30 * time.Second):
		require.Fail(t, "nobody notices")
	}
	end, err := run.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, sandbox.EvidenceNotFound, end.Proof.Evidence[0].Kind)
	proof, err := sb.Destroy(t.Context())
	require.NoError(t, err)
	require.True(t, proof.Proven)
}

func TestManyShareAWorld(t *testing.T) {
	dir := t.TempDir()
	world, _ := shared(t, dir)
	var all sync.WaitGroup
	for n := range 4 {
		_, p := shared(t, dir)
		all.Go(func() {
			for i := range 20 {
				lease := fmt.Sprint(n, "-", i)
				sb, err := p.Create(t.Context(), sandbox.Spec{Lease: lease})
				if err != nil {
					t.Errorf("create %s: %v", lease, err)
					return
				}
				if i%2 == 0 {
					continue
				}
				if proof, err := sb.Destroy(t.Context()); err != nil || !proof.Proven {
					t.Errorf("destroy %s: %v", lease, err)
				}
			}
		})
	}
	all.Wait()
	require.Len(t, world.Live(), 40)
	require.Equal(t, []int{80, 40}, []int{world.Created(), world.Destroyed()})
}

func TestKnobsAreTheWorlds(t *testing.T) {
	dir := t.TempDir()
	one, worker := shared(t, dir)
	other, reaper := shared(t, dir)
	require.NoError(t, one.Plant(handleOf("a"), "destroy:fail"))
	require.NoError(t, one.PlantStranger(handleOf("theirs")))
	require.Equal(t, []string{"theirs"}, other.Strangers())
	require.Equal(t, []string{"a"}, other.Live())
	_, err := reaper.Destroy(t.Context(), handleOf("theirs"))
	require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
	_, err = reaper.Destroy(t.Context(), handleOf("a"))
	require.Error(t, err)
	known, err := other.Knob("a", "destroy:never")
	require.NoError(t, err)
	require.True(t, known)
	_, err = worker.Destroy(t.Context(), handleOf("a"))
	require.Error(t, err)
	require.NoError(t, one.Inventory("inventory:unavailable"))
	_, err = reaper.Inventory(t.Context())
	require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	left, err := worker.Inventory(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sandbox.Handle{handleOf("a")}, left)
	other.Outage(true)
	_, err = worker.Create(t.Context(), sandbox.Spec{Lease: "b"})
	require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	one.Outage(false)
	require.True(t, other.Vanish("a"))
	require.Empty(t, one.Live())
	require.Equal(t, []string{"theirs"}, one.Strangers())
}

func TestSandboxesComeBackInASharedWorld(t *testing.T) {
	dir := t.TempDir()
	one, worker := shared(t, dir)
	other, reaper := shared(t, dir)
	_, err := worker.Create(t.Context(), sandbox.Spec{Lease: "a", Root: "back:10ms"})
	require.NoError(t, err)
	_, err = worker.Create(t.Context(), sandbox.Spec{Lease: "b", Root: "create:ambiguous appear:10ms"})
	require.Equal(t, sandbox.Ambiguous, sandbox.KindOf(err))
	proof, err := reaper.Destroy(t.Context(), handleOf("a"))
	require.NoError(t, err)
	require.True(t, proof.Proven)
	require.Eventually(t, func() bool { return slices.Equal(other.Live(), []string{"a", "b"}) }, 30*time.Second, time.Millisecond)
	for _, lease := range []string{"a", "b"} {
		_, err = reaper.Destroy(t.Context(), handleOf(lease))
		require.NoError(t, err)
	}
	require.Empty(t, one.Live())
	require.Equal(t, []int{3, 3}, []int{one.Created(), one.Destroyed()})
}

func TestABrokenDirectoryIsUnavailable(t *testing.T) {
	dir := t.TempDir()
	_, p := shared(t, dir)
	sb, err := p.Create(t.Context(), sandbox.Spec{Lease: "a"})
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "live", "*.json"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	good, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(files[0], []byte("{"), 0o600))
	_, err = p.Inventory(t.Context())
	require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
	require.ErrorContains(t, err, "the world's directory")
	proof, err := sb.Destroy(t.Context())
	require.Error(t, err)
	require.False(t, proof.Proven)
	_, err = p.Create(t.Context(), sandbox.Spec{Lease: "b"})
	require.Error(t, err)
	_, err = fake.OpenWorld(dir)
	require.Error(t, err)
	require.NoError(t, os.WriteFile(files[0], good, 0o600))
	proof, err = sb.Destroy(t.Context())
	require.NoError(t, err)
	require.True(t, proof.Proven)
	_, err = fake.OpenWorld(strings.Repeat("x", 300))
	require.Error(t, err)
}
