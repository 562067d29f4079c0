package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest"
	"github.com/sallyport/sallyport/internal/wire"
)

// remote is a stack whose sandboxes are a scripted CreateOS server's.
type remote struct {
	*stack
	api    *createostest.Server
	guests *guests
}

const (
	remoteKey = "the-key-of-this-account"
	// strangerKey is another account's.
	strangerKey = "the-key-of-somebody-else"
)

// remoteConfig is for a server that is near: everything else is as shipped.
const remoteConfig = `
ack_wait: 6s
epoch_bound: 2s
create_deadline: 3s
sweep_interval: 1s
fleet_slots: 512
reply_allow: ["_INBOX.>", "reply.{tenant}.>"]
createos_api_url: URL
createos_api_key: KEY
createos_shape: s-1vcpu-256mb
createos_pace: 100us
createos_poll: 20ms
createos_second_look: 300ms
createos_reconnect_delay: 20ms
createos_request_timeout: 4s
createos_cleanup_timeout: 2s
createos_idle_timeout: 1s
createos_timeout: 4s
profiles:
  default: {provider: createos, reuse: never, warm: 0}
  kept: {provider: createos, reuse: tenant, warm: 0}
  twice: {provider: createos, reuse: tenant, warm: 0, max_uses: 2}
`

// newRemote is a stack whose sandboxes run guests, functions of this process; change
// may give the server another backend.
func newRemote(t *testing.T, change ...func(*createostest.Config)) *remote {
	t.Helper()
	r := &remote{guests: newGuests()}
	config := createostest.Config{APIKey: remoteKey, MoreKeys: []string{strangerKey}, Backend: createostest.Programs(r.guests.boot), StrictParents: true}
	for _, c := range change {
		c(&config)
	}
	var err error
	r.api, err = createostest.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.api.Close()) })
	t.Cleanup(r.guests.letGo)
	require.NoError(t, r.api.Start(t.Context()))
	r.stack = newStack(t)
	r.configure(r.api.URL())
	r.apply()
	return r
}

// configure writes the configuration of the services that start from now on, with some
// words replaced by others.
func (r *remote) configure(url string, replaced ...string) {
	r.t.Helper()
	text := strings.NewReplacer(append(replaced, "URL", url, "KEY", remoteKey)...).Replace(remoteConfig)
	require.NoError(r.t, os.WriteFile(r.config, []byte(text), 0o600))
}

// with is the same for a subtest.
func (r *remote) with(t *testing.T) *remote {
	sub := *r
	sub.stack = r.on(t)
	return &sub
}

// reap starts the reaper of this stack and waits until it serves.
func (r *remote) reap() *service {
	r.t.Helper()
	reaper := r.reaper()
	reaper.waitReady()
	return reaper
}

// live are the names of the sandboxes that a worker made and that are still there.
func (r *remote) live() (names []string) {
	for _, b := range r.api.Sandboxes() {
		if b.Live() && !b.Planted {
			names = append(names, b.Name)
		}
	}
	return names
}

// ledger is the state of every entry and quarantine record, by its subject.
func (r *remote) ledger() map[string]string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	stream, err := r.js.Stream(ctx, "EXEC_LEDGER")
	require.NoError(r.t, err)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("exec.>"))
	require.NoError(r.t, err)
	states := map[string]string{}
	for subject := range info.State.Subjects {
		if strings.HasPrefix(subject, "exec.lease._worker.") {
			continue
		}
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		require.NoError(r.t, err)
		var record struct {
			State string `json:"state"`
		}
		require.NoError(r.t, json.Unmarshal(m.Data, &record))
		require.NotEmpty(r.t, record.State)
		states[subject] = record.State
	}
	return states
}

// unfinished are the entries and records that say nothing of an end.
func (r *remote) unfinished() map[string]string {
	r.t.Helper()
	left := r.ledger()
	maps.DeleteFunc(left, func(_, state string) bool { return state == string(wire.Gone) })
	return left
}

// accounted asserts that every sandbox that is left stands in quarantine.
func (r *remote) accounted() {
	r.t.Helper()
	records := slices.Collect(maps.Keys(r.unfinished()))
	for _, name := range r.live() {
		lease := strings.TrimPrefix(name, "sallyport-")
		require.True(r.t, slices.ContainsFunc(records, func(s string) bool {
			return strings.HasPrefix(s, "exec.quarantine.createos.") && strings.HasSuffix(s, "."+lease)
		}), "sandbox %s is neither destroyed nor in quarantine: %v", name, records)
	}
}

// balanced waits until nothing of ours is left at the service and in the books.
func (r *remote) balanced() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return len(r.live()) == 0 && len(r.unfinished()) == 0 }, patience, 50*time.Millisecond,
		"the books do not balance: %v", r.unfinished)
	require.Empty(r.t, r.live())
}

// boxOf waits for the job's program and is the sandbox in which it runs.
func (r *remote) boxOf(id string) (box string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		if r.guests.runs(id) == 0 {
			return false
		}
		for _, p := range r.api.LiveProcesses() {
			if slices.Contains(p.Argv, "job:"+id) {
				box = p.Sandbox
			}
		}
		return box != ""
	}, patience, 5*time.Millisecond, "job %s does not run", id)
	return box
}

// at has the calls of one sandbox meet something, as often as times says (-1: always).
func (r *remote) at(box string, op createostest.Op, times int, then ...createostest.Action) {
	r.api.Script(createostest.Rule{Op: op, Times: times, Then: then, When: func(c createostest.Call) bool { return c.Sandbox == box }})
}

// calls are those of one sandbox.
func (r *remote) calls(box string, ops ...createostest.Op) (calls []createostest.Call) {
	for _, c := range r.api.Calls(ops...) {
		if c.Sandbox == box {
			calls = append(calls, c)
		}
	}
	return calls
}

// guest is a request for a guest's steps.
func (r *remote) guest(id, profile string, wall, grace int64, steps ...string) wire.Request {
	return wire.Request{
		Profile: profile, Argv: append([]string{"guest", "job:" + id}, steps...),
		Limits: wire.Limits{WallMS: &wall, GraceMS: &grace},
	}
}

// guests are the programs of a server's sandboxes, of which none is a process. They
// do what our scripts do there, and then their own steps:
//
//	job:ID       counts a run of the job
//	lines:N      N pieces of output, on both streams in turn
//	flood:N      N KiB of output
//	await:NAME   until the test opens NAME
//	forever      until a signal
//	trap:MS      from a signal on, that long, then a word and exit 0
//	stuck        no signal ends it: until the test opens ID of its job
//	leave        leaves a child that only a signal ends
//	exit:N
type guests struct {
	mu    sync.Mutex
	ran   map[string]int
	gates map[string]chan struct{}
	// free is closed at the test's end.
	free chan struct{}
	once sync.Once
}

func newGuests() *guests {
	return &guests{ran: map[string]int{}, gates: map[string]chan struct{}{}, free: make(chan struct{})}
}

func (g *guests) letGo() { g.once.Do(func() { close(g.free) }) }

// runs is how often the program of a job began.
func (g *guests) runs(id string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ran[id]
}

func (g *guests) gate(name string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gates[name] == nil {
		g.gates[name] = make(chan struct{})
	}
	return g.gates[name]
}

// open lets all go on that wait for the name.
func (g *guests) open(name string) { close(g.gate(name)) }

// boot is every program in the sandboxes.
func (g *guests) boot(ctx context.Context, p *createostest.Running) createostest.Exit {
	if p.Cmd != "/bin/bash" {
		for _, name := range p.Args { // rm -f -- …
			p.Remove(name)
		}
		return createostest.Exit{}
	}
	script, args := p.Args[1], p.Args[3:]
	if !strings.Contains(script, "say ready") {
		// The set-up, or the reset: workspace, our directory, marker.
		p.Write(args[1]+"/marker", []byte(args[2]))
		return createostest.Exit{}
	}
	nonce, base := args[0], args[1]
	say := func(to io.Writer, word string) { fmt.Fprintf(to, "%s %s\n", nonce, word) } //nolint:errcheck // never fails
	say(p.Stderr, "ready")
	if !p.Await(ctx, base+"-gate") {
		return createostest.Ended(ctx)
	}
	p.Remove(base + "-gate")
	say(p.Stdout, "start")
	say(p.Stderr, "start")
	environment, err := strconv.Atoi(args[8]) // there are no files before it
	if err != nil {
		return createostest.Exit{Code: 125}
	}
	return g.program(ctx, p, args[9+environment:])
}

// program does the steps.
func (g *guests) program(ctx context.Context, p *createostest.Running, argv []string) createostest.Exit {
	id := ""
	for _, step := range argv[1:] {
		word, arg, _ := strings.Cut(step, ":")
		n, _ := strconv.Atoi(arg) //nolint:errcheck // not every step has a number
		switch word {
		case "job":
			id = arg
			g.mu.Lock()
			g.ran[id]++
			g.mu.Unlock()
		case "lines":
			for i := range n {
				to := p.Stdout
				if i%2 == 1 {
					to = p.Stderr
				}
				fmt.Fprintf(to, "line %d of %s\n", i, id) //nolint:errcheck // never fails
			}
		case "flood":
			for i := range n {
				fmt.Fprintf(p.Stdout, "%1023d\n", i) //nolint:errcheck // never fails
			}
		case "await":
			select {
			case <-g.gate(arg):
			case <-ctx.Done():
				return createostest.Ended(ctx)
			case <-g.free:
			}
		case "forever":
			<-ctx.Done()
			return createostest.Ended(ctx)
		case "trap":
			<-ctx.Done()
			timer := time.NewTimer(time.Duration(n) * time.Millisecond)
			<-timer.C
			io.WriteString(p.Stdout, "saved\n") //nolint:errcheck // never fails
			return createostest.Exit{}
		case "stuck":
			select {
			case <-g.gate(id):
			case <-g.free:
			}
		case "leave":
			p.Leave(func(ctx context.Context) { <-ctx.Done() })
		case "exit":
			return createostest.Exit{Code: n}
		}
	}
	return createostest.Exit{}
}

// lines is what the step of that name writes.
func lines(id string, n int) (stdout, stderr string) {
	for i := range n {
		to := &stdout
		if i%2 == 1 {
			to = &stderr
		}
		*to += fmt.Sprintf("line %d of %s\n", i, id)
	}
	return stdout, stderr
}

// established counts the connections to a server, by the kernel's books.
func established(t *testing.T, url string) int {
	t.Helper()
	port, err := strconv.Atoi(url[strings.LastIndex(url, ":")+1:])
	require.NoError(t, err)
	table, err := os.ReadFile(filepath.Join("/proc/self/net", "tcp"))
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(table)) {
		words := strings.Fields(line)
		if len(words) > 3 && strings.HasSuffix(words[1], fmt.Sprintf(":%04X", port)) && words[3] == "01" {
			n++
		}
	}
	return n
}
