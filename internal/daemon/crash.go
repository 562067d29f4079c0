package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sallyport/sallyport/internal/leasepool"
	"github.com/sallyport/sallyport/internal/sandbox"
)

// crashPoint is where a process may be told to kill itself, so that tests can see
// what is left after each of them.
type crashPoint string

// The crash points.
const (
	crashAfterIntent      crashPoint = "after-intent"
	crashAfterCreate      crashPoint = "after-create"
	crashAfterConfirm     crashPoint = "after-confirm"
	crashAfterStart       crashPoint = "after-start"
	crashAfterExit        crashPoint = "after-exit"  // the program has ended, the proof is not there yet
	crashAfterProof       crashPoint = "after-proof" // before the lease is released
	crashBeforeQuarantine crashPoint = "before-quarantine"
	crashAfterQuarantine  crashPoint = "after-quarantine"
	crashBeforeDestroy    crashPoint = "before-destroy"
	crashAfterDestroy     crashPoint = "after-destroy"
)

func crashPoints() []crashPoint {
	return []crashPoint{
		crashAfterIntent, crashAfterCreate, crashAfterConfirm, crashAfterStart, crashAfterExit, crashAfterProof,
		crashBeforeQuarantine, crashAfterQuarantine, crashBeforeDestroy, crashAfterDestroy,
	}
}

// crasher kills this process with SIGKILL when it passes its point for the nth
// time. The zero value never does.
type crasher struct {
	point crashPoint
	left  atomic.Int64
}

// newCrasher reads a point and, after a colon, the number of the passage (1).
func newCrasher(text string) (*crasher, error) {
	c := &crasher{}
	if text == "" {
		return c, nil
	}
	name, count, counted := strings.Cut(text, ":")
	n := int64(1)
	if counted {
		var err error
		if n, err = strconv.ParseInt(count, 10, 64); err != nil || n < 1 {
			return nil, fmt.Errorf("crash point %q: the passage is a number from 1", text)
		}
	}
	if c.point = crashPoint(name); !slices.Contains(crashPoints(), c.point) {
		return nil, fmt.Errorf("crash point %q: there are %v", text, crashPoints())
	}
	c.left.Store(n)
	return c, nil
}

// at is where the process may die.
func (c *crasher) at(point crashPoint) {
	if c.point != point || c.left.Add(-1) != 0 {
		return
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {} // until the signal is there
}

// provider and ledger are what the points stand around; without a point they are
// what they were.
func (c *crasher) provider(p sandbox.Provider) sandbox.Provider {
	if c.point == "" {
		return p
	}
	return crashingProvider{p, c}
}

func (c *crasher) ledger(l leasepool.Ledger) leasepool.Ledger {
	if c.point == "" || l == nil {
		return l
	}
	return crashingLedger{l, c}
}

func (c *crasher) quarantiner(q leasepool.Quarantiner) leasepool.Quarantiner {
	if c.point == "" {
		return q
	}
	return crashingQuarantiner{q, c}
}

type crashingLedger struct {
	leasepool.Ledger
	c *crasher
}

func (l crashingLedger) Intend(ctx context.Context, h sandbox.Handle, profile string) error {
	err := l.Ledger.Intend(ctx, h, profile)
	if err == nil {
		l.c.at(crashAfterIntent)
	}
	return err
}

func (l crashingLedger) Confirm(ctx context.Context, h sandbox.Handle) error {
	err := l.Ledger.Confirm(ctx, h)
	if err == nil {
		l.c.at(crashAfterConfirm)
	}
	return err
}

type crashingQuarantiner struct {
	leasepool.Quarantiner
	c *crasher
}

func (q crashingQuarantiner) Quarantine(ctx context.Context, r leasepool.Record) error {
	q.c.at(crashBeforeQuarantine)
	err := q.Quarantiner.Quarantine(ctx, r)
	if err == nil {
		q.c.at(crashAfterQuarantine)
	}
	return err
}

type crashingProvider struct {
	sandbox.Provider
	c *crasher
}

func (p crashingProvider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	box, err := p.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	p.c.at(crashAfterCreate)
	return crashingSandbox{box, p.c}, nil
}

// Destroy is the reaper's way to a sandbox; the pool's is the sandbox's own.
func (p crashingProvider) Destroy(ctx context.Context, h sandbox.Handle) (sandbox.Proof, error) {
	p.c.at(crashBeforeDestroy)
	proof, err := p.Provider.Destroy(ctx, h)
	if err == nil {
		p.c.at(crashAfterDestroy)
	}
	return proof, err
}

type crashingSandbox struct {
	sandbox.Sandbox
	c *crasher
}

func (s crashingSandbox) Prepare(ctx context.Context, process sandbox.Process, sink sandbox.Sink) (sandbox.Run, error) {
	run, err := s.Sandbox.Prepare(ctx, process, sink)
	if err != nil {
		return nil, err
	}
	return crashingRun{run, s.c}, nil
}

type crashingRun struct {
	sandbox.Run
	c *crasher
}

func (r crashingRun) Open(ctx context.Context) error {
	err := r.Run.Open(ctx)
	if err == nil {
		r.c.at(crashAfterStart)
	}
	return err
}

// Wait looks now and then whether the leader's end is known before the proof is.
func (r crashingRun) Wait(ctx context.Context) (sandbox.End, error) {
	const look = 20 * time.Millisecond
	for {
		short, cancel := context.WithTimeout(ctx, look)
		end, err := r.Run.Wait(short)
		late := err != nil && short.Err() != nil && ctx.Err() == nil
		cancel()
		if end.Exit != nil && !end.Proof.Proven {
			r.c.at(crashAfterExit)
		}
		if !late || !errors.Is(err, context.DeadlineExceeded) {
			if end.Proof.Proven {
				r.c.at(crashAfterProof)
			}
			return end, err
		}
	}
}
