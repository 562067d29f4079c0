package local_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

func file(path, content string, mode fs.FileMode) sandbox.File {
	return sandbox.File{Path: path, Mode: mode, Content: strings.NewReader(content)}
}

func withFiles(p sandbox.Process, files ...sandbox.File) sandbox.Process {
	p.Files = files
	return p
}

// collect gives the content of each file, or why it was refused, and their order. A
// bound of spec that is 0 is one that no test meets by chance.
func collect(t testing.TB, r sandbox.Run, spec sandbox.CollectSpec) (map[string]string, []string, int) {
	t.Helper()
	content := map[string]string{}
	var order []string
	spec.MaxFiles = cmp.Or(spec.MaxFiles, 100)
	spec.MaxBytes = cmp.Or(spec.MaxBytes, 64<<20)
	spec.MaxFileBytes = cmp.Or(spec.MaxFileBytes, 1<<20)
	more, err := r.Collect(t.Context(), spec, func(f sandbox.Collected) error {
		order = append(order, f.Path)
		if f.Refused != "" {
			require.Nil(t, f.Content)
			content[f.Path] = "REFUSED " + f.Refused
			return nil
		}
		data, err := io.ReadAll(f.Content)
		require.NoError(t, err)
		require.Len(t, data, int(f.Size))
		content[f.Path] = string(data)
		return nil
	})
	require.NoError(t, err)
	return content, order, more
}

// ended starts a process and waits for its proven end, without a reset.
func ended(t testing.TB, box sandbox.Sandbox, process sandbox.Process) (sandbox.Run, result) {
	t.Helper()
	r, rec := begin(t, box, process)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	end, err := r.Wait(ctx)
	require.NoError(t, err)
	require.True(t, end.Proof.Proven)
	return r, result{end, rec.out(), rec.err()}
}

func TestFilesArePlaced(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		old := syscall.Umask(0o077)
		defer syscall.Umask(old)
		box := create(t, p)
		defer requireGone(t, box)
		big := strings.Repeat("0123456789abcdef", 64<<10)
		process := withFiles(shell(`set -e; stat -c '%n %a %u:%g %h' run.sh a a/b a/b/data empty ro; ./run.sh; cat a/b/data; wc -c <big; tail -c 20 big; echo; echo more >>a/b/data; touch a/b/new; mv a/b/data a/b/moved; id -u`),
			file("run.sh", "#!/bin/sh\necho ran\n", 0o755), file("a/b/data", "text ☃\n", 0), file("a/empty2", "", 0),
			file("empty", "", 0o600), file("ro", "x", 0o400), sandbox.File{Path: "big", Content: iotest.HalfReader(strings.NewReader(big))})
		r := run(t, box, process)
		requireExit(t, 0, r)
		require.Equal(t, "run.sh 755 1000:1000 1\na 755 1000:1000 3\na/b 755 1000:1000 2\na/b/data 644 1000:1000 1\nempty 600 1000:1000 1\nro 400 1000:1000 1\n"+
			"ran\ntext ☃\n1048576\ncdef0123456789abcdef\n1000\n", r.stdout)
		// The next job of this tenant sees none of it.
		r = run(t, box, shell("ls -A /workspace"))
		require.Empty(t, r.stdout)
	})
}

// What cannot be placed is refused, and leaves the sandbox as it was.
func TestFilesThatCannotBePlaced(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		defer requireGone(t, box)
		broken := errors.New("source broke")
		limits := sandbox.Limits{DiskBytes: 1 << 20, Inodes: 8}
		many := make([]sandbox.File, 20)
		for i := range many {
			many[i] = file(fmt.Sprint("f", i), "", 0)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for name, c := range map[string]struct {
			files []sandbox.File
			word  string
			begin func() context.Context
		}{
			"disk":            {[]sandbox.File{file("a", "fits", 0), file("b", strings.Repeat("x", 2<<20), 0)}, "disk_bytes", nil},
			"inodes":          {many, "inodes", nil},
			"twice":           {[]sandbox.File{file("a", "", 0), file("a", "", 0)}, "another file has this path", nil},
			"file as dir":     {[]sandbox.File{file("a", "", 0), file("a/b", "", 0)}, "another file is on its way", nil},
			"dir as file":     {[]sandbox.File{file("a/b", "", 0), file("a", "", 0)}, "another file has this path", nil},
			"source":          {[]sandbox.File{{Path: "a", Content: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))}}, "source broke", nil},
			"outside":         {[]sandbox.File{file("../a", "", 0)}, "below the workspace", nil},
			"absolute":        {[]sandbox.File{file("/etc/a", "", 0)}, "below the workspace", nil},
			"through the dir": {[]sandbox.File{file("a/../../b", "", 0)}, "below the workspace", nil},
			"the workspace":   {[]sandbox.File{file(".", "", 0)}, "below the workspace", nil},
			"setuid":          {[]sandbox.File{file("a", "", 0o755|fs.ModeSetuid)}, "permissions", nil},
			"long name":       {[]sandbox.File{file(strings.Repeat("n", 256), "", 0)}, "name too long", nil},
			"cancelled":       {[]sandbox.File{{Path: "a", Content: readerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })}}, "canceled", func() context.Context { return ctx }},
		} {
			t.Run(name, func(t *testing.T) {
				process := withFiles(shell("true"), c.files...)
				process.Limits = limits
				ctx := t.Context()
				if c.begin != nil {
					ctx = c.begin()
				}
				_, err := box.Prepare(ctx, process, newRecorder())
				require.ErrorContains(t, err, c.word)
				require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
				if name == "source" {
					require.ErrorIs(t, err, broken)
				}
				r := run(t, box, shell("ls -A /workspace"))
				requireExit(t, 0, r)
				require.Empty(t, r.stdout)
			})
		}
		cancel()
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A program that was just placed can be executed, although this process forks all
// the time (golang/go#22315): 200 jobs, 32 at once, in leases that come and go.
func TestPlacedProgramsAreNeverBusy(t *testing.T) {
	const jobs, atOnce = 200, 32
	p := provider(t, false)
	var all sync.WaitGroup
	next := make(chan int)
	failures := make(chan string, jobs)
	for range atOnce {
		all.Go(func() {
			for i := range next {
				failures <- placeAndRun(t.Context(), p, i)
			}
		})
	}
	for i := range jobs {
		next <- i
	}
	close(next)
	all.Wait()
	close(failures)
	for failure := range failures {
		require.Empty(t, failure)
	}
}

// placeAndRun runs one job in a lease of its own and says what went wrong.
func placeAndRun(ctx context.Context, p *local.Provider, i int) string {
	box, err := p.Create(ctx, sandbox.Spec{Lease: newLease()})
	if err != nil {
		return err.Error()
	}
	defer box.Destroy(ctx) //nolint:errcheck // the provider's Close proves it
	for n := range 2 {
		word := fmt.Sprint("job ", i, " ", n)
		rec := newRecorder()
		r, err := box.Prepare(ctx, withFiles(command("./job"), file("job", "#!/bin/sh\nls -A\necho "+word+"\n", 0o755)), rec)
		if err != nil {
			return err.Error()
		}
		if err := r.Open(ctx); err != nil {
			return err.Error()
		}
		end, err := r.Wait(ctx)
		if err != nil || end.StartError != nil || rec.out() != "job\n"+word+"\n" {
			return fmt.Sprintf("%v %+v %q", err, end.StartError, rec.out()+rec.err())
		}
		if err := box.Reset(ctx); err != nil {
			return err.Error()
		}
	}
	return ""
}

// tricks are what a job may leave instead of a file to make the worker read, or
// wait for, what it should not.
const tricks = `
ln -s /etc/shadow shadow
ln -s ../etc/passwd passwd
ln -s /proc/self/environ environ
ln -s /proc/1/root root
ln -s /proc/self/root selfroot
ln -s .. up
ln -s . loop
mkdir dir && ln -s .. dir/up && ln -s /etc dir/etc && echo inside >dir/file
ln -s dir linkdir
ln -s real tolink
mkfifo fifo
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")' 2>/dev/null || perl -MSocket -e 'socket(S,AF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un("sock"))'
mknod null c 1 3 2>/dev/null
ln /usr/bin/su su 2>/dev/null
echo real >real
echo twice >one; ln one two
truncate -s 60M sparse
truncate -s 100 hole
head -c 2000000 /dev/zero >big
mkdir d000 && echo x >d000/x && chmod 0 d000
echo secret >f000 && chmod 0 f000
printf x >"$(printf 'bad\377name')"
printf x >"$(printf 'new\nline')"
printf x >-rf
`

func TestCollect(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		defer requireGone(t, box)
		r, end := ended(t, box, shell(tricks+"ls -l >/dev/null"))
		requireExit(t, 0, end)
		const link = "REFUSED " + sandbox.RefusedSymlink
		got, order, more := collect(t, r, sandbox.CollectSpec{Patterns: []string{"*", "dir/**", "loop/**", "up/**", "root/etc/*", "d000/*", "absent", "fifo"}})
		require.Zero(t, more)
		want := map[string]string{
			"shadow": link, "passwd": link, "environ": link, "root": link, "selfroot": link, "up": link, "loop": link,
			"linkdir": link, "tolink": link, "dir/up": link, "dir/etc": link,
			"dir": "REFUSED " + sandbox.RefusedDirectory, "dir/file": "inside\n",
			"fifo": "REFUSED " + sandbox.RefusedSpecial, "sock": "REFUSED " + sandbox.RefusedSpecial,
			"real": "real\n", "one": "REFUSED " + sandbox.RefusedHardLink, "two": "REFUSED " + sandbox.RefusedHardLink,
			"sparse": "REFUSED " + sandbox.RefusedSize(60<<20, 1<<20), "hole": strings.Repeat("\x00", 100),
			"big":         "REFUSED " + sandbox.RefusedSize(2000000, 1<<20),
			"f000":        "REFUSED cannot be opened: permission denied",
			"bad\xffname": "x", "new\nline": "x", "-rf": "x",
		}
		// One reason for the directory's name, one for what is in it.
		require.Contains(t, []string{"REFUSED cannot be read: permission denied", "REFUSED " + sandbox.RefusedDirectory}, got["d000"])
		delete(got, "d000")
		require.Equal(t, want, got)
		again, sameOrder, _ := collect(t, r, sandbox.CollectSpec{Patterns: []string{"**"}})
		require.Equal(t, "real\n", again["real"])
		require.NotContains(t, again, "loop/loop")
		require.Subset(t, sameOrder, []string{"-rf", "dir/file", "real"})
		require.IsIncreasing(t, order[:3])

		require.NoError(t, box.Reset(t.Context()))
		_, err := r.Collect(t.Context(), sandbox.CollectSpec{Patterns: []string{"*"}, MaxFiles: 1}, func(sandbox.Collected) error { return nil })
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err), "%v", err)
	})
}

func TestCollectIsBounded(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		defer requireGone(t, box)
		r, end := ended(t, box, shell(`for i in $(seq 100 199); do printf %1000s x >f$i; done; mkdir -p deep; cd deep; i=0; while [ $i -lt 200 ]; do mkdir d && cd d; i=$((i+1)); done; echo x >bottom; cd /workspace
n=nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn; mkdir long; cd long; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do mkdir $n; cd $n; done; echo x >f`))
		requireExit(t, 0, end)
		got, order, more := collect(t, r, sandbox.CollectSpec{Patterns: []string{"f*"}, MaxFiles: 7})
		require.Equal(t, []string{"f100", "f101", "f102", "f103", "f104", "f105", "f106"}, order)
		require.Equal(t, 93, more)
		require.Len(t, got, 7)

		got, _, more = collect(t, r, sandbox.CollectSpec{Patterns: []string{"f*"}, MaxBytes: 2500, MaxFiles: 1000})
		require.Zero(t, more)
		require.Equal(t, "REFUSED "+sandbox.RefusedSize(1000, 500), got["f102"])
		require.Len(t, got["f101"], 1000)

		got, order, _ = collect(t, r, sandbox.CollectSpec{Patterns: []string{"deep/**", "long/**"}})
		require.Len(t, got, 2)
		require.Equal(t, "REFUSED "+sandbox.RefusedDeep, got[order[0]])
		require.Equal(t, "REFUSED "+sandbox.RefusedLong, got[order[1]])

		stop := errors.New("enough")
		_, err := r.Collect(t.Context(), sandbox.CollectSpec{Patterns: []string{"f*"}, MaxFiles: 9, MaxBytes: 1 << 20, MaxFileBytes: 1 << 20}, func(sandbox.Collected) error { return stop })
		require.ErrorIs(t, err, stop)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.Collect(ctx, sandbox.CollectSpec{Patterns: []string{"f*"}, MaxFiles: 9}, func(sandbox.Collected) error { return nil })
		require.ErrorIs(t, err, context.Canceled)
		_, err = r.Collect(t.Context(), sandbox.CollectSpec{Patterns: []string{"["}, MaxFiles: 9}, func(sandbox.Collected) error { return nil })
		require.Equal(t, sandbox.Refused, sandbox.KindOf(err))
		require.NoError(t, box.Reset(t.Context()))
	})
}

// Files that are renamed all the time, by processes that would go on for ever, are
// not read before the proof, and hold still after it.
func TestCollectHasNobodyToRace(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		box := create(t, p)
		defer requireGone(t, box)
		for range 5 {
			r, rec := begin(t, box, shell(`echo good >a; ln -s /etc/passwd b
(setsid sh -c 'while :; do mv -T a t; mv -T b a; mv -T t b; done' >/dev/null 2>&1 &) ; echo on; sleep 0.05`))
			<-rec.seen
			spec := sandbox.CollectSpec{Patterns: []string{"*"}, MaxFiles: 9, MaxBytes: 1 << 20, MaxFileBytes: 1 << 20}
			_, err := r.Collect(t.Context(), spec, func(sandbox.Collected) error { return errors.New("taken from a running job") })
			require.Equal(t, sandbox.Refused, sandbox.KindOf(err), "%v", err)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			end, err := r.Wait(ctx)
			cancel()
			require.NoError(t, err)
			require.True(t, end.Proof.Proven)
			require.True(t, end.Leftover, "the renaming process lived on")
			first, _, _ := collect(t, r, spec)
			for range 20 {
				again, _, _ := collect(t, r, spec)
				require.Equal(t, first, again, "nobody is left who could change it")
			}
			for _, content := range first {
				require.Contains(t, []string{"good\n", "REFUSED " + sandbox.RefusedSymlink}, content)
			}
			require.NoError(t, box.Reset(t.Context()))
		}
	})
}

// What the worker does with a job's files it does as the job's user, and it gives
// that up again.
func TestWorkerKeepsItsOwnUser(t *testing.T) {
	box := create(t, provider(t, false))
	defer requireGone(t, box)
	r, end := ended(t, box, withFiles(shell("cp in out"), file("in", "x", 0)))
	requireExit(t, 0, end)
	got, _, _ := collect(t, r, sandbox.CollectSpec{Patterns: []string{"out"}})
	require.Equal(t, "x", got["out"])
	require.NoError(t, box.Reset(t.Context()))
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue
		}
		require.NoError(t, err)
		for line := range strings.Lines(string(status)) {
			if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
				f := strings.Fields(ids)
				require.Equal(t, f[0], f[3], "a thread has another's user for files")
			}
		}
	}
}

// Patterns that are slow to match, against many names made for them, cost no more
// time than there is.
func TestCollectEndsWithItsTime(t *testing.T) {
	box := create(t, provider(t, false))
	defer requireGone(t, box)
	r, end := ended(t, box, shell(`n=$(printf %0248d 0 | tr 0 a); for i in $(seq 1000 2999); do : >$n$i; done`))
	requireExit(t, 0, end)
	slow := make([]string, 32)
	for i := range slow {
		slow[i] = "*" + strings.Repeat("[a-z]", 50) + "c"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := r.Collect(ctx, sandbox.CollectSpec{Patterns: slow, MaxFiles: 9, MaxBytes: 9, MaxFileBytes: 9}, func(sandbox.Collected) error { return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), 5*time.Second)
	require.NoError(t, box.Reset(t.Context()))
}
