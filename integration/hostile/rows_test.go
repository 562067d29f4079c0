package hostile

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// outcome is what a job's end comes to.
type outcome string

const (
	exited     outcome = "exited"
	signaled   outcome = "signaled"
	wall       outcome = "wall"
	output     outcome = "output"
	oom        outcome = "oom"
	notStarted outcome = "not started"
	unknown    outcome = "unknown"
)

// row is a program and what is expected of it.
type row struct {
	name string
	// args follow the name of a compiled program.
	args  []string
	stdin func() io.Reader
	// wall and grace are the product's usual ones where nothing is gained by less.
	wall, grace time.Duration
	// want are the outcomes that hold, with code or signal where there is one.
	want         []outcome
	code, signal int
	// leftover: the program ends while others of its tree live.
	leftover bool
	// perhaps: whether one lives then is chance.
	perhaps bool
	// writesRoot: where the root is the job's own, it may do some of what is tried.
	writesRoot bool
	// groups: the row is about a limit that needs control groups.
	groups bool
	// check looks at more.
	check func(t testing.TB, e ended)
}

func does(want ...outcome) []outcome { return want }

// rows are all programs.
func rows() []row {
	short := func(r row) row { // for programs that only end by force
		r.wall, r.grace = 300*time.Millisecond, 100*time.Millisecond
		return r
	}
	r := []row{
		short(row{name: "01_forkbomb", want: does(wall, oom)}),
		{name: "02_daemon_setsid", leftover: true, check: says("main done\n")},
		{name: "03_ignore_term", wall: 300 * time.Millisecond, grace: 300 * time.Millisecond, want: does(wall), check: killedAfterGrace},
		short(row{name: "04_stopped", want: does(wall)}),
		{name: "05_ptrace", perhaps: true},
		{name: "06_output_flood", want: does(output), grace: 100 * time.Millisecond, check: full},
		{name: "08_memhog", want: does(oom), groups: true},
		short(row{name: "09_memhog_children", want: does(oom), groups: true}),
		{name: "10_shm_fill", want: does(exited, oom, signaled), signal: 25},
		{name: "11_disk_fill", want: does(exited, oom, signaled), signal: 25},
		{name: "13_fsize", want: does(signaled), signal: 25},
		{name: "14_fds", check: says("253 fds: Too many open files; raise -1\n")},
		{name: "15_hold_stdout", leftover: true, check: says("parent gone\n")},
		{name: "17_procmem_init"},
		{name: "19_host_loopback"},
		{name: "20_mount", writesRoot: true},
		{name: "21_namespaces"},
		{name: "23_symlink_race", check: nothingOfTheHosts},
		{name: "24_setuid"},
		{name: "25_mknod"},
		{name: "26_core", want: does(signaled), signal: 6},
		{name: "28_cpuburn", wall: 500 * time.Millisecond, grace: 100 * time.Millisecond, want: does(wall), groups: true, check: oneCore},
		{name: "29_exec_huge"},
		{name: "30_invalid_utf8", check: everyByte},
		{name: "31_inherited_fds"},
		{name: "34_threadbomb", check: threads},
		short(row{name: "35_zombies", want: does(exited, wall, oom), perhaps: true}),
		{name: "38_exit137", code: 137},
		{name: "39_kill9_self", want: does(signaled), signal: 9},
		{name: "41_int80", want: does(signaled), signal: 31},
		{name: "43_stdin_ignored", stdin: zeros},
		{name: "44_hydra", want: does(exited, oom), leftover: true},
		{name: "48_tty"},
		{name: "49_previous_job"},
		{name: "51_sh_background", leftover: true},
		short(row{name: "52_sh_trap", want: does(wall)}),
		{name: "54_sh_yes_pipe", check: says("y\nrc=0\n")},
		{name: "55_sh_no_newline_stderr", code: 3, check: bothStreams},
	}
	return append(append(r, ownRows(short)...), signalRows()...)
}

// ownRows are aimed at how this sandbox is made.
func ownRows(short func(row) row) []row {
	return []row{
		{name: "60_secret"},
		{name: "61_signal_pid1", code: 7},
		short(row{name: "62_signal_flood", want: does(wall)}),
		short(row{name: "63_fork_on_term", want: does(wall, oom)}),
		{name: "64_clone_kinds", leftover: true, check: says("done\n")},
		{name: "64_stay", wall: 50 * time.Millisecond, want: does(wall)},
		{name: "65_double_setsid", leftover: true},
		{name: "66_subreaper", leftover: true},
		{name: "67_memfd_exec"},
		{name: "68_closed_calls"},
		{name: "69_inotify"},
		{name: "70_aio"},
		{name: "71_timers"},
		{name: "72_ipc_left"},
		{name: "73_oom_score"},
		{name: "74_scheduler"},
		short(row{name: "75_starve_pid1", want: does(wall)}),
		{name: "76_locked_memory"},
		{name: "77_exec_loop"},
		{name: "78_dumpable"},
		{name: "79_abstract", leftover: true},
		{name: "80_rights_cycle", check: says("sent\n")},
		{name: "81_rights_tree", leftover: true},
		{name: "82_netlink"},
		{name: "83_close_streams"},
		{name: "84_many_inodes"},
		{name: "85_deep_directories"},
		{name: "86_deleted_open", leftover: true},
		{name: "87_sparse"},
		{name: "88_links_locks", writesRoot: true},
		{name: "89_executable_memory"},
		{name: "90_x32", want: does(signaled), signal: 31},
		{name: "91_vsyscall", want: does(exited, signaled), signal: 11},
		{name: "93_namespace_files"},
		{name: "94_proc"},
		{name: "95_cgroup"},
		{name: "96_orphan_storm", want: does(exited, oom), perhaps: true},
		{name: "97_zombie_heirs"},
		short(row{name: "98_stop_everything", want: does(wall)}),
		{name: "A0_flood_both", grace: 100 * time.Millisecond, want: does(output), check: full},
		{name: "A1_flood_stderr", grace: 100 * time.Millisecond, want: does(output), check: full},
		{name: "A2_dead_leader", grace: 100 * time.Millisecond, want: does(output), check: full},
		{name: "A3_stdin_state"},
		{name: "A4_own_filters", leftover: true},
		{name: "A5_pipe_hog", leftover: true},
		{name: "A6_storm_at_exit", want: does(exited, oom), leftover: true},
		{name: "A7_memory_left"},
		{name: "A8_memory_now"},
		{name: "A9_exec_race", want: does(exited, oom), perhaps: true},
		{name: "B0_reopen_streams", leftover: true},
		{name: "B1_swallow_stdin", leftover: true, stdin: zeros},
		{name: "B2_netlink_hog", leftover: true},
		{name: "B4_memory_in_rings"},
		{name: "B5_notify", leftover: true},
		short(row{name: "B6_vfork_hold", want: does(wall)}),
		short(row{name: "B7_aftermath_threads", want: does(wall)}),
		{name: "B8_sockets"},
		{name: "B9_socket_filters"},
		{name: "C0_huge_pages"},
		{name: "C1_in_flight"},
		{name: "C2_lost_sender", want: does(exited, signaled), signal: 9},
		{name: "C3_attributes", want: does(exited, oom), writesRoot: true},
		{name: "C4_names_not_there", want: does(exited, oom)},
		{name: "C5_leased_file"},
		short(row{name: "C6_fork_at_death", want: does(wall, oom)}),
		{name: "C7_watches", want: does(exited, oom), leftover: true},
		{name: "C8_sync"},
		{name: "C9_pidfds"},
		{name: "D0_pressure"},
		{name: "B3_limit_pid1", want: does(exited, signaled), signal: 9},
	}
}

func zeros() io.Reader { return io.LimitReader(endless{}, 64<<20) }

// endless is a source without end and without a length.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func says(text string) func(testing.TB, ended) {
	return func(t testing.TB, e ended) {
		t.Helper()
		require.Equal(t, text, string(e.stdout))
	}
}

func full(t testing.TB, e ended) {
	t.Helper()
	require.Equal(t, outputBytes, len(e.stdout)+len(e.stderr))
}

func killedAfterGrace(t testing.TB, e ended) {
	t.Helper()
	require.Equal(t, &sandbox.Exit{Signal: 9}, e.Exit)
	require.GreaterOrEqual(t, e.took, 600*time.Millisecond)
}

// oneCore: four burners had no more than the one core that they may have.
func oneCore(t testing.TB, e ended) {
	t.Helper()
	// The quota is counted in periods of 100 ms, of which one may be open at each end.
	require.LessOrEqual(t, e.Usage.CPUUser+e.Usage.CPUSystem, e.took+200*time.Millisecond)
}

func everyByte(t testing.TB, e ended) {
	t.Helper()
	want := make([]byte, 256)
	for i := range want {
		want[i] = byte(i)
	}
	require.Equal(t, bytes.Repeat(want, 4), e.stdout)
}

func threads(t testing.TB, e ended) {
	t.Helper()
	require.Equal(t, "63 threads then refused\n", string(e.stdout))
}

// nothingOfTheHosts: what looks like a file and is none is refused by its kind.
func nothingOfTheHosts(t testing.TB, e ended) {
	t.Helper()
	for name, why := range map[string]string{
		"out": sandbox.RefusedSymlink, "dir": sandbox.RefusedSymlink, "root": sandbox.RefusedSymlink,
		"fifo": sandbox.RefusedSpecial, "sock": sandbox.RefusedSpecial,
	} {
		require.Equal(t, why, e.refused[name], name)
	}
	require.NotContains(t, e.refused, "su")
}

func bothStreams(t testing.TB, e ended) {
	t.Helper()
	require.Equal(t, "out-no-newline", string(e.stdout))
	require.Equal(t, "err\r\x1b[31mred", string(e.stderr))
}
