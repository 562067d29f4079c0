package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/config"
	"github.com/sallyport/sallyport/internal/daemon"
	"github.com/sallyport/sallyport/internal/wire"
)

type demoCommand struct {
	LogLevel string `default:"error" help:"Log level of the stack (error)." placeholder:"LEVEL"`
}

// Run starts a dev stack in a temporary directory, runs the stories through NATS
// as a client, and fails unless each went as it says.
func (c *demoCommand) Run(s *session) (err error) {
	const patience = 90 * time.Second // far above the stories' own limits
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	dir, err := os.MkdirTemp("", "sallyport-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg, err := config.Load(config.Sources{Dev: true, CPUs: runtime.NumCPU(), Flags: map[string]string{
		"state_dir": dir, "listen": "127.0.0.1:0", "log_level": c.LogLevel,
	}})
	if err != nil {
		return err
	}
	log, err := s.logger(cfg)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	serving, stop := context.WithCancel(ctx)
	ready := make(chan daemon.DevInfo, 1)
	group.Go(func() error {
		return daemon.RunDev(serving, serving, cfg, log, s.build(), func(d daemon.DevInfo) error {
			ready <- d
			return nil
		})
	})
	group.Go(func() error {
		defer stop()
		select {
		case d := <-ready:
			cfg.NATS.Server = d.URL
			return (&demo{session: s, cfg: cfg}).tell(ctx, d)
		case <-ctx.Done():
			return nil // the stack's own error says why
		}
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("%w (more with: sallyport demo --log-level debug)", err)
	}
	if left := children(); left != "" {
		return fmt.Errorf("the stack has stopped, and processes are left: %s", left)
	}
	return s.printf("\nThe stack has stopped, nothing is left. All of it went as expected.\n")
}

// printf writes to the standard output.
func (s *session) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(s.stdout, format, args...)
	return err
}

// demo tells the stories on a running stack.
type demo struct {
	*session

	cfg   *config.Config
	wrong int
	rows  [][]string
}

// story is one job and what must come of it.
type story struct {
	title   string
	request client.Request
	// check returns what is not as expected.
	check func(*ending) []string
}

// ending is what came of a story's job.
type ending struct {
	result         *client.Result
	stdout, stderr capture
	took           time.Duration
}

func (d *demo) tell(ctx context.Context, dev daemon.DevInfo) error {
	if err := d.printf("A stack of its own: NATS at %s, isolation %s\n", dev.URL, dev.Isolation); err != nil {
		return err
	}
	for _, missing := range dev.Missing {
		if err := d.printf("  not enforced here: %s\n", missing); err != nil {
			return err
		}
	}
	b, err := daemon.Connect(ctx, d.cfg, d.quiet(), "sallyport demo")
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := detached(ctx)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			d.warnf("%v", err)
		}
	}()
	cl, err := client.New(b.Control(), client.Config{Prefix: d.cfg.SubjectPrefix, Tenant: "demo"})
	if err != nil {
		return err
	}
	d.rows = [][]string{{"STORY", "OUTCOME", "OUTPUT", "WALL", "CPU", "MEMORY PEAK", "PROOF", "LEASE", "AS EXPECTED"}}
	marker := strconv.FormatInt(time.Now().UnixNano()%1e9+1e9, 10)
	for _, st := range stories(marker) {
		if err := d.play(ctx, cl, st, nil); err != nil {
			return fmt.Errorf("story %q: %w", st.title, err)
		}
	}
	st := doubtfulStory()
	if err := d.play(ctx, cl, st, func(e *ending) []string { return d.quarantine(ctx, b, e) }); err != nil {
		return fmt.Errorf("story %q: %w", st.title, err)
	}
	if err := d.printf("\n"); err != nil {
		return err
	}
	if err := d.table(d.rows, ""); err != nil {
		return err
	}
	if d.wrong > 0 {
		return fmt.Errorf("%d expectations did not hold", d.wrong)
	}
	return nil
}

// play runs one story and shows what came of it.
func (d *demo) play(ctx context.Context, cl *client.Client, st story, then func(*ending) []string) (err error) {
	if err := d.printf("\n── %s\n   request  %s\n", st.title, strings.Join(st.request.Argv, " ")); err != nil {
		return err
	}
	const patience = 20 * time.Second // far above the longest story's own limits
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	st.request.V, st.request.Output = wire.Version, wire.OutputReply
	job, err := cl.Submit(ctx, &st.request, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	e := &ending{}
	if e.result, err = job.Copy(ctx, &e.stdout, &e.stderr); err != nil {
		return fmt.Errorf("no result in %s: %w", time.Since(began).Round(time.Second), err)
	}
	e.took = time.Since(began)
	if err := d.show(e); err != nil {
		return err
	}
	wrong := st.check(e)
	for _, lost := range job.Lost() {
		wrong = append(wrong, fmt.Sprintf("events %d to %d did not arrive", lost.From, lost.To))
	}
	if then != nil {
		wrong = append(wrong, then(e)...)
	}
	verdict := "yes"
	for _, w := range wrong {
		verdict = "NO"
		if err := d.printf("   WRONG    %s\n", w); err != nil {
			return err
		}
	}
	d.wrong += len(wrong)
	d.row(st.title, e, verdict)
	return nil
}

// show prints what is known of a job's end.
func (d *demo) show(e *ending) error {
	r := e.result
	lines := [][2]string{{"stdout", e.stdout.String()}}
	if e.stderr.size > 0 {
		lines = append(lines, [2]string{"stderr", e.stderr.String()})
	}
	lines = append(lines, [2]string{"outcome", summary(r)}, [2]string{"usage", usage(r.Usage)})
	if c := r.Containment; c != nil {
		var evidence []string
		for _, ev := range c.Evidence {
			evidence = append(evidence, strings.TrimSuffix(ev.Kind+" ("+ev.Detail+")", " ()"))
		}
		if len(evidence) == 0 {
			evidence = []string{"no evidence"}
		}
		lines = append(lines, [2]string{"proof", fmt.Sprintf("%s, scope %s: %s", c.Verdict, c.Scope, strings.Join(evidence, " · "))})
	}
	if l := r.Lease; l != nil {
		lines = append(lines, [2]string{"lease", fmt.Sprintf("%s of provider %s, job %d in it, now %s", l.ID, l.Provider, l.Use, l.Disposition)})
	}
	t := r.Timing
	lines = append(lines, [2]string{"timing", fmt.Sprintf("queued %.1f ms · lease %.1f ms · set-up %.1f ms · run %.1f ms · proof %.1f ms · all %s",
		t.QueuedMS, t.LeaseMS, t.SetupMS, t.RunMS, t.ProofMS, e.took.Round(time.Millisecond))})
	for _, l := range lines {
		if err := d.printf("   %-8s %s\n", l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) row(title string, e *ending, verdict string) {
	r, wall, cpu, memory := e.result, "-", "-", "-"
	if u := r.Usage; u != nil {
		wall = fmt.Sprintf("%d ms", u.WallMS)
		cpu, memory = cpuTime(u), bytesText(u.MemoryPeakBytes)
	}
	proof, lease := "-", "-"
	if c := r.Containment; c != nil {
		proof = string(c.Verdict)
	}
	if l := r.Lease; l != nil {
		lease = string(l.Disposition)
	}
	output := fmt.Sprintf("%d bytes", e.stdout.size+e.stderr.size)
	d.rows = append(d.rows, []string{title, string(r.Outcome), output, wall, cpu, memory, proof, lease, verdict})
}

// stories are the jobs that end in proof. marker is in the daemon's argv, so that
// it can be looked for on the host.
func stories(marker string) []story {
	const flood = 64 << 20
	limit := int64(flood)
	wall, grace := int64(1000), int64(500)
	input := "some input\n"
	line := "sallyport demo\n"
	return []story{
		{
			"prints",
			client.Request{Argv: []string{"sh", "-c", "echo hello from the sandbox; echo and from stderr >&2"}},
			func(e *ending) []string {
				return append(e.exited(), e.printed("hello from the sandbox\n", "and from stderr\n")...)
			},
		},
		{
			"reads stdin",
			client.Request{Argv: []string{"tr", "a-z", "A-Z"}, Stdin: &input},
			func(e *ending) []string { return append(e.exited(), e.printed("SOME INPUT\n", "")...) },
		},
		{
			"times out",
			client.Request{Argv: []string{"sleep", "30"}, Limits: wire.Limits{WallMS: &wall, GraceMS: &grace}},
			func(e *ending) []string {
				wrong := e.ended(wire.TimedOut)
				if u := e.result.Usage; u == nil || u.WallMS < wall || u.WallMS > wall+grace+2000 {
					wrong = append(wrong, "the wall time is not near its limit")
				}
				return wrong
			},
		},
		{
			"leaves a daemon behind",
			client.Request{Argv: []string{"sh", "-c", "(setsid sleep " + marker + " </dev/null >/dev/null 2>&1 &) && echo main is done"}},
			func(e *ending) []string {
				wrong := append(e.exited(), e.printed("main is done\n", "")...)
				if pid := findProcess(marker); pid != "" {
					wrong = append(wrong, "the daemon lives on this host as process "+pid)
				}
				return wrong
			},
		},
		{
			"writes 64 MiB",
			client.Request{
				Argv:   []string{"sh", "-c", fmt.Sprintf("yes %s | head -c %d", strings.TrimSpace(line), flood)},
				Limits: wire.Limits{OutputBytes: &limit},
			},
			func(e *ending) []string {
				wrong := e.exited()
				if e.stdout.size != flood || !e.stdout.repeats(line) {
					wrong = append(wrong, fmt.Sprintf("the output is not %d bytes of the line", flood))
				}
				if o := e.result.Output; o.Truncated || o.StdoutBytes != flood || o.StdoutProduced != flood {
					wrong = append(wrong, "the result counts other bytes")
				}
				return wrong
			},
		},
	}
}

// doubtfulStory is a job of the fake provider whose end is never proven, in a
// sandbox that two tries cannot destroy.
func doubtfulStory() story {
	wall, grace := int64(300), int64(100)
	return story{
		"cannot be proven empty",
		client.Request{
			Argv:    []string{"fake", "print:working", "forever", "terminate:unproven", "destroy:unproven*2"},
			Profile: "fake", Limits: wire.Limits{WallMS: &wall, GraceMS: &grace},
		},
		func(e *ending) []string {
			wrong := e.printed("working\n", "")
			if e.result.Outcome != wire.TimedOut {
				wrong = append(wrong, fmt.Sprintf("outcome %s, not %s", e.result.Outcome, wire.TimedOut))
			}
			if !unproven(e.result) {
				wrong = append(wrong, "it was called proven")
			}
			if l := e.result.Lease; l == nil || l.Disposition != wire.Quarantined {
				wrong = append(wrong, "the lease is not quarantined")
			}
			return wrong
		},
	}
}

// quarantine follows the lease's record until the reaper has proven it gone.
func (d *demo) quarantine(ctx context.Context, b *bus.Bus, e *ending) []string {
	const patience, look = 30 * time.Second, 50 * time.Millisecond
	if e.result.Lease == nil {
		return []string{"the result names no lease"}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	var seen wire.QuarantineState
	for {
		list, err := b.Quarantines().List(ctx)
		if err != nil {
			return []string{"quarantine records: " + err.Error()}
		}
		for _, q := range list {
			r := q.Record
			if r.Lease != e.result.Lease.ID || r.State == seen {
				continue
			}
			seen = r.State
			if err := d.printf("   record   %s\n", quarantineLine(r)); err != nil {
				return []string{err.Error()}
			}
			if r.State == wire.Gone {
				return destroyedWrong(r)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return []string{fmt.Sprintf("the reaper has not destroyed it in %s (state %q)", patience, seen)}
		}
	}
}

func quarantineLine(r wire.Quarantine) string {
	text := fmt.Sprintf("%s: reason %s, owner %s", r.State, r.Reason, r.Worker)
	if r.State == wire.Gone {
		var kinds []string
		for _, ev := range r.Evidence {
			kinds = append(kinds, ev.Kind)
		}
		text = fmt.Sprintf("%s by the reaper after %d tries: %s", r.State, r.Attempts, strings.Join(kinds, " · "))
	}
	return text
}

// destroyedWrong says what a finished record lacks.
func destroyedWrong(r wire.Quarantine) []string {
	var wrong []string
	if len(r.Evidence) == 0 {
		wrong = append(wrong, "it is called destroyed without evidence")
	}
	if r.DestroyedAt == nil {
		wrong = append(wrong, "it is called destroyed without a time")
	}
	if r.Attempts < 2 {
		wrong = append(wrong, fmt.Sprintf("it was destroyed at try %d, although the first ones cannot work", r.Attempts))
	}
	return wrong
}

// ended says what is wrong with a job that must have outcome o and proof.
func (e *ending) ended(o wire.Outcome) []string {
	var wrong []string
	r := e.result
	if r.Outcome != o {
		wrong = append(wrong, fmt.Sprintf("outcome %s, not %s", r.Outcome, o))
	}
	if r.Containment == nil || r.Containment.Verdict != wire.Proven || len(r.Containment.Evidence) == 0 {
		wrong = append(wrong, "it is not proven that nothing is left")
	}
	if r.StartState != wire.StartYes {
		wrong = append(wrong, "start state "+string(r.StartState))
	}
	return wrong
}

func (e *ending) exited() []string {
	wrong := e.ended(wire.Exited)
	if c := e.result.ExitCode; c == nil || *c != 0 {
		wrong = append(wrong, "the exit code is not 0")
	}
	return wrong
}

func (e *ending) printed(stdout, stderr string) []string {
	var wrong []string
	if string(e.stdout.head) != stdout || string(e.stderr.head) != stderr {
		wrong = append(wrong, "the output is another one")
	}
	return wrong
}

// capture keeps the first bytes of a stream, counts all of them, and knows
// whether they repeat one line.
type capture struct {
	head []byte
	size int64
	line []byte
	same bool
}

// captureHead is enough to show, and for a whole first line.
const captureHead = 256

// Write implements io.Writer.
func (c *capture) Write(p []byte) (int, error) {
	if c.size == 0 {
		c.same = true
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			c.line = bytes.Clone(p[:i+1])
		}
	}
	c.head = append(c.head, p[:min(len(p), max(0, captureHead-len(c.head)))]...)
	for rest, at := p, c.size; c.same && len(rest) > 0 && len(c.line) > 0; {
		want := c.line[at%int64(len(c.line)):]
		n := min(len(want), len(rest))
		c.same = bytes.Equal(want[:n], rest[:n])
		rest, at = rest[n:], at+int64(n)
	}
	c.size += int64(len(p))
	return len(p), nil
}

// repeats says that everything was line again and again.
func (c *capture) repeats(line string) bool { return c.same && string(c.line) == line }

func (c *capture) String() string {
	if c.size > captureHead {
		return fmt.Sprintf("%s, beginning %q", bytesText(&c.size), c.line)
	}
	return fmt.Sprintf("%d bytes %q", c.size, c.head)
}

func usage(u *wire.Usage) string {
	if u == nil {
		return "not measured"
	}
	text := fmt.Sprintf("wall %d ms · CPU %s · memory peak %s", u.WallMS, cpuTime(u), bytesText(u.MemoryPeakBytes))
	if u.PidsPeak != nil {
		text += fmt.Sprintf(" · at most %d tasks", *u.PidsPeak)
	}
	if u.Source != "" {
		text += " (by " + u.Source + ")"
	}
	return text
}

func cpuTime(u *wire.Usage) string {
	if u.CPUUserUS == nil || u.CPUSystemUS == nil {
		return "not measured"
	}
	return fmt.Sprintf("%.1f ms", float64(*u.CPUUserUS+*u.CPUSystemUS)/1000)
}

func bytesText(n *int64) string {
	if n == nil {
		return "not measured"
	}
	return fmt.Sprintf("%.1f MiB", float64(*n)/(1<<20))
}

// children are the ids of this process's children, separated by spaces.
func children() string {
	files, err := filepath.Glob("/proc/self/task/[0-9]*/children")
	if err != nil {
		return err.Error()
	}
	var ids []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil { // a thread that has ended meanwhile has no children
			ids = append(ids, strings.Fields(string(data))...)
		}
	}
	return strings.Join(ids, " ")
}

// findProcess is the id of a process of this host whose command line has word in
// it, or "".
func findProcess(word string) string {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return ""
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err == nil && bytes.Contains(data, []byte(word)) {
			return filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}
