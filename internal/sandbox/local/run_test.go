package local_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

func TestExitCodesAndSignals(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		for _, code := range []int{0, 1, 2, 126, 127, 128, 137, 143, 255} {
			requireExit(t, code, run(t, box, shell("exit "+strconv.Itoa(code))))
		}
		for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGABRT, unix.SIGKILL, unix.SIGSEGV, unix.SIGPIPE, unix.SIGTERM, unix.SIGXCPU, 34, 64} {
			r := run(t, box, shell(fmt.Sprintf("kill -%d $$", sig)))
			require.Equal(t, sandbox.StartedYes, r.Started)
			require.Equal(t, &sandbox.Exit{Signal: int(sig)}, r.Exit)
			require.Zero(t, r.OOM)
		}
	})
}

func TestProofAndUsage(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		start := time.Now()
		r := run(t, box, command("/usr/bin/perl", "-e", "1 while times < 0.05"))
		requireExit(t, 0, r)
		var kinds []sandbox.EvidenceKind
		for _, e := range r.Proof.Evidence {
			require.NotEmpty(t, e.Detail)
			kinds = append(kinds, e.Kind)
		}
		want := []sandbox.EvidenceKind{sandbox.EvidencePidfd, sandbox.EvidenceReap}
		source := "rusage"
		if box.Isolation().Level == "namespaces+cgroup" {
			want, source = append(want, sandbox.EvidenceCgroup), "cgroup"
		}
		require.Equal(t, want, kinds)
		require.Contains(t, box.Isolation().Applied, "pids limit")
		require.Equal(t, source, r.Usage.Source)
		require.GreaterOrEqual(t, r.Usage.CPUUser+r.Usage.CPUSystem, 40*time.Millisecond)
		require.Positive(t, r.Usage.MemoryPeakBytes)
		require.WithinRange(t, r.EndedAt, start.Add(40*time.Millisecond), r.ProvenAt)
		require.WithinRange(t, r.ProvenAt, r.EndedAt, time.Now())
	})
}

func TestNotExecutable(t *testing.T) {
	p := provider(t, false)
	box := create(t, p)
	root := openDir(t)
	for name, file := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"plain": {"echo no\n", 0o644}, "noshebang": {"echo no\n", 0o755}, "badinterp": {"#!/no/such/interpreter\n", 0o755},
		"elf": {"\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\xff\xff" + strings.Repeat("\x00", 100), 0o755},
	} {
		require.NoError(t, os.WriteFile(root+"/"+name, []byte(file.content), file.mode))
		require.NoError(t, os.Chmod(root+"/"+name, file.mode))
	}
	files, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: root})
	require.NoError(t, err)
	for _, tt := range []struct {
		name    string
		box     sandbox.Sandbox
		process sandbox.Process
		want    sandbox.StartError
	}{
		{"no such name", box, command("nosuch"), sandbox.StartError{Reason: sandbox.StartNotFound, Errno: int(unix.ENOENT), Path: "nosuch"}},
		{"no such path", box, command("/no/such"), sandbox.StartError{Reason: sandbox.StartNotFound, Errno: int(unix.ENOENT), Path: "/no/such"}},
		{"below a file", box, command("/etc/passwd/x"), sandbox.StartError{Reason: sandbox.StartNotFound, Errno: int(unix.ENOENT), Path: "/etc/passwd/x"}},
		{"a directory", box, command("/tmp"), sandbox.StartError{Reason: sandbox.StartNotExecutable, Errno: int(unix.EACCES), Path: "/tmp"}},
		{"no execute bit", box, command("/etc/passwd"), sandbox.StartError{Reason: sandbox.StartNotExecutable, Errno: int(unix.EACCES), Path: "/etc/passwd"}},
		{"found but not executable", files, sandbox.Process{Argv: []string{"plain"}, Env: []string{"PATH=/nope:/"}}, sandbox.StartError{Reason: sandbox.StartNotExecutable, Errno: int(unix.EACCES), Path: "/plain"}},
		{"no #! line", files, command("/noshebang"), sandbox.StartError{Reason: sandbox.StartBadFormat, Errno: int(unix.ENOEXEC), Path: "/noshebang"}},
		{"missing interpreter", files, command("/badinterp"), sandbox.StartError{Reason: sandbox.StartBadInterpreter, Errno: int(unix.ENOENT), Path: "/badinterp"}},
		{"another machine's program", files, command("/elf"), sandbox.StartError{Reason: sandbox.StartBadFormat, Errno: int(unix.ENOEXEC), Path: "/elf"}},
		{"argument too long", box, command("/bin/echo", strings.Repeat("x", 128<<10)), sandbox.StartError{Reason: sandbox.StartTooBig, Errno: int(unix.E2BIG), Path: "/bin/echo"}},
		{"arguments too big", box, command(append([]string{"/bin/echo"}, slicesOf(strings.Repeat("x", 100<<10), 30)...)...), sandbox.StartError{Reason: sandbox.StartTooBig, Errno: int(unix.E2BIG), Path: "/bin/echo"}},
		{"no such directory", box, in("/no/such", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOENT), Path: "/no/such"}},
		{"directory is a file", box, in("/etc/passwd", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOTDIR), Path: "/etc/passwd"}},
		{"directory is closed", box, in("/etc/ssl/private", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOENT), Path: "/etc/ssl/private"}},
	} {
		r := run(t, tt.box, tt.process)
		require.Equal(t, sandbox.StartedNo, r.Started, tt.name)
		require.Nil(t, r.Exit, tt.name)
		require.Equal(t, &tt.want, r.StartError, tt.name)
		require.Empty(t, r.stdout+r.stderr, tt.name)
	}
	// The longest argument that the kernel takes.
	r := run(t, box, command("/bin/echo", "-n", strings.Repeat("x", 128<<10-1)))
	requireExit(t, 0, r)
	require.Len(t, r.stdout, 128<<10-1)
}

func slicesOf(s string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = s
	}
	return list
}

func in(cwd string, p sandbox.Process) sandbox.Process {
	p.Cwd = cwd
	return p
}

func TestRefusedProcesses(t *testing.T) {
	p := provider(t, false)
	box := create(t, p)
	for name, process := range map[string]sandbox.Process{
		"no argv":     {},
		"empty name":  command(""),
		"nul":         command("echo", "a\x00b"),
		"nul in env":  {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		"no name":     {Argv: []string{"true"}, Env: []string{"=x"}},
		"no value":    {Argv: []string{"true"}, Env: []string{"x"}},
		"cpu":         {Argv: []string{"true"}, Limits: sandbox.Limits{CPU: time.Second}},
		"memory":      {Argv: []string{"true"}, Limits: sandbox.Limits{MemoryBytes: 1 << 20}},
		"cpu share":   {Argv: []string{"true"}, Limits: sandbox.Limits{CPUShare: 50}},
		"open files":  {Argv: []string{"true"}, Limits: sandbox.Limits{OpenFiles: 1 << 30}},
		"17 MiB argv": command("echo", strings.Repeat("x", 17<<20)),
	} {
		_, err := box.Prepare(t.Context(), process, newRecorder())
		require.Error(t, err, name)
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err), "%s: %v", name, err)
	}
	for _, limit := range []string{"cpu_ms", "memory_bytes", "cpu_share"} {
		require.Contains(t, p.Capabilities().Unenforced[limit], "Delegate=yes")
	}
	requireExit(t, 0, run(t, box, command("/bin/true")))
}

func TestEnvironmentIsExact(t *testing.T) {
	t.Setenv("SALLYPORT_CANARY", "secret")
	box := create(t, provider(t, false))
	env := []string{"PATH=/usr/bin:/bin", "A=1", "B=two words", "A=again", "EMPTY="}
	r := run(t, box, sandbox.Process{Argv: []string{"/usr/bin/cat", "/proc/self/environ"}, Env: env})
	requireExit(t, 0, r)
	require.Equal(t, strings.Join(env, "\x00")+"\x00", r.stdout)
	r = run(t, box, sandbox.Process{Argv: []string{"/usr/bin/cat", "/proc/self/environ"}})
	requireExit(t, 0, r)
	require.Empty(t, r.stdout)
	r = run(t, box, shell("cat /proc/1/environ /proc/1/maps /proc/1/mem; ls /proc/1/fd /proc/1/cwd/ /proc/1/root/; readlink /proc/1/exe; true"))
	require.NotContains(t, r.stdout+r.stderr, "secret")
	require.Empty(t, r.stdout)
}

func TestProcessSettings(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	// A descriptor that the worker inherited without close-on-exec.
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Close(fd)) }()
	// Where the worker may, it has what jobs are not to inherit.
	for _, resource := range []int{unix.RLIMIT_RTPRIO, unix.RLIMIT_NICE} {
		var own unix.Rlimit
		require.NoError(t, unix.Getrlimit(resource, &own))
		if unix.Setrlimit(resource, &unix.Rlimit{Cur: 30, Max: 30}) == nil {
			defer func() { require.NoError(t, unix.Setrlimit(resource, &own)) }()
		}
	}
	var core unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_CORE, &core))
	dumps := min(core.Max, 1) // a worker that may have none cannot give one byte
	box := create(t, provider(t, false))
	r := run(t, box, shell(`cd /proc/self/fd && for f in *; do test -e $f && echo fd $f; done
		umask; ulimit -n; ulimit -c; cat /proc/self/oom_score_adj; pwd; hostname; id -u; id -g
		grep -E '^(SigBlk|SigIgn|CapPrm|CapEff|CapBnd|CapAmb|CapInh|NoNewPrivs)' /proc/self/status | tr '\t' ' '
		yes | head -1; cut -d' ' -f 7 /proc/self/stat
		grep -E 'core file|nice|realtime priority' /proc/self/limits | tr -s ' ' | sed 's/ [a-z]* $/ /'; echo >/dev/tty`))
	require.Equal(t, strings.Join([]string{
		"fd 0", "fd 1", "fd 2", "0022", "1024", "0", "1000", "/proc/self/fd", "sandbox", "1000", "1000",
		"SigBlk: 0000000000000000", "SigIgn: 0000000000000000",
		"CapInh: 0000000000000000", "CapPrm: 0000000000000000", "CapEff: 0000000000000000", "CapBnd: 0000000000000000", "CapAmb: 0000000000000000",
		"NoNewPrivs: 1", "y", "0",
		fmt.Sprintf("Max core file size %d %[1]d ", dumps), "Max nice priority 0 0 ", "Max realtime priority 0 0 ", "",
	}, "\n"), r.stdout)
	require.Contains(t, r.stderr, "/dev/tty")
}

func TestStdin(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		big := make([]byte, 8<<20)
		_, err := rand.Read(big)
		require.NoError(t, err)
		start := time.Now()
		r := run(t, box, withStdin(command("cat"), bytes.NewReader(big)))
		requireExit(t, 0, r)
		require.True(t, bytes.Equal(big, []byte(r.stdout)))
		t.Logf("8 MiB through cat in %v", time.Since(start))
		for _, size := range []int{0, 1, 65535, 65536, 65537, 1 << 20} {
			r = run(t, box, withStdin(command("cat"), bytes.NewReader(big[:size])))
			requireExit(t, 0, r)
			require.True(t, bytes.Equal(big[:size], []byte(r.stdout)), size)
		}
		requireExit(t, 0, run(t, box, withStdin(command("true"), bytes.NewReader(big))))
		r = run(t, box, withStdin(command("head", "-c", "1"), bytes.NewReader(big)))
		requireExit(t, 0, r)
		require.Equal(t, string(big[:1]), r.stdout)
		requireExit(t, 0, run(t, box, withStdin(shell("exec 0<&-; sleep 0.05; echo done"), bytes.NewReader(big))))
		r = run(t, box, command("cat"))
		requireExit(t, 0, r)
		require.Empty(t, r.stdout)
	})
}

func TestOutputIsExact(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		const size = 64 << 20
		counter := &countingSink{}
		r, err := box.Prepare(t.Context(), shell("head -c 67108864 /dev/zero; printf end >&2"), counter)
		require.NoError(t, err)
		start := time.Now()
		require.NoError(t, r.Open(t.Context()))
		end, err := r.Wait(t.Context())
		require.NoError(t, err)
		took := time.Since(start)
		require.Equal(t, &sandbox.Exit{}, end.Exit)
		require.Equal(t, size, counter.bytes[sandbox.Stdout])
		require.Equal(t, 3, counter.bytes[sandbox.Stderr])
		require.LessOrEqual(t, counter.largest, 256<<10)
		// A flood comes in large pieces.
		require.Less(t, counter.pieces, size/(16<<10))
		t.Logf("%d MiB/s in %d pieces", int(64/took.Seconds()), counter.pieces)
		require.NoError(t, box.Reset(t.Context()))

		all := run(t, box, command("/usr/bin/perl", "-e", `print pack("C*", 0..255) x 4`))
		require.Equal(t, strings.Repeat(allBytes(), 4), all.stdout)
	})
}

func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

type countingSink struct {
	mu              sync.Mutex
	bytes           [3]int
	pieces, largest int
}

func (c *countingSink) Write(stream sandbox.Stream, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes[stream] += len(p)
	c.pieces++
	c.largest = max(c.largest, len(p))
	return nil
}

func TestSmallOutputComesAtOnce(t *testing.T) {
	box := create(t, provider(t, false))
	r, rec := begin(t, box, withStdin(shell("printf 'prompt> '; read x; echo got $x"), &gated{release: make(chan struct{}), data: "answer\n"}))
	g := r
	select {
	case <-rec.seen:
	case <-time.After(patience):
		t.Fatal("the prompt did not come")
	}
	require.Equal(t, "prompt> ", rec.out())
	_, err := g.Terminate(t.Context(), 0)
	require.NoError(t, err)
	res := finish(t, box, r, rec)
	require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, res.Exit)
}

// gated is a reader whose data never comes until it is released.
type gated struct {
	release chan struct{}
	data    string
}

func (g *gated) Read([]byte) (int, error) {
	select {
	case <-g.release:
	case <-time.After(200 * time.Millisecond):
	}
	return 0, errors.New("no more")
}

func TestManyRunsAtOnce(t *testing.T) {
	p := provider(t, false)
	const leases, each = 16, 32
	var all sync.WaitGroup
	errs := make([]error, leases)
	for i := range leases {
		all.Go(func() {
			box, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease()})
			for n := 0; n < each && err == nil; n++ {
				err = exact(t.Context(), box, fmt.Sprintf("%d/%d", i, n), (i*each+n)%251)
			}
			errs[i] = err
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
}

// exact runs a job that writes 60,000 known bytes and exits with code, and leaves
// a process behind.
func exact(ctx context.Context, box sandbox.Sandbox, word string, code int) error {
	rec := newRecorder()
	script := fmt.Sprintf("(sleep 100 &); yes %s | head -c 60000; exit %d", word, code)
	r, err := box.Prepare(ctx, shell(script), rec)
	if err != nil {
		return err
	}
	if err := r.Open(ctx); err != nil {
		return err
	}
	end, err := r.Wait(ctx)
	if err != nil {
		return err
	}
	want := strings.Repeat(word+"\n", 60000/len(word)+1)[:60000]
	if rec.out() != want || end.Exit == nil || *end.Exit != (sandbox.Exit{Code: code}) || !end.Proof.Proven || !end.Leftover {
		return fmt.Errorf("job %s: %d bytes, end %+v", word, len(rec.out()), end)
	}
	return box.Reset(ctx)
}

func TestSinkRefuses(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		rec := newRecorder()
		rec.refuse = errors.New("enough")
		r, err := box.Prepare(t.Context(), shell("trap '' PIPE; yes; echo survived"), rec)
		require.NoError(t, err)
		require.NoError(t, r.Open(t.Context()))
		// Nobody reads any more, so the writer blocks and cannot end by itself.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = r.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		proof, err := r.Terminate(t.Context(), 0)
		require.NoError(t, err)
		require.True(t, proof.Proven)
		res := finish(t, box, r, rec)
		require.Equal(t, &sandbox.Exit{Signal: int(unix.SIGKILL)}, res.Exit)
		requireExit(t, 0, run(t, box, command("/bin/true")))
	})
}

func TestSlowSinkIsBackPressure(t *testing.T) {
	box := create(t, provider(t, false))
	slow := &slowSink{release: make(chan struct{})}
	r, err := box.Prepare(t.Context(), shell("head -c 8388608 /dev/zero"), slow)
	require.NoError(t, err)
	require.NoError(t, r.Open(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	end, err := r.Wait(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Nil(t, end.Exit)
	close(slow.release)
	end, err = r.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, &sandbox.Exit{}, end.Exit)
	require.Equal(t, 8<<20, slow.total)
}

type slowSink struct {
	release chan struct{}
	total   int
}

func (s *slowSink) Write(_ sandbox.Stream, p []byte) error {
	<-s.release
	s.total += len(p)
	return nil
}
