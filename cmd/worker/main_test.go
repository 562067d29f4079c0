package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sallyport/sallyport/internal/wire"
)

// asSallyport in the environment makes this test binary the program itself.
const asSallyport = "TEST_AS_SALLYPORT"

func TestMain(m *testing.M) {
	if os.Getenv(asSallyport) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// patience is far above what a loaded machine needs, so that only a hang meets it.
const patience = 60 * time.Second

// buffer is written to by a service while the test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

type printed struct {
	code           int
	stdout, stderr string
}

// sallyport runs one command to its end.
func sallyport(t *testing.T, args ...string) printed {
	t.Helper()
	return withInput(t, "", args...)
}

func withInput(t *testing.T, stdin string, args ...string) printed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return command1(ctx, stdin, nil, args...)
}

func command1(ctx context.Context, stdin string, environ []string, args ...string) printed {
	var stdout, stderr buffer
	code := execute(ctx, process{
		args: args, environ: environ, hurry: ctx,
		stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr,
	})
	return printed{code, stdout.String(), stderr.String()}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}} {
		p := sallyport(t, args...)
		require.Equal(t, exitOK, p.code, p.stderr)
		for _, command := range []string{
			"dev", "worker", "gateway", "reaper", "run", "submit", "tail", "status", "cancel", "quarantine ls", "quarantine show",
			"dead ls", "dead show", "workers", "streams apply", "streams print", "streams check", "doctor", "config print", "version",
		} {
			require.Regexp(t, `(?m)^  `+command+` `, p.stdout)
		}
		require.NotContains(t, p.stdout, "demo")
	}
}

// The flags that other documents name.
func TestFixedFlags(t *testing.T) {
	for command, flags := range map[string][]string{
		"dev":    {"--state-dir", "--listen", "--http", "--slots", "--drain", "--config", "--log-level", "--require"},
		"worker": {"--state-dir", "--http", "--slots", "--drain", "--config", "--log-level", "--require", "--server", "--context", "--creds", "--queues", "--fleet-slots", "--ack-wait", "--reply-allow"},
		"run": {
			"--tenant", "--queue", "--profile", "--id", "--env", "--cwd", "--stdin", "--wall", "--grace", "--cpu", "--memory",
			"--pids", "--output-bytes", "--retry-if-lost", "--json", "--server",
		},
	} {
		p := sallyport(t, command, "--help")
		require.Equal(t, exitOK, p.code)
		for _, flag := range flags {
			require.Regexp(t, flag+`(=|\s)`, p.stdout, command)
		}
	}
}

func TestMistakesOfUse(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("slosts: 1\ndrain: soon\n"), 0o600))
	for name, c := range map[string]struct {
		args    []string
		environ []string
		want    []string
	}{
		"unknown command":    {args: []string{"wroker"}, want: []string{"wroker", `"worker"`}},
		"unknown flag":       {args: []string{"run", "--walll", "1s", "--", "x"}, want: []string{"--walll", "(see sallyport run --help)"}},
		"nobody named":       {args: []string{"quarantine", "hold"}, want: []string{"<lease>", "(see sallyport quarantine hold --help)"}},
		"nothing to run":     {args: []string{"run"}, want: []string{"argv"}},
		"settings":           {args: []string{"worker", "--slots", "-1", "--drain", "soon"}, want: []string{"flag --slots", `"-1"`, "flag --drain", `"soon"`}},
		"file":               {args: []string{"worker", "--config", file}, want: []string{"c.yaml:1: unknown key slosts; did you mean slots?", "c.yaml:2: drain"}},
		"missing file":       {args: []string{"worker", "--config", file + ".none"}, want: []string{"no such file"}},
		"environment":        {args: []string{"worker"}, environ: []string{"SALLYPORT_SLOTS=x"}, want: []string{"environment SALLYPORT_SLOTS"}},
		"limits":             {args: []string{"run", "--wall", "soon", "--memory", "1GB", "--env", "=x", "--", "x"}, want: []string{"--wall", "--memory", "--env"}},
		"stdin":              {args: []string{"run", "--stdin", file + ".none", "--", "x"}, want: []string{"--stdin", "no such file"}},
		"name":               {args: []string{"streams", "print", "--queues", "a.b"}, want: []string{`"a.b"`}},
		"creds not there":    {args: []string{"run", "--context", "no-such-context", "--", "x"}, want: []string{"no-such-context"}},
		"two ways to log in": {args: []string{"status", "--user", "a", "--token", "b", "x"}, want: []string{"choose one way to log in"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := command1(t.Context(), "", c.environ, c.args...)
			require.NotContains(t, []int{exitOK, exitFailure, exitConnect, exitRefused}, p.code, p.stderr)
			for _, want := range c.want {
				require.Contains(t, p.stderr, want)
			}
			require.Empty(t, p.stdout)
		})
	}
}

func TestWithoutServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	server := "nats://" + l.Addr().String()
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"worker":     {[]string{"worker", "--state-dir", t.TempDir()}, exitConnect},
		"streams":    {[]string{"streams", "check"}, exitConnect},
		"quarantine": {[]string{"quarantine", "ls"}, exitConnect},
		"status":     {[]string{"status", "x"}, exitConnect},
		"run":        {[]string{"run", "true"}, wire.ExitNotStarted},
	} {
		t.Run(name, func(t *testing.T) {
			words := append(slices.Clip(c.args), "--server", server)
			if name == "run" {
				words = []string{"run", "--server", server, "--", "true"}
			}
			p := sallyport(t, words...)
			require.Equal(t, c.code, p.code, p.stderr)
			require.Contains(t, p.stderr, "--server")
			require.Contains(t, p.stderr, l.Addr().String())
		})
	}
}

func TestPrints(t *testing.T) {
	p := sallyport(t, "streams", "print", "--queues", "fast:2,slow", "--stream-prefix", "X")
	require.Equal(t, exitOK, p.code, p.stderr)
	require.True(t, json.Valid([]byte(p.stdout)), p.stdout)
	for _, text := range []string{"X_JOBS", "w-fast", "w-slow"} {
		require.Contains(t, p.stdout, text)
	}
	p = command1(t.Context(), "", []string{"SALLYPORT_USER=ada", "SALLYPORT_PASSWORD=hunter2"}, "config", "print", "--slots", "7")
	require.Equal(t, exitOK, p.code, p.stderr)
	require.Contains(t, p.stdout, "slots: 7\n")
	require.Contains(t, p.stdout, "user: ada\n")
	require.NotContains(t, p.stdout, "hunter2")
	p = sallyport(t, "config", "print", "--dev", "--json")
	require.True(t, json.Valid([]byte(p.stdout)), p.stdout)
	require.Contains(t, p.stdout, `"fake"`)
	p = sallyport(t, "version")
	require.Regexp(t, regexp.MustCompile(`^\d+\.\d+\.\d+\S*\n$`), p.stdout)
	p = sallyport(t, "version", "--json")
	require.Contains(t, p.stdout, `{"version":"`)
}

// dev starts the dev command over the fake provider and returns its address.
func dev(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("profiles: {default: {provider: fake}}\n"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	var stdout, stderr buffer
	done := make(chan int, 1)
	go func() {
		done <- execute(ctx, process{
			args:  []string{"dev", "--config", file, "--listen", "127.0.0.1:0", "--state-dir", dir, "--slots", "2"},
			hurry: ctx, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr,
		})
	}()
	t.Cleanup(func() {
		stop()
		require.Equal(t, exitOK, <-done, stderr.String())
	})
	require.Eventually(t, func() bool { return strings.Contains(stdout.String(), "Ctrl-C ends it.") }, patience, 10*time.Millisecond, "%s", &stderr)
	match := regexp.MustCompile(`NATS at (nats://\S+),`).FindStringSubmatch(stdout.String())
	require.NotNil(t, match, stdout.String())
	require.Contains(t, stdout.String(), "sallyport run --server "+match[1]+" -- echo hello")
	require.Contains(t, stdout.String(), "nats req --server "+match[1]+" exec.submit.default.default")
	return match[1]
}

func TestJobsThroughDev(t *testing.T) {
	t.Parallel()
	url := dev(t)
	t.Run("run", func(t *testing.T) {
		p := sallyport(t, "run", "--server", url, "--", "fake", "print:out", "err:bad", "exit:7")
		require.Equal(t, printed{7, "out\n", "bad\n"}, p)
		p = sallyport(t, "run", "--server", url, "fake", "print:--json", "signal:9")
		require.Equal(t, 137, p.code, p.stderr)
		require.Equal(t, "--json\n", p.stdout)
		require.Contains(t, p.stderr, "signaled, signal SIGKILL")
		p = withInput(t, "from here", "run", "--server", url, "--stdin", "-", "--", "fake", "cat")
		require.Equal(t, printed{0, "from here", ""}, p)
		p = withInput(t, "\xff\x00", "run", "--server", url, "--stdin", "-", "--", "fake", "cat")
		require.Equal(t, printed{0, "\xff\x00", ""}, p)
		p = sallyport(t, "run", "--server", url, "--env", "A=b=c,d", "--", "fake", "env:A")
		require.Equal(t, printed{0, "b=c,d\n", ""}, p)
		p = sallyport(t, "run", "--server", url, "--wall", "200ms", "--grace", "100ms", "--", "fake", "forever")
		require.Equal(t, wire.ExitTimedOut, p.code)
		require.Contains(t, p.stderr, "timed_out")
		p = sallyport(t, "run", "--server", url, "--", "nosuch")
		require.Equal(t, wire.ExitNotFound, p.code)
		p = sallyport(t, "run", "--server", url, "--profile", "nosuch", "--", "x")
		require.Equal(t, wire.ExitInvalid, p.code)
		require.Contains(t, p.stderr, "nosuch")
		p = sallyport(t, "run", "--server", url, "--wall", "2h", "--", "x")
		require.Equal(t, wire.ExitInvalid, p.code)
		require.Contains(t, p.stderr, "limits.wall_ms")
	})
	t.Run("workers", func(t *testing.T) {
		p := sallyport(t, "workers", "--server", url)
		require.Equal(t, exitOK, p.code, p.stderr)
		// The entry is as old as its last writing, when a job above may have run.
		require.Regexp(t, `(?m)^\S+ +\S+ +\S+ +[01] of 2 +none +- +\S+ ago +`, p.stdout)
		p = sallyport(t, "workers", "--server", url, "--json")
		require.Equal(t, exitOK, p.code, p.stderr)
		require.Regexp(t, `"slots":2,"running":[01],`, p.stdout)
		require.Equal(t, 1, strings.Count(p.stdout, "\n"))
	})
	t.Run("run --json", func(t *testing.T) {
		p := sallyport(t, "run", "--server", url, "--json", "--meta", "k=v", "--", "fake", "print:<out>", "exit:2")
		require.Equal(t, 2, p.code)
		result, err := wire.DecodeResult([]byte(strings.TrimSpace(p.stdout)))
		require.NoError(t, err)
		require.Equal(t, "<out>\n", result.Stdout.Data)
		require.Equal(t, "v", result.Meta["k"])
		require.Empty(t, p.stderr)
	})
	t.Run("submit, tail, status", func(t *testing.T) {
		p := sallyport(t, "submit", "--server", url, "--id", "one", "--json", "--", "fake", "print:stored", "err:too")
		require.Equal(t, exitOK, p.code, p.stderr)
		require.JSONEq(t, `{"v":1,"tenant":"default","queue":"default","id":"one"}`, p.stdout)
		p = sallyport(t, "tail", "--server", url, "one")
		require.Equal(t, printed{0, "stored\n", "too\n"}, p)
		p = sallyport(t, "tail", "--server", url, "--json", "one")
		var events []string
		for text := range strings.Lines(p.stdout) {
			var l line
			require.NoError(t, json.Unmarshal([]byte(text), &l), text)
			events = append(events, string(l.Event)+l.Text)
		}
		require.ElementsMatch(t, []string{"started", "stdoutstored\n", "stderrtoo\n", "result"}, events, "the two streams have no order between them")
		require.Equal(t, "started", events[0])
		require.Equal(t, "result", events[3])
		p = sallyport(t, "status", "--server", url, "one")
		require.Contains(t, p.stdout, "default.one done: exited, exit code 0")
		p = sallyport(t, "status", "--server", url, "none")
		require.Equal(t, exitFailure, p.code)
		require.Contains(t, p.stdout, "unknown")
		p = sallyport(t, "tail", "--server", url, "none")
		require.Equal(t, exitFailure, p.code)
	})
	t.Run("the first signal cancels", func(t *testing.T) {
		ctx, signal := context.WithCancel(t.Context())
		var stdout, stderr buffer
		done := make(chan int, 1)
		go func() {
			done <- execute(ctx, process{
				args:  []string{"run", "--server", url, "--id", "long", "--", "fake", "print:up", "forever"},
				hurry: t.Context(), stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr,
			})
		}()
		require.Eventually(t, func() bool { return stdout.String() == "up\n" }, patience, 5*time.Millisecond)
		p := sallyport(t, "status", "--server", url, "long")
		require.Contains(t, p.stdout, "default.long running: attempt 1 on ")
		signal()
		require.Equal(t, wire.ExitCancelled, <-done, stderr.String())
		require.Contains(t, stderr.String(), "cancelled")
	})
	t.Run("the second signal waits no longer", func(t *testing.T) {
		ctx, signal := context.WithCancel(t.Context())
		hurry, again := context.WithCancel(t.Context())
		var stdout, stderr buffer
		done := make(chan int, 1)
		go func() {
			done <- execute(ctx, process{
				args:  []string{"run", "--server", url, "--id", "stubborn", "--grace", "5s", "--", "fake", "print:up", "ignore-term", "forever"},
				hurry: hurry, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr,
			})
		}()
		require.Eventually(t, func() bool { return stdout.String() == "up\n" }, patience, 5*time.Millisecond)
		signal()
		again()
		require.Equal(t, wire.ExitLost, <-done, stderr.String())
		require.Contains(t, stderr.String(), "sallyport status stubborn")
	})
	t.Run("a reader that goes away cancels", func(t *testing.T) {
		var stderr buffer
		code := execute(t.Context(), process{
			args:  []string{"run", "--server", url, "--id", "unread", "--", "fake", "print:up", "forever"},
			hurry: t.Context(), stdin: strings.NewReader(""), stdout: broken{}, stderr: &stderr,
		})
		require.Equal(t, 128+int(syscall.SIGPIPE), code, stderr.String())
		require.Empty(t, stderr.String())
		require.Eventually(t, func() bool {
			return strings.Contains(sallyport(t, "status", "--server", url, "unread").stdout, "cancelled")
		}, patience, 50*time.Millisecond)
	})
	t.Run("cancel", func(t *testing.T) {
		require.Equal(t, exitOK, sallyport(t, "submit", "--server", url, "--id", "endless", "--", "fake", "forever").code)
		p := sallyport(t, "cancel", "--server", url, "endless")
		require.Equal(t, exitOK, p.code, p.stderr)
		require.Equal(t, exitOK, sallyport(t, "tail", "--server", url, "endless").code)
		p = sallyport(t, "status", "--server", url, "--json", "endless")
		require.Contains(t, p.stdout, `"outcome":"cancelled"`)
		require.Equal(t, exitFailure, sallyport(t, "cancel", "--server", url, "none").code)
	})
	t.Run("quarantine and dead letters", func(t *testing.T) {
		require.Contains(t, sallyport(t, "quarantine", "ls", "--server", url).stdout, "nothing in quarantine")
		p := sallyport(t, "run", "--server", url, "--json", "--wall", "100ms", "--grace", "10ms", "--", "fake", "forever", "terminate:unproven", "destroy:never")
		result, err := wire.DecodeResult([]byte(strings.TrimSpace(p.stdout)))
		require.NoError(t, err, p.stdout+p.stderr)
		require.Equal(t, wire.Quarantined, result.Lease.Disposition)
		require.Eventually(t, func() bool {
			return strings.Contains(sallyport(t, "quarantine", "ls", "--server", url).stdout, result.Lease.ID)
		}, patience, 50*time.Millisecond)
		p = sallyport(t, "quarantine", "show", "--server", url, result.Lease.ID)
		require.Equal(t, exitOK, p.code, p.stderr)
		require.Contains(t, p.stdout, `"reason": "unproven"`)
		p = sallyport(t, "quarantine", "ls", "--json", "--server", url)
		require.True(t, json.Valid([]byte(p.stdout)), p.stdout)
		p = sallyport(t, "quarantine", "show", "--server", url, "none")
		require.Equal(t, exitFailure, p.code)
		require.Contains(t, sallyport(t, "dead", "ls", "--server", url).stdout, "no dead letters")
		p = sallyport(t, "dead", "show", "--server", url, "none")
		require.Contains(t, p.stderr, "no dead letter of job default.none")
		p = sallyport(t, "run", "--server", url, "--", "fake", "print:up", "open:ambiguous")
		require.Equal(t, wire.ExitLost, p.code)
		require.Contains(t, p.stderr, "output is missing: nobody knows whether the program was started")
		require.Contains(t, p.stderr, "lost (ambiguous_start), output incomplete")
	})
	t.Run("streams", func(t *testing.T) {
		require.Equal(t, exitOK, sallyport(t, "streams", "check", "--server", url).code)
		p := sallyport(t, "streams", "check", "--server", url, "--queues", "default,extra")
		require.Equal(t, exitRefused, p.code)
		require.Contains(t, p.stdout, "w-extra")
		p = sallyport(t, "streams", "check", "--json", "--server", url, "--queues", "default,extra")
		require.Equal(t, exitRefused, p.code)
		require.True(t, json.Valid([]byte(p.stdout)), p.stdout)
		p = sallyport(t, "streams", "apply", "--server", url, "--queues", "default,extra")
		require.Equal(t, exitOK, p.code, p.stderr)
		require.Contains(t, p.stdout, "w-extra: created")
		require.Equal(t, exitOK, sallyport(t, "streams", "check", "--server", url, "--queues", "default,extra").code)
	})
}

// broken is a pipe that nobody reads.
type broken struct{}

// Write implements io.Writer.
func (broken) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

// The demo is the product's own check of its whole path, with real sandboxes.
func TestDemo(t *testing.T) {
	t.Parallel()
	p := sallyport(t, "demo")
	require.Equal(t, exitOK, p.code, p.stdout+p.stderr)
	require.NotContains(t, p.stdout, "WRONG")
	require.Contains(t, p.stdout, "destroyed by the reaper after 3 tries")
}

func TestDoctor(t *testing.T) {
	url := dev(t)
	p := sallyport(t, "doctor", "--server", url, "--require", "namespaces")
	require.Equal(t, exitOK, p.code, p.stdout+p.stderr)
	for _, text := range []string{
		"kernel", "control groups", "isolation level", "enforced by a program that ran in one", "system-call filter", "memory limit",
		"profile default", "streams", "as planned",
	} {
		require.Contains(t, p.stdout, text)
	}
	p = sallyport(t, "doctor", "--server", url, "--require", "namespaces,gpu")
	require.Equal(t, exitUsage, p.code)
	require.Contains(t, p.stderr, "namespaces, memory, cpu, pids, disk, cgroup-proof, uids")
	p = sallyport(t, "doctor", "--server", url, "--json", "--queues", "other")
	require.Equal(t, exitRefused, p.code)
	require.Contains(t, p.stdout, `"name":"streams","ok":false,"needed":true`)
}

// A host without user namespaces: the limit is per user namespace, so a process
// can take them from itself.
func TestWorkerWithoutIsolationSaysWhatToDo(t *testing.T) {
	url := dev(t)
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"`, "sh",
		self, "worker", "--server", url, "--state-dir", t.TempDir(), "--require", "namespaces")
	cmd.Env = []string{asSallyport + "=1", "PATH=" + os.Getenv("PATH")}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
	reason := "max_user_namespaces"
	if os.Geteuid() != 0 { // who may map one uid only has too few of them there
		ids[0].HostID, ids[0].Size = os.Geteuid(), 1
		reason = "uid_map"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitRefused, cmd.ProcessState.ExitCode(), "%s", out)
	require.Contains(t, string(out), "refusing to start")
	require.Contains(t, string(out), reason)
	require.Contains(t, string(out), "sallyport doctor")
}
