package local_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// What one run does to the open file of an empty input, the next one does not see,
// whatever its lease.
func TestEmptyInputIsTheRunsOwn(t *testing.T) {
	p := provider(t, false)
	look := `use Fcntl qw(:DEFAULT :flock); open(my $null, "+<", "/dev/null");
		printf "flags %d locked %s", fcntl(STDIN, F_GETFL, 0) & O_NONBLOCK, flock($null, LOCK_EX | LOCK_NB) ? "no" : "yes";`
	change := `use Fcntl qw(:DEFAULT :flock); fcntl(STDIN, F_SETFL, O_NONBLOCK) or die; flock(STDIN, LOCK_EX) or die`
	for range 2 {
		requireExit(t, 0, run(t, create(t, p), command("/usr/bin/perl", "-e", change)))
		r := run(t, create(t, p), command("/usr/bin/perl", "-e", look))
		requireExit(t, 0, r)
		require.Equal(t, "flags 0 locked no", r.stdout)
	}
}

func TestStreamsByName(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		r := run(t, create(t, p), withStdin(shell("read word </dev/stdin; echo out $word >/dev/stdout; echo err >>/dev/stderr"), strings.NewReader("in\n")))
		requireExit(t, 0, r)
		require.Equal(t, "out in\n", r.stdout)
		require.Equal(t, "err\n", r.stderr)
	})
}

// The kernel makes small pipes for a user who has many. Root is exempt; this test is
// run as another user, too.
func TestInputBesideManyPipes(t *testing.T) {
	p := provider(t, false)
	box := create(t, p)
	for range 1200 { // of 16 pages each; pipe-user-pages-soft is 16,384 by default
		var fds [2]int
		require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
		defer func() { require.NoError(t, unix.Close(fds[0])); require.NoError(t, unix.Close(fds[1])) }()
	}
	text := strings.Repeat("x", 60<<10)
	r := run(t, box, withStdin(command("cat"), strings.NewReader(text)))
	requireExit(t, 0, r)
	require.Equal(t, text, r.stdout)
}

// A device's node is the host's: its times are no board for messages.
func TestDeviceNodesCannotBeTouched(t *testing.T) {
	before, err := os.Stat("/dev/null")
	require.NoError(t, err)
	r := run(t, create(t, provider(t, false)), shell("touch /dev/null /dev/zero; chmod 600 /dev/null; echo x >/dev/null && head -c 1 /dev/zero | wc -c"))
	requireExit(t, 0, r)
	require.Equal(t, "1", strings.TrimSpace(r.stdout))
	require.Contains(t, r.stderr, "touch")
	after, err := os.Stat("/dev/null")
	require.NoError(t, err)
	require.Equal(t, before.Mode(), after.Mode())
}

// What the host has one number of, a job has little or nothing of.
func TestHostWideNumbers(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Log("not tested: the numbers of inotify_init1 and io_setup are another processor's")
		return
	}
	r := run(t, create(t, provider(t, false)), command("/usr/bin/perl", "-e",
		`my $n = 0; $n++ while $n < 200 && syscall(294, 0) >= 0; my $c = "\0" x 8; print "$n ", syscall(206, 1, $c), " ", $!+0;`))
	requireExit(t, 0, r)
	require.Equal(t, "16 -1 38", r.stdout)
}
