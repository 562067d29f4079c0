package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

// Options say what to measure.
type Options struct {
	// Executable is the built sallyport binary: both workers are started from it.
	Executable string
	// Rounds is how often each cell is measured, ours and naive in turn;
	// default 3.
	Rounds int
	// Scale multiplies the number of jobs per cell; default 1.
	Scale float64
	// Concurrencies default to 1, 8 and 64.
	Concurrencies []int
	// Slots of both workers; default 64.
	Slots int
	// Only names the one workload to measure; empty means all.
	Only string
	Out  io.Writer
}

const naiveName = "naive"

// Run measures and prints. An error means that a measurement failed; a bad ratio
// is a figure, not an error.
func Run(ctx context.Context, o Options) (err error) {
	defaults(&o)
	dir, err := os.MkdirTemp("", "sallyport-bench-")
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	srv, err := startServer(filepath.Join(dir, "nats"))
	if err != nil {
		return err
	}
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	url := srv.ClientURL()
	nc, err := nats.Connect(url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	if err := streams(ctx, js, o, url, dir); err != nil {
		return err
	}
	ours, err := start(ctx, o, "worker", "--server", url, "--fleet-slots", strconv.Itoa(o.Slots), "--slots", strconv.Itoa(o.Slots), "--state-dir", filepath.Join(dir, "worker"), "--http", "", "--log-level", "warn", "--require", "namespaces")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(ours)) }()
	naive, err := start(ctx, o, "bench", "--naive-worker", "--server", url, "--slots", strconv.Itoa(o.Slots))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(naive)) }()
	if o.Only == "" {
		if _, err := fmt.Fprintln(o.Out, machine()); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		if err := sandboxFigures(ctx, dir, o.Rounds, o.Out); err != nil {
			return err
		}
	}
	d := &driver{nc: nc, js: js}
	rows, err := measure(ctx, d, o)
	if err != nil {
		return err
	}
	return report(o, rows, ours.Process.Pid, naive.Process.Pid)
}

func defaults(o *Options) {
	if o.Rounds <= 0 {
		o.Rounds = 3
	}
	if o.Scale <= 0 {
		o.Scale = 1
	}
	if len(o.Concurrencies) == 0 {
		o.Concurrencies = []int{1, 8, 64}
	}
	if o.Slots <= 0 {
		o.Slots = 64
	}
}

// streams makes ours with the product's own command's code, and the naive one.
func streams(ctx context.Context, js jetstream.JetStream, o Options, url, _ string) error {
	cmd := exec.CommandContext(ctx, o.Executable, "streams", "apply", "--server", url, "--fleet-slots", strconv.Itoa(o.Slots)) //nolint:gosec // our own binary
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("streams apply: %w: %s", err, out)
	}
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: NaiveStream, Subjects: []string{NaiveSubject + ".>"}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return fmt.Errorf("naive stream: %w", err)
	}
	return nil
}

// measure runs all cells, ours and naive in turn, round after round, so that the
// machine's drift meets both alike.
func measure(ctx context.Context, d *driver, o Options) ([]row, error) {
	subjects, err := wire.NewSubjects("exec")
	if err != nil {
		return nil, fmt.Errorf("subjects: %w", err)
	}
	ours := target{name: "sallyport", subject: func(id string) string {
		return subjects.Job(wire.Job{Tenant: "bench", Queue: "default", ID: id})
	}}
	naive := target{name: naiveName, subject: func(id string) string { return NaiveSubject + "." + id }}
	loads, err := workloads(o.Scale)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, w := range loads {
		if o.Only != "" && o.Only != w.name {
			continue
		}
		for _, c := range o.Concurrencies {
			if w.bytes > 1<<20 && c > 8 {
				continue // 64 floods at once measure the machine's memory, not a worker
			}
			r := row{key: key{workload: w.name, about: w.about, concurrency: c}}
			for round := range o.Rounds + 1 {
				first, second := ours, naive
				if round%2 == 1 {
					first, second = naive, ours
				}
				for _, t := range []target{first, second} {
					got, err := d.run(ctx, t, w, c)
					if err != nil {
						return nil, err
					}
					switch {
					case round == 0: // warms leases, caches and connections up
					case t.name == naiveName:
						r.naive = append(r.naive, got)
					default:
						r.ours = append(r.ours, got)
					}
				}
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func report(o Options, rows []row, ours, naive int) error {
	if _, err := fmt.Fprintf(o.Out, "\n%s; server, driver and workers share the cores; medians of %d interleaved rounds; ratio = sallyport (sandboxed, with proof) / naive (neither)\n\n", machine(), o.Rounds); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if err := table(o.Out, rows); err != nil {
		return err
	}
	a, errA := residentBytes(ours)
	b, errB := residentBytes(naive)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	_, err := fmt.Fprintf(o.Out, "\nresident memory after the run: sallyport worker %.1f MiB, naive worker %.1f MiB\n", float64(a)/(1<<20), float64(b)/(1<<20))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// MaxPayload of the bench's server: the 1 MiB of input travel as base64.
const maxPayload = 8 << 20

func startServer(dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "bench", Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true, MaxPayload: maxPayload, JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 256 << 20,
		// The driver is the slow reader in the flood: let the server hold for it.
		MaxPending: 512 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, errors.New("embedded server: not ready within 10 s")
	}
	return s, nil
}

// start runs the binary until stop.
func start(ctx context.Context, o Options, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, o.Executable, args...) //nolint:gosec // our own binary
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	return cmd, nil
}

func stop(cmd *exec.Cmd) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w", cmd.Args[1], err)
	}
	return nil
}
