package local_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/sandbox/local"
)

// rootFS makes a directory with a small root file system: a shell and some
// programs of this host with their libraries, and what the tests look for.
func rootFS(t testing.TB) string {
	t.Helper()
	root := openDir(t)
	for _, name := range []string{"sh", "cat", "ls", "mkdir", "rm", "head", "true", "touch", "readlink", "mv", "stat"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		copyProgram(t, path, filepath.Join(root, "bin", name), root)
	}
	for _, dir := range []string{"etc", "opt/tools", "closed", "data/sub", "tmp", "proc"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	require.NoError(t, os.Chmod(filepath.Join(root, "closed"), 0))
	require.NoError(t, os.Symlink("/data/sub", filepath.Join(root, "link")))
	write := func(name, content string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(content), mode))
		require.NoError(t, os.Chmod(filepath.Join(root, name), mode))
	}
	write("etc/release", "from the image\n", 0o644)
	write("opt/tools/hello", "#!/bin/sh\necho hello from $0\n", 0o755)
	for name, program := range programs() {
		write("opt/tools/"+name, program.content, program.mode)
	}
	return root
}

type program struct {
	content string
	mode    os.FileMode
}

// programs cannot be executed, each for another reason.
func programs() map[string]program {
	return map[string]program{
		"plain": {"echo no\n", 0o644}, "noshebang": {"echo no\n", 0o755}, "badinterp": {"#!/no/such/interpreter\n", 0o755},
		"elf": {"\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\xff\xff" + strings.Repeat("\x00", 100), 0o755},
	}
}

// copyProgram copies a program of this host, and what it is linked with to the
// same places below root.
func copyProgram(t testing.TB, from, to, root string) {
	t.Helper()
	if _, err := os.Stat(to); err == nil {
		return
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o755))
	file, err := elf.Open(from)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			name := make([]byte, p.Filesz-1)
			_, err := p.ReadAt(name, 0)
			require.NoError(t, err)
			copyProgram(t, string(name), filepath.Join(root, string(name)), root)
		}
	}
	needed, err := file.ImportedLibraries()
	require.NoError(t, err)
	for _, name := range needed {
		found := false
		for _, dir := range []string{"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/lib", "/usr/lib64", "/usr/lib"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil && !found {
				found = true
				copyProgram(t, filepath.Join(dir, name), filepath.Join(root, dir, name), root)
			}
		}
		require.True(t, found, "%s needs %s", from, name)
	}
}

// overlay makes a sandbox with an overlay above lower, or says why this host
// cannot, which must then be said in words.
func overlay(t testing.TB, p *local.Provider, lower string) (sandbox.Sandbox, bool) {
	t.Helper()
	box, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Profile: "test", Root: local.OverlayPrefix + lower})
	if err != nil {
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
		require.Regexp(t, `overlay|map the uids of .* \(`, err.Error())
		t.Logf("this host has no overlay: %v", err)
		return nil, false
	}
	return box, true
}

// eachView runs test in sandboxes with each root view. tools is where rootFS has them, empty
// for the host's view.
func eachView(t *testing.T, test func(t *testing.T, box sandbox.Sandbox, tools string)) {
	p := provider(t, false)
	t.Run("host", func(t *testing.T) { test(t, create(t, p), "") })
	root := rootFS(t)
	t.Run("directory", func(t *testing.T) {
		box, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: root})
		require.NoError(t, err)
		test(t, box, "/opt/tools")
	})
	t.Run("overlay", func(t *testing.T) {
		if box, ok := overlay(t, p, root); ok {
			test(t, box, "/opt/tools")
		}
	})
}

func withPath(list string, p sandbox.Process) sandbox.Process {
	p.Env = []string{"PATH=" + list}
	return p
}

func TestStartErrorsInEachRootView(t *testing.T) {
	type startCase struct {
		name    string
		process sandbox.Process
		want    sandbox.StartError
	}
	eachView(t, func(t *testing.T, box sandbox.Sandbox, tools string) {
		cases := []startCase{
			{"no such name", withPath("/bin:/usr/bin", command("nosuch")), sandbox.StartError{Reason: sandbox.StartNotFound, Errno: int(unix.ENOENT), Path: "nosuch"}},
			{"no such name in this PATH", withPath("/nope", command("sh")), sandbox.StartError{Reason: sandbox.StartNotFound, Errno: int(unix.ENOENT), Path: "sh"}},
			{"no such path", command("/no/such"), sandbox.StartError{Reason: sandbox.StartNotFound, Errno: int(unix.ENOENT), Path: "/no/such"}},
			{"a directory", command("/workspace"), sandbox.StartError{Reason: sandbox.StartNotExecutable, Errno: int(unix.EACCES), Path: "/workspace"}},
			{"no such directory", in("/no/such", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOENT), Path: "/no/such"}},
			{"no such directory in the workspace", in("sub", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOENT), Path: "/workspace/sub"}},
			{"directory is a file", in("/bin/sh", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOTDIR), Path: "/bin/sh"}},
			{"directory through a link is closed", in("/proc/1/root", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.EACCES), Path: "/proc/1/root"}},
		}
		if tools != "" {
			cases = append(cases, startCase{"directory is closed", in("/closed", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.EACCES), Path: "/closed"}})
		}
		// The same from the image and from what the request brings along.
		for _, dir := range []string{tools, "/workspace"} {
			if dir == "" {
				continue
			}
			cases = append(cases, []startCase{
				{"found but not executable", withPath("/nope:"+dir, command("plain")), sandbox.StartError{Reason: sandbox.StartNotExecutable, Errno: int(unix.EACCES), Path: dir + "/plain"}},
				{"no #! line", withPath(dir, command("noshebang")), sandbox.StartError{Reason: sandbox.StartBadFormat, Errno: int(unix.ENOEXEC), Path: dir + "/noshebang"}},
				{"missing interpreter", withPath(dir, command("badinterp")), sandbox.StartError{Reason: sandbox.StartBadInterpreter, Errno: int(unix.ENOENT), Path: dir + "/badinterp"}},
				{"another machine's program", command(dir + "/elf"), sandbox.StartError{Reason: sandbox.StartBadFormat, Errno: int(unix.ENOEXEC), Path: dir + "/elf"}},
				{"directory is a file, with files", in(dir+"/plain", command("/bin/true")), sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOTDIR), Path: dir + "/plain"}},
			}...)
		}
		for _, tt := range cases {
			for name, program := range programs() {
				tt.process.Files = append(tt.process.Files, sandbox.File{Path: name, Mode: program.mode, Content: strings.NewReader(program.content)})
			}
			r := run(t, box, tt.process)
			require.Equal(t, sandbox.StartedNo, r.Started, tt.name)
			require.Nil(t, r.Exit, tt.name)
			require.Equal(t, &tt.want, r.StartError, tt.name)
			require.Empty(t, r.stdout+r.stderr, tt.name)
		}
	})
}

// TestLookUpInEachRootView: programs are looked up inside, in the request's own
// PATH, and working directories are resolved there, links and all.
func TestLookUpInEachRootView(t *testing.T) {
	eachView(t, func(t *testing.T, box sandbox.Sandbox, tools string) {
		r := run(t, box, withPath("/nope:/bin", command("sh", "-c", "echo $PATH")))
		require.Equal(t, "/nope:/bin\n", r.stdout)
		// Without one, the usual places.
		require.Nil(t, run(t, box, sandbox.Process{Argv: []string{"true"}}).StartError)
		link, target := "/var/tmp", "/tmp"
		if tools != "" {
			link, target = "/link", "/data/sub"
			r := run(t, box, withPath("/bin:"+tools, command("hello")))
			require.Equal(t, "hello from "+tools+"/hello\n", r.stdout, r.stderr)
			r = run(t, box, in(tools, withPath(":/bin", command("hello"))))
			require.Equal(t, "hello from ./hello\n", r.stdout, "an empty entry is the working directory")
			require.Equal(t, "from the image\n", run(t, box, command("/bin/cat", "/etc/release")).stdout)
			require.Equal(t, sandbox.StartNotFound, run(t, box, command("/usr/bin/env")).StartError.Reason, "the host's is not there")
		}
		require.Equal(t, target+"\n", run(t, box, in(link, command("/bin/sh", "-c", "pwd -P"))).stdout)
		require.Equal(t, "/workspace\n", run(t, box, command("/bin/sh", "-c", "pwd -P")).stdout)
		r = run(t, box, shell("ls -a / | grep '^[.].'; ls /dev; ls -d /proc/[0-9]*; echo x >/workspace/x; echo x >/tmp/x; cat /workspace/x /tmp/x"))
		require.Contains(t, r.stdout, "null")
		require.Contains(t, r.stdout, "/proc/1\n/proc/2")
		require.True(t, strings.HasSuffix(r.stdout, "x\nx\n"), r.stdout+r.stderr)
		require.NotContains(t, r.stdout, ".lower")
	})
}

// TestOverlay: a job may write to its root; the next one, and the directory below,
// know nothing of it.
func TestOverlay(t *testing.T) {
	each(t, func(t *testing.T, p *local.Provider) {
		lower := rootFS(t)
		before := listing(t, lower)
		box, ok := overlay(t, p, lower)
		if !ok {
			return
		}
		left := look(t)
		remove := "rm -r /data; mkdir /data; ls /data; echo new >/data/file"
		if !marksDirectories(t) {
			remove = "rm -r /data 2>/dev/null || echo new >/data/file"
		}
		change := shell(`set -e
			echo changed >>/etc/release; cat /etc/release
			rm /opt/tools/hello; ls /opt/tools
			` + remove + `
			mkdir /fresh; echo new >/fresh/file; mv /fresh /moved; cat /moved/file
			echo '#!/bin/sh' >/opt/tools/mine; echo 'echo mine' >>/opt/tools/mine; stat -c %U:%G /etc/release >/dev/null
			chmod 755 /opt/tools/mine 2>/dev/null || true`)
		r := run(t, box, change)
		requireExit(t, 0, r)
		require.Equal(t, "from the image\nchanged\nbadinterp\nelf\nnoshebang\nplain\nnew\n", r.stdout)
		r = run(t, box, shell("cat /etc/release; ls /opt/tools /data; ls -d /fresh /moved"))
		require.Equal(t, "from the image\n/data:\nsub\n\n/opt/tools:\nbadinterp\nelf\nhello\nnoshebang\nplain\n", r.stdout)
		require.Equal(t, before, listing(t, lower))

		// The bound is the disk limit's, beside that of the workspace.
		process := shell("head -c 3000000 /dev/zero >/a && echo a; head -c 3000000 /dev/zero >/b 2>/dev/null || echo full; head -c 3000000 /dev/zero >c && echo c")
		process.Limits.DiskBytes = 4 << 20
		require.Equal(t, "a\nfull\nc\n", run(t, box, process).stdout)
		process = shell("i=0; while true >/f$i; do i=$((i+1)); done 2>/dev/null; echo $i")
		process.Limits.Inodes = 50
		var files int
		_, err := fmt.Sscan(run(t, box, process).stdout, &files)
		require.NoError(t, err)
		require.True(t, files > 30 && files <= 50, "%d", files)
		requireGone(t, box)
		require.Equal(t, left.mounts, look(t).mounts)
		require.LessOrEqual(t, look(t).descriptors, left.descriptors)
		require.Equal(t, before, listing(t, lower))
	})
}

// marksDirectories says whether a tmpfs has the attributes with which an overlay
// notes that a directory hides the one below (since Linux 6.6).
func marksDirectories(t testing.TB) bool {
	t.Helper()
	file, err := os.CreateTemp("/dev/shm", "sallyport-test-")
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(file.Close(), os.Remove(file.Name()))) }()
	return unix.Fsetxattr(int(file.Fd()), "user.test", []byte("y"), 0) == nil
}

// listing is what a directory holds: names, modes, sizes and times.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil && d != nil && d.Name() == "closed" {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime())
		}
		return err
	}))
	return b.String()
}

func TestOverlayThatCannotBeMade(t *testing.T) {
	p := provider(t, false)
	before := look(t)
	root := rootFS(t)
	require.NoError(t, os.Remove(filepath.Join(root, "proc")))
	require.NoError(t, os.Symlink("/etc", filepath.Join(root, "proc")))
	for lower, text := range map[string]string{
		"/no/such/root": "/no/such/root", "/etc/passwd": "is no directory", root: "proc is no directory",
	} {
		_, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: local.OverlayPrefix + lower})
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
		require.ErrorContains(t, err, text)
	}
	if os.Geteuid() == 0 {
		// The uids of /proc cannot be mapped.
		_, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: local.OverlayPrefix + "/proc"})
		require.Equal(t, sandbox.Unavailable, sandbox.KindOf(err))
		require.ErrorContains(t, err, "map the uids of /proc")
	}
	require.Equal(t, before, look(t))
}

// TestDirectoryIsJudgedInside: the working directory is looked for when the program
// starts, inside, whatever there is of that name outside.
func TestDirectoryIsJudgedInside(t *testing.T) {
	p, root, outside := provider(t, false), rootFS(t), openDir(t)
	links := map[string]string{
		"out": outside, "up": "../../../../../../../.." + outside, "loop": "loop", "tofile": "/etc/release",
		"toclosed": "/closed", "within": "../../../../data", "ofpidone": "/proc/1/cwd",
	}
	for name, target := range links {
		require.NoError(t, os.Symlink(target, filepath.Join(root, name)))
	}
	box, err := p.Create(t.Context(), sandbox.Spec{Lease: newLease(), Root: root})
	require.NoError(t, err)
	for name, errno := range map[string]syscall.Errno{
		"out": unix.ENOENT, "up": unix.ENOENT, "loop": unix.ELOOP, "tofile": unix.ENOTDIR, "toclosed": unix.EACCES, "ofpidone": unix.EACCES,
	} {
		r := run(t, box, in("/"+name, command("/bin/true")))
		require.Equal(t, &sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(errno), Path: "/" + name}, r.StartError, name)
		require.Equal(t, sandbox.StartedNo, r.Started)
	}
	require.Equal(t, "/data\n", run(t, box, in("/within", shell("pwd -P"))).stdout)
	placed := in("a/b", withFiles(shell("pwd"), file("a/b/c", "", 0)))
	require.Equal(t, "/workspace/a/b\n", run(t, box, placed).stdout)

	// One that vanishes while the program waits for its start.
	require.NoError(t, os.Mkdir(filepath.Join(root, "data", "brief"), 0o755))
	rec := newRecorder()
	waiting, err := box.Prepare(t.Context(), in("/data/brief", command("/bin/true")), rec)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(root, "data", "brief")))
	require.NoError(t, waiting.Open(t.Context()))
	r := finish(t, box, waiting, rec)
	require.Equal(t, &sandbox.StartError{Reason: sandbox.StartBadCwd, Errno: int(unix.ENOENT), Path: "/data/brief"}, r.StartError)
	requireExit(t, 0, run(t, box, command("/bin/true")))
}

// TestNoShellTriesWhatCannotBeExecuted: a text without an interpreter's name is none
// for a shell.
func TestNoShellTriesWhatCannotBeExecuted(t *testing.T) {
	box := create(t, provider(t, false))
	for _, argv := range []string{"./notes.txt", "/workspace/notes.txt", "notes.txt"} {
		process := withPath("/workspace", withFiles(command(argv), file("notes.txt", "touch pwn\n", 0o755)))
		r, end := ended(t, box, process)
		require.Equal(t, sandbox.StartBadFormat, end.StartError.Reason)
		got, _, _ := collect(t, r, sandbox.CollectSpec{Patterns: []string{"*"}})
		require.Equal(t, map[string]string{"notes.txt": "touch pwn\n"}, got)
		require.NoError(t, box.Reset(t.Context()))
	}
}
