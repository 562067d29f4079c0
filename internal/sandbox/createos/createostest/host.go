package createostest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/createos/createostest/guest"
)

// bootTimeout bounds what a guest does at once: tens of milliseconds.
const bootTimeout = 20 * time.Second

// Host makes sandboxes out of this Linux host's namespaces.
type Host struct {
	// dir holds everything; its name is in no other process's mounts.
	dir string
}

var _ Backend = (*Host)(nil)

// NewHost makes a backend that keeps its sandboxes' files below a new directory in
// parent; empty means the system's directory for temporary files.
func NewHost(parent string) (*Host, error) {
	dir, err := os.MkdirTemp(parent, "createos-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	return &Host{dir: dir}, nil
}

// Boot implements Backend.
func (h *Host) Boot(ctx context.Context, id string) (Machine, error) {
	m := &hostMachine{id: id, dir: filepath.Join(h.dir, id), dead: make(chan struct{}), root: -1}
	setup, err := m.layOut()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(m.dir))
	}
	if err := m.launch(ctx, setup); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("sandbox %s: %w", id, err), m.End(ctx))
	}
	return m, nil
}

// Leftovers implements Backend: the directories of sandboxes, and the processes that
// have one of them as their root.
func (h *Host) Leftovers() ([]string, error) {
	var left []string
	entries, err := os.ReadDir(h.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		left = append(left, filepath.Join(h.dir, e.Name()))
	}
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		// One that has just ended is no leftover.
		if text, err := os.ReadFile(table); err == nil && strings.Contains(string(text), filepath.Base(h.dir)+"/") {
			left = append(left, "process "+filepath.Base(filepath.Dir(table)))
		}
	}
	return left, nil
}

// Close implements Backend.
func (h *Host) Close() error { return os.RemoveAll(h.dir) }

// hostMachine is one sandbox: its box guest and its directory.
type hostMachine struct {
	id, dir string
	pid     int
	// root is the root as seen from inside; -1 before it is there.
	root int
	// ends counts what has to be over before the directory is removed.
	ends sync.WaitGroup
	// dead is closed when box has ended, and with it all that was in its namespaces.
	dead chan struct{}

	mu     sync.Mutex
	socket *net.UnixConn
	ended  bool
}

// layOut makes the directory that becomes the root.
func (m *hostMachine) layOut() (guest.Setup, error) {
	s := guest.Setup{Root: filepath.Join(m.dir, "root")}
	dirs := map[string]os.FileMode{
		"proc": 0o555, "dev": 0o755, "dev/shm": 0o1777, "tmp": 0o1777, "root": 0o700, "home": 0o755, "run": 0o755,
		"var/tmp": 0o1777, "var/log": 0o755, "mnt": 0o755, "srv": 0o755,
	}
	for dir, mode := range dirs {
		path := filepath.Join(s.Root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return s, err
		}
		if mode&0o1000 != 0 {
			mode = mode&0o777 | os.ModeSticky
		}
		if err := os.Chmod(path, mode); err != nil {
			return s, err
		}
	}
	for _, dir := range []string{"/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if err := m.show(&s, dir); err != nil {
			return s, err
		}
	}
	for _, node := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} {
		if err := os.WriteFile(s.Root+node, nil, 0o644); err != nil {
			return s, err
		}
		s.Devices = append(s.Devices, node)
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, filepath.Join(s.Root, "dev", name)); err != nil {
			return s, err
		}
	}
	return s, nil
}

// show makes a directory of the host visible, or the link that it is.
func (m *hostMachine) show(s *guest.Setup, dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(dir)
		if err != nil {
			return err
		}
		return os.Symlink(target, s.Root+dir)
	}
	s.Binds = append(s.Binds, dir)
	return os.Mkdir(s.Root+dir, 0o755)
}

// launch starts box and lets it make the root.
func (m *hostMachine) launch(ctx context.Context, setup guest.Setup) error {
	ours, theirs, err := socketpair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	m.socket = ours
	ids := func(own int) []syscall.SysProcIDMap {
		if os.Geteuid() == 0 {
			return []syscall.SysProcIDMap{{Size: 1 << 16}}
		}
		return []syscall.SysProcIDMap{{HostID: own, Size: 1}}
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{guest.Marker, guest.RoleBox}, Env: []string{}, Dir: "/", ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true, UidMappings: ids(os.Geteuid()), GidMappings: ids(os.Getegid()),
			GidMappingsEnableSetgroups: os.Geteuid() == 0,
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC |
				unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		},
	}
	err = errors.Join(cmd.Start(), theirs.Close())
	if err != nil {
		close(m.dead)
		return fmt.Errorf("starting its first process (namespaces are needed): %w", err)
	}
	m.pid = cmd.Process.Pid
	m.ends.Go(func() {
		// It is always killed; how it ended says nothing.
		_ = cmd.Wait() //nolint:errcheck // see above
		close(m.dead)
	})
	if err := m.ask(ctx, setup); err != nil {
		return err
	}
	m.root, err = unix.Open(fmt.Sprintf("/proc/%d/root", m.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return err
}

// ask sends box a message and takes its answer.
func (m *hostMachine) ask(ctx context.Context, message any, files ...*os.File) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
			// A program expects streams that block.
			if err := unix.SetNonblock(fds[i], false); err != nil {
				return err
			}
		}
		rights = unix.UnixRights(fds...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return errEnded
	}
	// An answer that is late would be taken for the next one's: what is asked is
	// always waited for.
	deadline := time.Now().Add(bootTimeout)
	if err := m.socket.SetDeadline(deadline); err != nil {
		return err
	}
	if _, _, err := m.socket.WriteMsgUnix(data, rights, nil); err != nil {
		return errors.Join(errEnded, err, ctx.Err())
	}
	buf := make([]byte, guest.MaxMessage)
	n, err := m.socket.Read(buf)
	if err != nil {
		return errors.Join(errEnded, err, ctx.Err())
	}
	var a guest.Answer
	if err := json.Unmarshal(buf[:n], &a); err != nil {
		return err
	}
	if a.Fault != "" {
		return errors.New(a.Fault)
	}
	return nil
}

// Freeze implements Machine: every process but box is stopped, twice, as one that
// was just being made may have been missed.
func (m *hostMachine) Freeze(ctx context.Context) error {
	return errors.Join(m.ask(ctx, guest.Order{Do: guest.OrderFreeze}), m.ask(ctx, guest.Order{Do: guest.OrderFreeze}))
}

// Thaw implements Machine.
func (m *hostMachine) Thaw(ctx context.Context) error {
	return m.ask(ctx, guest.Order{Do: guest.OrderThaw})
}

// End implements Machine. Box's death is the death of all.
func (m *hostMachine) End(ctx context.Context) error {
	m.mu.Lock()
	first := !m.ended
	m.ended = true
	m.mu.Unlock()
	if first {
		if m.pid > 0 {
			select {
			case <-m.dead:
			default:
				if err := unix.Kill(m.pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
					return fmt.Errorf("killing sandbox %s: %w", m.id, err)
				}
			}
		}
		if err := m.socket.Close(); err != nil {
			return err
		}
	}
	select {
	case <-m.dead:
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s has not ended: %w", m.id, context.Cause(ctx))
	}
	m.ends.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.root >= 0 {
		unix.Close(m.root)
		m.root = -1
	}
	return removeAll(m.dir)
}

// removeAll removes a tree in which a program may have taken permissions away.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			return os.Chmod(path, 0o700) //nolint:gosec // it is removed next
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// Open implements Machine.
func (m *hostMachine) Open(path string) (io.ReadCloser, error) {
	f, err := m.open(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Store implements Machine. What is cut off in the middle leaves half a file.
func (m *hostMachine) Store(path string, content io.Reader, parents bool) error {
	if parents {
		if err := m.makeParents(filepath.Dir(path)); err != nil {
			return err
		}
	}
	f, err := m.open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// open opens a path as it is seen inside, absolute links included.
func (m *hostMachine) open(path string, flags int, mode uint64) (*os.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.root < 0 {
		return nil, errEnded
	}
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK // not to hang on a pipe without a reader
	}
	fd, err := unix.Openat2(m.root, path, &unix.OpenHow{
		Flags: uint64(flags | unix.O_CLOEXEC), Mode: mode, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (m *hostMachine) makeParents(dir string) error {
	f, err := m.open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := m.makeParents(filepath.Dir(dir)); err != nil {
		return err
	}
	parent, err := m.open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = unix.Mkdirat(int(parent.Fd()), filepath.Base(dir), 0o755)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, parent.Close())
}

// Live implements Machine: all below box, without the guests.
func (m *hostMachine) Live() []LiveProcess {
	m.mu.Lock()
	pid, ended := m.pid, m.ended
	m.mu.Unlock()
	if ended || pid == 0 {
		return nil
	}
	var live []LiveProcess
	todo := children(pid)
	for len(todo) > 0 {
		pid := todo[0]
		todo = append(todo[1:], children(pid)...)
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		// One that has ended, as a zombie too, does not live.
		if argv := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00"); err == nil && argv[0] != "" && argv[0] != guest.Marker {
			live = append(live, LiveProcess{Sandbox: m.id, PID: pid, Argv: argv})
		}
	}
	return live
}

func children(pid int) []int {
	var all []int
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// socketpair makes two connected sockets: ours, and theirs to pass on.
func socketpair(kind int) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.Join(errors.New("no unix socket"), conn.Close(), theirs.Close())
	}
	return unixConn, theirs, nil
}

// hostTree is one managed process.
type hostTree struct {
	machine               *hostMachine
	pid                   int
	stdin                 *os.File
	exited, gone, silent  chan struct{}
	exit                  Exit
	out                   [2]*pump
	socket                *net.UnixConn
	kickMu                sync.Mutex
	kicks                 *json.Encoder
	reports               *json.Decoder
	leaderDone, treeEnded atomic.Bool
}

// Start implements Machine.
func (m *hostMachine) Start(ctx context.Context, p Program) (Tree, error) {
	t := &hostTree{machine: m, exited: make(chan struct{}), gone: make(chan struct{}), silent: make(chan struct{})}
	pass, err := t.plug()
	if err == nil {
		err = m.ask(ctx, guest.Order{Do: guest.OrderStart}, pass...)
	}
	for _, f := range pass {
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = t.begin(p)
	}
	if err != nil {
		return nil, errors.Join(err, t.unplug())
	}
	var pumping sync.WaitGroup
	for i, stream := range t.out {
		pumping.Go(func() { stream.run(i+1, p.Output) })
	}
	m.ends.Go(func() { pumping.Wait(); close(t.silent) })
	m.ends.Go(t.watch)
	return t, nil
}

// plug makes the pipes and the socket; it returns what the tree gets.
func (t *hostTree) plug() (pass []*os.File, err error) {
	stdin, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	t.stdin = ours
	pass = append(pass, stdin)
	for i := range t.out {
		r, w, err := os.Pipe()
		if err != nil {
			return pass, err
		}
		t.out[i] = newPump(r)
		pass = append(pass, w)
	}
	socket, theirs, err := socketpair(unix.SOCK_STREAM)
	if err != nil {
		return pass, err
	}
	t.socket = socket
	t.kicks, t.reports = json.NewEncoder(socket), json.NewDecoder(socket)
	return append(pass, theirs), nil
}

// begin says what to start and takes the first report.
func (t *hostTree) begin(p Program) error {
	if err := t.socket.SetDeadline(time.Now().Add(bootTimeout)); err != nil {
		return err
	}
	launch := guest.Launch{Argv: append([]string{p.Cmd}, p.Args...), Env: p.Env, Cwd: p.Cwd}
	if err := t.kicks.Encode(launch); err != nil {
		return err
	}
	var first guest.Report
	if err := t.reports.Decode(&first); err != nil {
		return err
	}
	if first.Fault != "" {
		return &StartError{Err: errors.New(first.Fault)}
	}
	t.pid = first.PID
	return t.socket.SetDeadline(time.Time{})
}

// unplug closes what plug has made, when nothing was started.
func (t *hostTree) unplug() error {
	var errs []error
	if t.stdin != nil {
		errs = append(errs, t.stdin.Close())
	}
	for _, p := range t.out {
		if p != nil {
			errs = append(errs, p.file.Close())
		}
	}
	if t.socket != nil {
		errs = append(errs, t.socket.Close())
	}
	return errors.Join(errs...)
}

// watch takes the reports until the tree's end, or the machine's.
func (t *hostTree) watch() {
	sure := false
	for !sure {
		var r guest.Report
		if err := t.reports.Decode(&r); err != nil {
			break // its top was killed: only the machine's end is the tree's
		}
		if r.Ended {
			t.settle(Exit{Code: r.Code, Signal: r.Signal})
		}
		sure = r.Gone
	}
	if !sure {
		<-t.machine.dead
		t.settle(Exit{Signal: int(unix.SIGKILL)})
	}
	close(t.gone)
	t.kickMu.Lock()
	defer t.kickMu.Unlock()
	t.treeEnded.Store(true)
	if err := errors.Join(t.socket.Close(), t.stdin.Close()); err != nil && !errors.Is(err, os.ErrClosed) {
		return // nothing depends on it
	}
}

// settle waits for what the leader has written.
func (t *hostTree) settle(e Exit) {
	if !t.leaderDone.CompareAndSwap(false, true) {
		return
	}
	for _, p := range t.out {
		p.mark()
	}
	for _, p := range t.out {
		<-p.marked
	}
	t.exit = e
	close(t.exited)
}

func (t *hostTree) PID() int                { return t.pid }
func (t *hostTree) Stdin() io.WriteCloser   { return t.stdin }
func (t *hostTree) Exited() <-chan struct{} { return t.exited }
func (t *hostTree) Exit() Exit              { return t.exit }
func (t *hostTree) Gone() <-chan struct{}   { return t.gone }
func (t *hostTree) Silent() <-chan struct{} { return t.silent }

// Signal implements Tree.
func (t *hostTree) Signal(number int, all bool) error {
	t.kickMu.Lock()
	defer t.kickMu.Unlock()
	if t.treeEnded.Load() {
		return nil
	}
	return t.kicks.Encode(guest.Kick{Signal: number, All: all})
}

// pump reads a pipe.
type pump struct {
	file *os.File
	// marked is closed when all was handed over that was written before mark.
	marked chan struct{}

	mu sync.Mutex
	// taken counts bytes read, handed those that were handed over. want is the
	// count of the mark; -1 while there is none.
	taken, handed, want int64
	ended               bool
}

func newPump(f *os.File) *pump { return &pump{file: f, marked: make(chan struct{}), want: -1} }

// run reads until nobody has the pipe's other end.
func (p *pump) run(stream int, output func(int, []byte)) {
	buf := make([]byte, 32<<10)
	for {
		n := p.take(buf)
		if n > 0 {
			output(stream, buf[:n])
		}
		if p.hand(n) {
			return
		}
	}
}

// take reads and counts in one step, so that mark never misses what is on its way.
func (p *pump) take(buf []byte) (n int) {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Read(func(fd uintptr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		var err error = unix.EINTR
		for err == unix.EINTR {
			n, err = unix.Read(int(fd), buf)
		}
		if err == unix.EAGAIN {
			return false
		}
		n = max(n, 0)
		p.taken += int64(n)
		return true
	})
	if err != nil {
		return 0
	}
	return n
}

// hand notes that n bytes were handed over; 0 is the end.
func (p *pump) hand(n int) (ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handed += int64(n)
	if n == 0 {
		p.ended = true
		// It was only read.
		_ = p.file.Close() //nolint:errcheck // see above
	}
	p.check()
	return p.ended
}

// mark says that what is in the pipe now is the last that marked waits for.
func (p *pump) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want = p.taken
	if !p.ended {
		p.want += p.waiting()
	}
	p.check()
}

// waiting is how much is in the pipe.
func (p *pump) waiting() int64 {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if err := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return 0
	}
	return int64(n)
}

func (p *pump) check() {
	if p.want < 0 || !p.ended && p.handed < p.want {
		return
	}
	select {
	case <-p.marked:
	default:
		close(p.marked)
	}
}
