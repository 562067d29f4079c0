package guest

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sweepPause is the pause between two rounds of killing what is left of a tree.
const sweepPause = 2 * time.Millisecond

// forkExec starts a program on descriptors that become 0, 1, 2, and so on.
func forkExec(path string, argv, env []string, cwd string, fds []int, pidfd *int) (int, error) {
	files := make([]uintptr, len(fds))
	for i, fd := range fds {
		files[i] = uintptr(fd)
	}
	return syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir: cwd, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, PidFD: pidfd},
	})
}

// tree is the top of one managed process.
type tree struct {
	leader, pidfd int

	mu  sync.Mutex
	out *json.Encoder
}

// runTree starts the leader and returns when nothing is left of its tree.
func runTree() error {
	unix.CloseOnExec(Socket)
	catchSignals()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	socket := os.NewFile(Socket, "socket")
	in := json.NewDecoder(socket)
	t := &tree{pidfd: -1, out: json.NewEncoder(socket)}
	var launch Launch
	if err := in.Decode(&launch); err != nil {
		return err
	}
	if err := t.start(launch); err != nil {
		report := Report{Fault: err.Error()}
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			report.Errno = int(errno)
		}
		return t.report(report)
	}
	// From here on the pipes' ends are the tree's alone.
	if err := letGoOfStreams(); err != nil {
		return err
	}
	t.tell(Report{PID: t.leader})
	// The process's end ends it.
	var kicking sync.WaitGroup
	kicking.Go(func() { t.listen(in) })
	return t.reap()
}

func (t *tree) start(launch Launch) error {
	path, err := lookup(launch.Argv[0], launch.Env)
	if err != nil {
		return err
	}
	t.leader, err = forkExec(path, launch.Argv, launch.Env, launch.Cwd, []int{0, 1, 2}, &t.pidfd)
	return err
}

func letGoOfStreams() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) report(r Report) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Encode(r)
}

// reap waits for every child, adopted ones included.
func (t *tree) reap() error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			return t.report(Report{Gone: true})
		case err != nil:
			return err
		case pid != t.leader || !status.Exited() && !status.Signaled():
			continue
		}
		r := Report{Ended: true}
		if status.Signaled() {
			r.Signal = int(status.Signal())
		} else {
			r.Code = status.ExitStatus()
		}
		t.tell(r)
	}
}

// tell reports to a server that may have gone: listen then ends the tree.
func (t *tree) tell(r Report) {
	_ = t.report(r) //nolint:errcheck // see above
}

// listen does what the server says, and ends the tree when the server has let go of it.
func (t *tree) listen(in *json.Decoder) {
	for {
		var kick Kick
		if err := in.Decode(&kick); err != nil {
			kick = Kick{Signal: int(unix.SIGKILL), All: true}
		}
		switch {
		case !kick.All:
			// A leader that has ended needs no signal.
			_ = unix.PidfdSendSignal(t.pidfd, unix.Signal(kick.Signal), nil, 0) //nolint:errcheck // see above
		case kick.Signal == int(unix.SIGKILL):
			for {
				sweep(unix.SIGKILL)
				time.Sleep(sweepPause) //nolint:forbidigo // the process ends when nothing is left
			}
		default:
			sweep(unix.Signal(kick.Signal))
		}
	}
}

// sweep signals all that descends from this process.
func sweep(s unix.Signal) {
	children := map[int][]int{}
	names, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name.Name()); err == nil {
			if parent := parentOf(pid); parent > 0 {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	todo := children[os.Getpid()]
	for len(todo) > 0 {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		// One that has just ended needs no signal.
		_ = unix.Kill(pid, s) //nolint:errcheck // see above
	}
}

// parentOf reads the fourth field of stat (proc_pid_stat(5)); 0 if there is none.
func parentOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}
