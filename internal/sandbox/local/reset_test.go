package local_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// calls makes the numbers of system calls known to a Perl program.
var calls = fmt.Sprintf("use strict; use warnings; my (%s) = (%d, %d, %d, %d, %d, %d, %d, %d, %d); $| = 1;",
	"$sendmsg, $add_key, $keyctl, $mq_open, $sethostname, $inotify_init1, $timer_create, $setpriority, $sched_setaffinity",
	unix.SYS_SENDMSG, unix.SYS_ADD_KEY, unix.SYS_KEYCTL, unix.SYS_MQ_OPEN, unix.SYS_SETHOSTNAME, unix.SYS_INOTIFY_INIT1,
	unix.SYS_TIMER_CREATE, unix.SYS_SETPRIORITY, unix.SYS_SCHED_SETAFFINITY)

func perl(script string) sandbox.Process { return command("/usr/bin/perl", "-e", calls+script) }

// pass sends a descriptor through a Unix socket (unix(7), SCM_RIGHTS).
const pass = `
sub pass { my ($through, $fd) = @_; my $data = "x"; my $iov = pack("P Q", $data, 1); my $rights = pack("Q i i i x4", 20, 1, 1, fileno($fd));
	my $msg = pack("Q l x4 P Q P Q i x4", 0, 0, $iov, 1, $rights, 24, 0); syscall($sendmsg, fileno($through), $msg, 0) == 1 or die "pass: $!" }
`

// ring makes the descriptor $keep outlive every process, until the kernel looks for
// such rings: it is in the queue of a socket that is only in its own queue.
const ring = pass + `socketpair(my $x, my $y, 1, 1, 0) or die; pass($x, $y); pass($x, $keep);`

// traces are what a job can leave and how the next one looks for it. What it prints
// begins with found, and is the same in a fresh lease.
var traces = []struct {
	name        string
	leave, look sandbox.Process
	found       string
}{
	{
		"workspace, with what is hard to remove",
		shell("mkdir -p a/b/c; touch .hidden a/b/c/d 'new\nline' ./-rf; ln -s / link; mkfifo fifo; chmod 000 a; mkdir $(printf '\\377'); i=0; while [ $i -lt 200 ]; do mkdir x && cd x; i=$((i+1)); done"),
		shell("ls -A /workspace; pwd; stat -c %a /workspace"), "/workspace\n755\n",
	},
	{"/tmp", shell("touch /tmp/a /var/tmp/b; mkdir -m 0 /tmp/c"), shell("ls -A /tmp /var/tmp/; stat -c %a /tmp"), "/tmp:\n\n/var/tmp/:\n1777\n"},
	{
		"home, time zone, what is to run later",
		shell("touch ~/.profile /workspace/.bashrc; ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime; echo '* * * * * touch /tmp/cron' | crontab -; echo 'touch /tmp/at' | at now; mkdir -p /var/spool/cron; touch /etc/cron.d/x; exit 0"),
		shell("ls -A ~ /workspace/ /var /etc/cron* /var/spool 2>/dev/null; stat -c %F /etc/localtime; date +%Z"), "/var:\ntmp\n\n/workspace/:\n",
	},
	{"/dev/shm", shell("head -c 1000000 /dev/zero > /dev/shm/a"), shell("ls -A /dev/shm; df --output=used /dev/shm | tail -1 | tr -d ' '"), "0\n"},
	{"System V shared memory, semaphores, queues", shell("ipcmk -M 4096 -S 3 -Q >/dev/null"), shell("tail -qn +2 /proc/sysvipc/*"), ""},
	{
		"POSIX message queues",
		perl(`my $n = "left"; syscall($mq_open, $n, 0102, 0600, 0)`),
		perl(`my $n = "left"; print syscall($mq_open, $n, 0, 0, 0), " ", $!{ENOENT} ? "ENOENT" : $!+0`), "-1 ENOENT",
	},
	{
		"keyrings: nobody can leave or look for a key",
		perl(`my ($t, $d, $p) = ("user", "left", "secret"); print syscall($add_key, $t, $d, $p, 6, $_), $!{EPERM} ? "EPERM " : $! for (-3, -4, -5)`),
		perl(`my ($t, $d) = ("user", "left"); for my $ring (-3, -4, -5) { print syscall($keyctl, 10, $ring, $t, $d, 0), $!{EPERM} ? "EPERM " : $! } print -s "/proc/keys" ? "keys" : ""`),
		"-1EPERM -1EPERM -1EPERM ",
	},
	{"processes", shell("for i in 1 2 3; do (trap '' TERM HUP; setsid sleep 1000 &) ; done; sleep 1000 & kill -STOP $!"), shell("echo /proc/[0-9]*"), "/proc/1 /proc/2\n"},
	{
		"abstract sockets",
		perl(`socket(my $l, 1, 1, 0) or die; bind($l, pack("S a*", 1, "\0left")) or die $!; listen($l, 5) or die; if (fork() == 0) { setpgrp; sleep 1000 }`),
		perl(`socket(my $c, 1, 1, 0) or die; print connect($c, pack("S a*", 1, "\0left")) ? "connected" : $!{ECONNREFUSED} ? "refused" : $!; open(my $u, "<", "/proc/net/unix"); my @all = <$u>; print scalar(@all)`),
		"refused2",
	},
	{
		"abstract sockets in a ring of sockets",
		perl(`socket(my $keep, 1, 1, 0) or die; bind($keep, pack("S a*", 1, "\0left")) or die $!; listen($keep, 5) or die; socket(my $c, 1, 1, 0); connect($c, pack("S a*", 1, "\0left")) or die; syswrite($c, "secret");` + ring),
		perl(`socket(my $c, 1, 1, 0) or die; print connect($c, pack("S a*", 1, "\0left")) ? "connected" : $!{ECONNREFUSED} ? "refused" : $!; open(my $u, "<", "/proc/net/unix"); my @all = <$u>; print scalar(@all)`),
		"refused2",
	},
	{
		"files of the workspace in a ring of sockets",
		perl(`open(my $keep, "+>", "left") or die; print $keep "secret";` + ring),
		shell("ls -A; df --output=iused /workspace | tail -1 | tr -d ' '"), "1\n",
	},
	{
		"listening ports",
		perl(`for my $kind (1, 2) { socket(my $s, 2, $kind, 0) or die; bind($s, pack("S n x12", 2, 4711)) or die $!; listen($s, 5) if $kind == 1; push @main::s, $s } if (fork() == 0) { setpgrp; sleep 1000 }`),
		perl(`for my $kind (1, 2) { socket(my $s, 2, $kind, 0) or die; print bind($s, pack("S n x12", 2, 4711)) ? "free " : $! } for my $f ("tcp", "udp", "tcp6", "raw") { open(my $u, "<", "/proc/net/$f"); my @all = <$u>; print scalar(@all) }`),
		"free free 1111",
	},
	{
		"the network: nobody can change it, nothing is reachable",
		perl(`for my $f ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4/ping_group_range") { print open(my $s, "+>", $f) ? "open" : "" } system("ip link set lo up 2>/dev/null; ip addr add 10.0.0.1/8 dev lo 2>/dev/null")`),
		perl(`open(my $d, "<", "/proc/net/dev"); my @d = <$d>; print scalar(@d) - 2; open(my $r, "<", "/proc/net/route"); my @r = <$r>; print scalar(@r); open(my $f, "<", "/proc/net/fib_trie"); my @f = <$f>; print scalar(@f); socket(my $c, 2, 1, 0); print connect($c, pack("S n C4 x8", 2, 80, 127, 0, 0, 1)) ? "connected" : $!{ENETUNREACH} ? "unreachable" : $!`),
		"100unreachable",
	},
	{
		"host and domain name",
		perl(`my $n = "left"; print syscall($sethostname, $n, 4), $!{EPERM} ? "EPERM" : $!; print open(my $s, "+>", "/proc/sys/kernel/hostname") ? "open" : "", open($s, "+>", "/proc/sys/kernel/domainname") ? "open" : ""`),
		shell("hostname; cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname"), "sandbox\nsandbox\n(none)\n",
	},
	{
		"settings of the kernel: nobody can change them",
		shell("find /proc/sys -type f 2>/dev/null | while read f; do ( : <> $f ) 2>/dev/null && echo $f; done; exit 0"),
		shell("find /proc/sys -type f 2>/dev/null | while read f; do ( : <> $f ) 2>/dev/null && echo $f; done; cat /proc/sys/user/max_user_namespaces"), "0\n",
	},
	{
		"timers, watches, counters of the user namespace",
		perl(`my $id = pack("i", 0); for (1..1000) { syscall($timer_create, 1, 0, $id) } for (1..10) { syscall($inotify_init1, 0) } if (fork() == 0) { setpgrp; sleep 1000 }`),
		perl(`my $id = pack("i", 0); my $t = 0; for (1..1000) { $t++ if syscall($timer_create, 1, 0, $id) == 0 } my $i = 0; for (1..10) { $i++ if syscall($inotify_init1, 0) >= 0 } print "$t $i"`),
		"1000 10",
	},
	{
		"umask, limits, niceness, processors, environment, directory",
		perl(`umask 0; syscall($setpriority, 0, 0, 19); my $m = pack("Q", 1); syscall($sched_setaffinity, 0, 8, $m); syscall($sched_setaffinity, 1, 8, $m); syscall($setpriority, 0, 1, 19); $ENV{LEFT} = 1; chdir "/tmp"; system("ulimit -n 10; ulimit -f 1; true")`),
		shell("umask; nice; nproc; env | grep LEFT; pwd; ulimit -f"), fmt.Sprintf("0022\n0\n%d\n/workspace\n", runtime.NumCPU()),
	},
	{
		"the stub's own, as far as a job of the same user can reach it",
		shell("prlimit --pid 1 --nofile=4:4 2>/dev/null; prlimit --pid 1 --core=unlimited 2>/dev/null; kill -9 1; kill -TERM 1; renice 19 1 2>/dev/null; for f in oom_score_adj comm timerslack_ns coredump_filter; do echo 7 2>/dev/null > /proc/1/$f; done; echo left 2>/dev/null > /proc/1/comm; exit 0"),
		shell("nice; ulimit -c; cat /proc/self/oom_score_adj /proc/self/coredump_filter | tr '\\n' ' '"), "0\n0\n1000 00000033 ",
	},
}

// TestNothingIsLeftForTheNextJob has a job leave each trace, and the next job in the
// same lease look for it: in a lease of its own, and in one that has seen all.
func TestNothingIsLeftForTheNextJob(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		old := create(t, p)
		for _, tt := range traces {
			box := create(t, p)
			fresh := lookFor(t, box, tt.look, func(out string) bool { return strings.HasPrefix(out, tt.found) })
			require.True(t, strings.HasPrefix(fresh, tt.found), "%s: %q", tt.name, fresh)
			for _, box := range []sandbox.Sandbox{box, old} {
				require.NotNil(t, run(t, box, tt.leave).Exit)
				require.Equal(t, fresh, lookFor(t, box, tt.look, func(out string) bool { return out == fresh }), tt.name)
			}
			requireGone(t, box)
		}
	})
}

// lookFor returns what process prints. Where leases have a user in common, the kernel
// counts some things for all of them (RLIMIT_SIGPENDING, inotify): other tests that
// use all of it pass, and what a job has left would not.
func lookFor(t *testing.T, box sandbox.Sandbox, process sandbox.Process, enough func(string) bool) string {
	t.Helper()
	for began := time.Now(); ; {
		r := run(t, box, process)
		require.NotNil(t, r.Exit, "stderr: %s", r.stderr)
		if enough(r.stdout) || os.Geteuid() == 0 || time.Since(began) > patience {
			return r.stdout
		}
		<-time.After(100 * time.Millisecond)
	}
}

// TestUsageIsTheJobsOwn: counters that the control group keeps for the lease begin
// anew with each job.
func TestUsageIsTheJobsOwn(t *testing.T) {
	if !hasGroups(t) {
		return
	}
	box := create(t, provider(t, true))
	heavy := shell("i=0; while [ $i -lt 12 ]; do sleep 0.2 & i=$((i+1)); done; perl -e '$x = \"x\" x 50_000_000; for (1..3_000_000) { $y += $_ }'; wait; exec perl -e '$x = \"x\" x 500_000_000'")
	heavy.Limits.MemoryBytes = 100 << 20
	r := run(t, box, heavy)
	require.Positive(t, r.OOM)
	require.Greater(t, r.Usage.MemoryPeakBytes, int64(50<<20))
	require.GreaterOrEqual(t, r.Usage.PidsPeak, int64(12))
	used := r.Usage.CPUUser + r.Usage.CPUSystem
	require.Greater(t, used, 50*time.Millisecond)
	light := command("/bin/true")
	light.Limits.MemoryBytes = 100 << 20
	r = run(t, box, light)
	requireExit(t, 0, r)
	require.Zero(t, r.OOM)
	require.Less(t, r.Usage.MemoryPeakBytes, int64(20<<20))
	require.LessOrEqual(t, r.Usage.PidsPeak, int64(2))
	require.Less(t, r.Usage.CPUUser+r.Usage.CPUSystem, used/2, "some of the job's before")
	// CPU time that one job used up is not taken from the next one's.
	for range 3 {
		burn := shell("perl -e 'for (1..4_000_000) { $y += $_ }'; echo done")
		burn.Limits.CPU = 3 * time.Second
		r = run(t, box, burn)
		requireExit(t, 0, r)
		require.False(t, r.CPUExceeded)
	}
}
