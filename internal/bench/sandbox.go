package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
	"github.com/sallyport/sallyport/internal/sandbox/local/cgroup"
)

// program is what the sandbox alone is measured with: the same binary raw, warm
// and cold.
const program = "/bin/true"

// sandboxFigures measures the local provider without the queue: a warm job up to
// its proof, a cold lease with one job and its destruction, each beside the raw
// fork and exec of the same program in the same loop, and two warm leases in
// parallel.
func sandboxFigures(ctx context.Context, dir string, rounds int, out io.Writer) (err error) {
	for _, groups := range []bool{true, false} {
		if err := providerFigures(ctx, dir, groups, rounds, out); err != nil {
			return err
		}
	}
	return nil
}

func providerFigures(ctx context.Context, dir string, groups bool, rounds int, out io.Writer) (err error) {
	instance := token()
	var group *cgroup.Group
	label := "namespaces only"
	if groups {
		if group, _ = cgroup.Open(cgroup.Config{Instance: instance}); group == nil {
			_, err := fmt.Fprintln(out, "sandbox alone, with control groups: not measured, this host gives none")
			return err
		}
		label = "with control groups"
		defer func() { err = errors.Join(err, group.Close(context.WithoutCancel(ctx))) }()
	}
	p, err := local.New(local.Config{StateDir: filepath.Join(dir, "sandbox"), Host: "bench", Instance: instance, Cgroup: group, Log: zerolog.Nop()})
	if err != nil {
		return fmt.Errorf("local provider: %w", err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	warm, err := p.Create(ctx, sandbox.Spec{Lease: token()})
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	const warmJobs, coldJobs = 300, 30
	var raw, hot, cold []float64
	for i := range rounds * warmJobs {
		if err := timed(&raw, rawRun); err != nil {
			return err
		}
		if err := timed(&hot, func() error { return job(ctx, warm) }); err != nil {
			return err
		}
		if i%(warmJobs/coldJobs) == 0 {
			if err := timed(&cold, func() error { return coldJob(ctx, p) }); err != nil {
				return err
			}
		}
	}
	if _, err := warm.Destroy(ctx); err != nil {
		return fmt.Errorf("destroy: %w", err)
	}
	two, err := parallel(ctx, p, 2, rounds*warmJobs)
	if err != nil {
		return err
	}
	r, h, c := median(raw), median(hot), median(cold)
	_, err = fmt.Fprintf(out, "sandbox alone, %s: raw fork+exec of %s %.0f µs; warm job to proof and reset %.0f µs (%.2f × raw); lease, job, destroy %.0f µs (%.1f × raw); two in parallel %.0f jobs/s\n",
		label, program, r, h, h/r, c, c/r, two)
	return err
}

// timed appends how many microseconds f took.
func timed(to *[]float64, f func() error) error {
	began := time.Now()
	err := f()
	*to = append(*to, float64(time.Since(began).Nanoseconds())/1000)
	return err
}

// rawRun is fork, exec and wait as cheap as Go can do it.
func rawRun() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("raw run: %w", err)
	}
	fd := null.Fd()
	pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{Files: []uintptr{fd, fd, fd}})
	if err := errors.Join(err, null.Close()); err != nil {
		return fmt.Errorf("raw run: %w", err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return fmt.Errorf("raw run: %w", err)
	}
	return nil
}

type discard struct{}

func (discard) Write(sandbox.Stream, []byte) error { return nil }

// job runs the program in box and makes the box ready for the next one.
func job(ctx context.Context, box sandbox.Sandbox) error {
	r, err := box.Prepare(ctx, sandbox.Process{Argv: []string{program}}, discard{})
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	if err := r.Open(ctx); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	end, err := r.Wait(ctx)
	if err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	if !end.Proof.Proven || end.Exit == nil || end.Exit.Code != 0 {
		return fmt.Errorf("unexpected end %+v", end)
	}
	if err := box.Reset(ctx); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return nil
}

func coldJob(ctx context.Context, p sandbox.Provider) error {
	box, err := p.Create(ctx, sandbox.Spec{Lease: token()})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	if err := job(ctx, box); err != nil {
		return err
	}
	proof, err := box.Destroy(ctx)
	if err != nil || !proof.Proven {
		return fmt.Errorf("destroy: proven %t: %w", proof.Proven, err)
	}
	return nil
}

// parallel is the rate of n warm leases at once.
func parallel(ctx context.Context, p sandbox.Provider, n, jobs int) (float64, error) {
	boxes := make([]sandbox.Sandbox, n)
	for i := range boxes {
		var err error
		if boxes[i], err = p.Create(ctx, sandbox.Spec{Lease: token()}); err != nil {
			return 0, fmt.Errorf("lease: %w", err)
		}
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	began := time.Now()
	for i, box := range boxes {
		wg.Go(func() {
			for range jobs / n {
				if errs[i] = job(ctx, box); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	rate := float64(jobs) / time.Since(began).Seconds()
	for _, box := range boxes {
		_, err := box.Destroy(ctx)
		errs = append(errs, err)
	}
	return rate, errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

func token() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (its documentation)
	return hex.EncodeToString(b[:])
}
