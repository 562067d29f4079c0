package createostest

import (
	"context"
	"crypto/rand"
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

const (
	// bootTimeout bounds what a guest does at once: tens of milliseconds.
	bootTimeout = 20 * time.Second
	// rootBytes bounds a sandbox's files.
	rootBytes = 512 << 20
	// nobody is the user that owns nothing (the kernel's overflow id).
	nobody = 65534
)

// Host makes sandboxes out of this Linux host's namespaces. It works as root, whose
// sandboxes have an ordinary user's rights, and as an ordinary user.
type Host struct {
	// name is in the mounts of every process inside, and of no other.
	name string
}

var _ Backend = (*Host)(nil)

// NewHost makes a backend of real processes.
func NewHost() *Host { return &Host{name: "createos-" + rand.Text()} }

// Boot implements Backend.
func (h *Host) Boot(ctx context.Context, id string) (Machine, error) {
	m := &hostMachine{id: id, dead: make(chan struct{})}
	if err := m.launch(ctx, guest.Setup{Name: h.name, Bytes: rootBytes}); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("sandbox %s: %w", id, err), m.End(ctx))
	}
	return m, nil
}

// Leftovers implements Backend: the processes that have one of its roots. Files are in
// memory, and end with them.
func (h *Host) Leftovers() ([]string, error) {
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, table := range tables {
		// One that has just ended is no leftover.
		if text, err := os.ReadFile(table); err == nil && strings.Contains(string(text), h.name) {
			left = append(left, "process "+filepath.Base(filepath.Dir(table)))
		}
	}
	return left, nil
}

// Close implements Backend.
func (h *Host) Close() error { return nil }

// hostMachine is one sandbox: its box guest.
type hostMachine struct {
	id  string
	box *os.Process
	// ends counts what has to be over before the machine has ended.
	ends sync.WaitGroup
	// dead is closed when box has ended, and with it all that was in its namespaces.
	dead chan struct{}

	mu     sync.Mutex
	socket *net.UnixConn
	ended  bool
}

// launch starts box and lets it make the root.
func (m *hostMachine) launch(ctx context.Context, setup guest.Setup) error {
	ours, theirs, err := socketpair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	m.socket = ours
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{guest.Marker, guest.RoleBox}, Env: []string{}, Dir: "/",
		ExtraFiles: []*os.File{theirs}, SysProcAttr: namespaces(),
	}
	err = errors.Join(cmd.Start(), theirs.Close())
	if err != nil {
		close(m.dead)
		return fmt.Errorf("starting its first process (namespaces are needed): %w", err)
	}
	m.box = cmd.Process
	m.ends.Go(func() {
		// It is always killed; how it ended says nothing.
		_ = cmd.Wait() //nolint:errcheck // see above
		close(m.dead)
	})
	return m.tell(ctx, setup)
}

// namespaces are those of a sandbox. Its root is one ordinary user outside: the
// server's own, or nobody's where that is root, as root's processes could change
// settings of the kernel whatever namespace they are in.
func namespaces() *syscall.SysProcAttr {
	uid, gid := os.Geteuid(), os.Getegid()
	attr := &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
	}
	if uid == 0 {
		uid, gid = nobody, nobody
		attr.GidMappingsEnableSetgroups = true
		attr.Credential = &syscall.Credential{}
	}
	attr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	return attr
}

// tell is ask for what has no file as its answer.
func (m *hostMachine) tell(ctx context.Context, message any, files ...*os.File) error {
	f, err := m.ask(ctx, message, files...)
	if f != nil {
		err = errors.Join(err, f.Close())
	}
	return err
}

// ask sends box a message and takes its answer, which may be a file.
func (m *hostMachine) ask(ctx context.Context, message any, files ...*os.File) (*os.File, error) {
	data, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	rights, err := passOn(files)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, errEnded
	}
	// An answer that is late would be taken for the next one's: what is asked is
	// always waited for.
	if err := m.socket.SetDeadline(time.Now().Add(bootTimeout)); err != nil {
		return nil, err
	}
	if _, _, err := m.socket.WriteMsgUnix(data, rights, nil); err != nil {
		return nil, errors.Join(errEnded, err, ctx.Err())
	}
	buf, oob := make([]byte, guest.MaxMessage), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := m.socket.ReadMsgUnix(buf, oob)
	if err != nil || n == 0 {
		return nil, errors.Join(errEnded, err, ctx.Err())
	}
	f, err := takeFile(oob[:oobn])
	if err != nil {
		return nil, err
	}
	var a guest.Answer
	if err := json.Unmarshal(buf[:n], &a); err != nil {
		return f, err
	}
	switch {
	case a.Errno != 0:
		err = fmt.Errorf("%s: %w", a.Fault, syscall.Errno(a.Errno))
	case a.Fault != "":
		err = errors.New(a.Fault)
	}
	return f, err
}

// passOn makes a message's control part of files.
func passOn(files []*os.File) ([]byte, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
		// A program expects streams that block.
		if err := unix.SetNonblock(fds[i], false); err != nil {
			return nil, err
		}
	}
	if len(fds) == 0 {
		return nil, nil
	}
	return unix.UnixRights(fds...), nil
}

// takeFile takes the file out of a message's control part; nil if there is none.
func takeFile(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil //nolint:nilnil // see above
	}
	parts, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(parts) != 1 {
		return nil, fmt.Errorf("%d control messages: %w", len(parts), err)
	}
	fds, err := unix.ParseUnixRights(&parts[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "file"), nil
}

// Freeze implements Machine: every process but box is stopped, twice, as one that
// was just being made may have been missed.
func (m *hostMachine) Freeze(ctx context.Context) error {
	return errors.Join(m.tell(ctx, guest.Order{Do: guest.OrderFreeze}), m.tell(ctx, guest.Order{Do: guest.OrderFreeze}))
}

// Thaw implements Machine.
func (m *hostMachine) Thaw(ctx context.Context) error {
	return m.tell(ctx, guest.Order{Do: guest.OrderThaw})
}

// End implements Machine. Box's death is the death of all.
func (m *hostMachine) End(ctx context.Context) error {
	if err := m.kill(); err != nil {
		return err
	}
	select {
	case <-m.dead:
	case <-ctx.Done():
		return fmt.Errorf("sandbox %s has not ended: %w", m.id, context.Cause(ctx))
	}
	m.ends.Wait()
	return nil
}

func (m *hostMachine) kill() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil
	}
	m.ended = true
	if m.box != nil {
		if err := m.box.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("killing sandbox %s: %w", m.id, err)
		}
	}
	if m.socket == nil {
		return nil
	}
	return m.socket.Close()
}

// Open implements Machine.
func (m *hostMachine) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	f, err := m.open(ctx, guest.Order{Path: []byte(path)})
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
func (m *hostMachine) Store(ctx context.Context, path string, content io.Reader, parents bool) error {
	f, err := m.open(ctx, guest.Order{Path: []byte(path), Write: true, Parents: parents})
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

func (m *hostMachine) open(ctx context.Context, order guest.Order) (*os.File, error) {
	if len(order.Path) > unix.PathMax {
		return nil, unix.ENAMETOOLONG
	}
	order.Do = guest.OrderOpen
	f, err := m.ask(ctx, order)
	if err == nil && f == nil {
		err = errors.New("no file")
	}
	return f, err
}

// Live implements Machine: all below box, without the guests.
func (m *hostMachine) Live() []LiveProcess {
	m.mu.Lock()
	ended := m.ended
	m.mu.Unlock()
	if ended {
		return nil
	}
	var live []LiveProcess
	todo := children(m.box.Pid)
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
		err = m.tell(ctx, guest.Order{Do: guest.OrderStart}, pass...)
	}
	for _, f := range pass {
		err = errors.Join(err, f.Close())
	}
	if err == nil {
		err = t.begin(p)
	}
	if err == nil {
		err = m.while(func() { t.pump(p) }, t.watch)
	}
	if err != nil {
		return nil, errors.Join(err, t.unplug())
	}
	return t, nil
}

// pump takes the output until there is no more.
func (t *hostTree) pump(p Program) {
	var pumping sync.WaitGroup
	for i, stream := range t.out {
		pumping.Go(func() { stream.run(i+1, p.Output) })
	}
	pumping.Wait()
	close(t.silent)
}

// while runs what has to be over before the machine has ended, unless it is told to end.
func (m *hostMachine) while(tasks ...func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return errEnded
	}
	for _, task := range tasks {
		m.ends.Go(task)
	}
	return nil
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
