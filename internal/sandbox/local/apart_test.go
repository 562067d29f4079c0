package local_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
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

// TestDescriptorsInFlight: the kernel counts descriptors that are on their way through
// sockets for the user, whom an ordinary user's leases have in common, and lets a
// process send none while there are more than it may have open. One job that has as
// many as it may stops no other lease.
func TestDescriptorsInFlight(t *testing.T) {
	p := provider(t, false)
	hoard := pass + `
		my @all; while (@all < 40) { socketpair(my $x, my $y, 1, 2, 0) or last; fcntl($x, 4, 04000); push @all, $x, $y }
		my $n = 0; for my $x (@all) { while (1) {
			my $data = "x"; my $iov = pack("P Q", $data, 1); my $rights = pack("Q i i i200", 16 + 800, 1, 1, (fileno($x)) x 200);
			my $msg = pack("Q l x4 P Q P Q i x4", 0, 0, $iov, 1, $rights, length $rights, 0);
			last if syscall($sendmsg, fileno($x), $msg, 0x40) != 1; $n += 200 } }
		print "$n $!\n"; sleep 1000`
	var own unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &own))
	for _, files := range []int64{0, int64(min(own.Max/2, 1<<16))} { // the default, and the most
		process := perl(hoard)
		process.Limits.OpenFiles = files
		hog := create(t, p)
		held, rec := begin(t, hog, process)
		awaitOutput(t, rec)
		t.Logf("in flight: %s", rec.out())
		old := create(t, p)
		for range 3 {
			requireExit(t, 3, run(t, old, shell("exit 3")))
		}
		_, err := held.Terminate(t.Context(), 0)
		require.NoError(t, err)
		finish(t, hog, held, rec)
		requireExit(t, 0, run(t, hog, command("/bin/true")))
	}
}

// TestOldRootIsOutOfReach: no way up, no descriptor and no link of /proc leads to the
// host's own tree.
func TestOldRootIsOutOfReach(t *testing.T) {
	secret := openDir(t)
	require.NoError(t, os.WriteFile(secret+"/of-the-host", []byte("secret"), 0o644))
	eachView(t, func(t *testing.T, box sandbox.Sandbox, _ string) {
		r := run(t, box, shell(`for up in .. ../../../../../../../.. /proc/self/root /proc/self/cwd/.. /proc/self/cwd/../../.. /dev/fd/0/.. /proc/self/task/*/root; do
				for to in `+secret+` root home boot; do ls $up/$to/of-the-host $up$to/of-the-host; cat $up/$to/of-the-host; done 2>/dev/null; done
			for link in /proc/1/root /proc/1/cwd /proc/1/exe /proc/1/fd/0 /proc/1/fd/3; do readlink $link; ls $link/ ; done 2>/dev/null
			cd /; here=$(ls -a); cd ../../..; [ "$here" = "$(ls -a)" ] && pwd -P
			for f in /proc/self/fd/*; do readlink $f; done | grep -v -E '^(pipe:|/dev/null$|/proc/)'; exit 0`))
		requireExit(t, 0, r)
		require.Equal(t, "/\n", r.stdout, r.stderr)
	})
}
