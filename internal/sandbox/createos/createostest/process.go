package createostest

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// The states of a process.
const (
	stateRunning     = "running"
	stateTerminating = "terminating"
	stateExited      = "exited"
)

const (
	// maxInput is how much one call of input may bring.
	maxInput = 256 << 10
	// killWait bounds a DELETE after its grace.
	killWait = 10 * time.Second
	// maxWait bounds one call of wait.
	maxWait     = 10 * time.Minute
	defaultWait = 30 * time.Second
)

// processRequest is the body of a creation.
type processRequest struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args"`
	Cwd  string            `json:"cwd"`
	Env  map[string]string `json:"env"`
	Pty  *struct {
		Rows int `json:"rows"`
		Cols int `json:"cols"`
	} `json:"pty"`
}

// process is one managed process and its record.
type process struct {
	id      string
	asked   processRequest
	tree    Tree
	journal *journal
	created time.Time
	// released is closed when its sandbox ends: what waits for it then ends.
	released chan struct{}

	inputs sync.Mutex // held while input is written, so that its order is the calls'

	mu          sync.Mutex
	inputSeq    int64
	stdinClosed bool
	terminating bool
	finished    time.Time
	letGoOnce   sync.Once
}

func (s *Server) createProcess(r *http.Request, b *box) (int, any, error) {
	var asked processRequest
	if err := decode(r, &asked); err != nil {
		return 0, nil, err
	}
	if asked.Pty != nil {
		return fail(http.StatusBadRequest, "pty: this server has none")
	}
	env, err := b.env(asked.Cmd, asked.Args, asked.Env)
	if err != nil {
		return 0, nil, err
	}
	p := &process{
		id: "proc-" + strings.ToLower(ulid.Make().String()), asked: asked, created: s.config.Now(), released: make(chan struct{}),
		journal: newJournal(s.config.JournalBytes, s.config.HoldBack),
	}
	p.tree, err = s.start(r, b, Program{
		Cmd: asked.Cmd, Args: asked.Args, Env: env, Cwd: cwdOr(asked.Cwd), Output: p.journal.append,
	})
	if err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	in(r).call.Created = p.id
	b.procs[p.id] = p
	b.order = append(b.order, p.id)
	if b.destroying || s.closed {
		p.letGo()
	}
	// It ends with the process, or the sandbox.
	s.running.Go(func() { s.follow(p) })
	view := p.details()
	if a, ok := in(r).fx.find(kindMalformedID); ok {
		view["process_id"] = a.text
	}
	return ok(view)
}

// start starts a program, which its client's going does not undo.
func (s *Server) start(r *http.Request, b *box, p Program) (Tree, error) {
	s.mu.Lock()
	if b.status != statusRunning {
		s.mu.Unlock()
		return nil, refuse(http.StatusConflict, "the sandbox is %s", b.status)
	}
	b.starting++
	s.mu.Unlock()
	tree, err := b.machine.Start(context.WithoutCancel(r.Context()), p)
	s.mu.Lock()
	defer s.mu.Unlock()
	b.starting--
	if err != nil {
		return nil, startRefusal(err)
	}
	return tree, nil
}

func cwdOr(cwd string) string {
	if cwd == "" {
		return "/root"
	}
	return cwd
}

// startRefusal says why a program could not be executed: surely no process is there.
func startRefusal(err error) error {
	if start, ok := errors.AsType[*StartError](err); ok {
		return &refusal{status: http.StatusBadRequest, text: start.Error(), code: "process_start"}
	}
	return err
}

// env checks a command and its environment, and makes the whole one. Only keys that
// the sandbox has declared may be set.
func (b *box) env(cmd string, args []string, more map[string]string) ([]string, error) {
	if cmd == "" {
		return nil, refuse(http.StatusBadRequest, "cmd: is required")
	}
	if strings.Contains(cmd+strings.Join(args, ""), "\x00") {
		return nil, refuse(http.StatusBadRequest, "cmd, args: a NUL")
	}
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "LOGNAME=root", "LANG=C.UTF-8",
	}
	for name, value := range b.asked.Envs {
		if _, over := more[name]; !over {
			env = append(env, name+"="+value)
		}
	}
	for name, value := range more {
		if _, declared := b.asked.Envs[name]; !declared {
			return nil, &refusal{status: http.StatusBadRequest, text: "env: " + name + " was not declared", code: "env_not_declared"}
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

// follow notes a process's ends.
func (s *Server) follow(p *process) {
	for _, end := range []<-chan struct{}{p.tree.Exited(), p.tree.Gone()} {
		select {
		case <-end:
		case <-p.released:
			select {
			case <-end:
			case <-p.tree.Gone():
			}
		}
		p.mu.Lock()
		if p.finished.IsZero() {
			p.finished = s.config.Now()
		}
		p.mu.Unlock()
		p.journal.wake()
	}
}

// letGo frees what waits for the process: its sandbox ends.
func (p *process) letGo() {
	p.letGoOnce.Do(func() {
		close(p.released)
		p.journal.release()
	})
}

func (p *process) hasExited() bool { return isClosed(p.tree.Exited()) }
func (p *process) isGone() bool    { return isClosed(p.tree.Gone()) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (b *box) process(s *Server, id string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.procs[id]
}

func (s *Server) listProcesses(_ *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []map[string]any{}
	for _, id := range b.order {
		all = append(all, b.procs[id].details())
	}
	return ok(map[string]any{"processes": all})
}

func (s *Server) getProcess(r *http.Request, _ *box, p *process) (int, any, error) {
	return ok(p.scripted(in(r).fx))
}

// scripted are details as a rule wants them.
func (p *process) scripted(fx effects) map[string]any {
	view := p.details()
	if fx.has(kindTreeExitedFalse) {
		view["tree_exited"] = false
	}
	return view
}

// details are the ProcessDetails.
func (p *process) details() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	oldest, newest, total := p.journal.span()
	view := map[string]any{
		"process_id": p.id, "kind": "process", "pid": p.tree.PID(), "state": stateRunning, "signal": "",
		"leader_exited": false, "tree_exited": p.isGone(), "created_at": p.created.UTC().Format(time.RFC3339Nano),
		"cmd": p.asked.Cmd, "args": slices.Concat([]string{}, p.asked.Args), "cwd": cwdOr(p.asked.Cwd),
		"output": map[string]any{"oldest_seq": oldest, "newest_seq": newest, "bytes": total},
	}
	if p.terminating {
		view["state"] = stateTerminating
	}
	if p.hasExited() {
		view["state"], view["leader_exited"] = stateExited, true
		if e := p.tree.Exit(); e.Signal == 0 {
			view["exit_code"] = e.Code
		} else {
			view["signal"] = signalName(e.Signal)
		}
		if !p.finished.IsZero() {
			view["finished_at"] = p.finished.UTC().Format(time.RFC3339Nano)
		}
	}
	return view
}

func signalName(number int) string {
	if name := unix.SignalName(unix.Signal(number)); name != "" {
		return name
	}
	return "SIGUNKNOWN"
}

func (s *Server) input(r *http.Request, _ *box, p *process) (int, any, error) {
	var asked struct {
		Data string `json:"data_base64"`
	}
	if err := decode(r, &asked); err != nil {
		return 0, nil, err
	}
	data, err := base64.StdEncoding.Strict().DecodeString(asked.Data)
	if err != nil || len(data) > maxInput {
		return fail(http.StatusBadRequest, "data_base64: is none, or has more than %d bytes", maxInput)
	}
	p.inputs.Lock()
	defer p.inputs.Unlock()
	if p.isStdinClosed() || p.hasExited() {
		return fail(http.StatusConflict, "standard input is closed")
	}
	// A client that goes leaves what was not written yet.
	stop := context.AfterFunc(r.Context(), func() { interruptWrite(p.tree.Stdin()) })
	defer stop()
	if _, err := p.tree.Stdin().Write(data); err != nil {
		return fail(http.StatusConflict, "standard input is closed")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inputSeq++
	return ok(map[string]any{"input_seq": p.inputSeq})
}

// interruptWrite ends a Write that waits; where that is not possible, the process's
// end does.
func interruptWrite(w any) {
	if d, ok := w.(interface{ SetWriteDeadline(t time.Time) error }); ok {
		// An error means that it is closed, which ends the Write, too.
		_ = d.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // see above
	}
}

func (p *process) isStdinClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdinClosed
}

func (s *Server) closeStdin(r *http.Request, _ *box, p *process) (int, any, error) {
	if r.ContentLength > 0 {
		var nothing struct{}
		if err := decode(r, &nothing); err != nil {
			return 0, nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdinClosed || p.hasExited() {
		return fail(http.StatusConflict, "standard input is closed")
	}
	p.stdinClosed = true
	if err := p.tree.Stdin().Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return 0, nil, err
	}
	return ok(map[string]any{"ok": true})
}

func (s *Server) resize(*http.Request, *box, *process) (int, any, error) {
	return fail(http.StatusConflict, "not a pty")
}

func (s *Server) signal(r *http.Request, _ *box, p *process) (int, any, error) {
	var asked struct {
		Signal string `json:"signal"`
	}
	if err := decode(r, &asked); err != nil {
		return 0, nil, err
	}
	allowed := []string{"SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"}
	if !slices.Contains(allowed, asked.Signal) {
		return fail(http.StatusBadRequest, "signal: none of %s", strings.Join(allowed, ", "))
	}
	if p.hasExited() {
		return fail(http.StatusConflict, "the process has exited")
	}
	if err := p.tree.Signal(int(unix.SignalNum(asked.Signal)), false); err != nil {
		return 0, nil, err
	}
	return ok(map[string]any{"ok": true})
}

func (s *Server) wait(r *http.Request, _ *box, p *process) (int, any, error) {
	end := p.tree.Exited()
	switch scope := r.URL.Query().Get("scope"); scope {
	case "", "leader":
	case "tree":
		end = p.tree.Gone()
	default:
		return fail(http.StatusBadRequest, "scope: leader or tree")
	}
	ms, err := number(r, "timeout_ms", defaultWait.Milliseconds())
	if err != nil {
		return 0, nil, err
	}
	timer := time.NewTimer(min(time.Duration(ms)*time.Millisecond, maxWait))
	defer timer.Stop()
	select {
	case <-end:
		// A tree that is gone has a leader that has ended: it is settled in a moment.
		select {
		case <-p.tree.Exited():
		case <-p.released:
		case <-timer.C:
		}
		return ok(p.scripted(in(r).fx))
	case <-timer.C:
		return fail(http.StatusRequestTimeout, "it goes on")
	case <-r.Context().Done():
	case <-p.released:
	case <-s.closing:
	}
	return fail(http.StatusServiceUnavailable, "the sandbox ends")
}

// deleteProcess ends the tree: TERM to all of it, the grace, then KILL. A record of
// which nothing lives is removed.
func (s *Server) deleteProcess(r *http.Request, b *box, p *process) (int, any, error) {
	grace, err := number(r, "grace_ms", 0)
	if err != nil {
		return 0, nil, err
	}
	fx := in(r).fx
	if fx.has(kindLieDeleted) {
		view := p.details()
		view["state"], view["leader_exited"], view["tree_exited"] = stateExited, true, true
		return ok(view)
	}
	p.mu.Lock()
	p.terminating = true
	p.mu.Unlock()
	// Nobody reads its output any more, or has to hurry.
	p.journal.release()
	if !p.isGone() {
		if err := s.terminate(p, min(time.Duration(grace)*time.Millisecond, maxWait)); err != nil {
			return 0, nil, err
		}
	}
	view := p.scripted(fx)
	if p.isGone() && !fx.has(kindTreeExitedFalse) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(b.procs, p.id)
		b.order = slices.DeleteFunc(b.order, func(id string) bool { return id == p.id })
	}
	return ok(view)
}

// terminate goes on although the client goes.
func (s *Server) terminate(p *process, grace time.Duration) error {
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, killWait}} {
		if step.wait == 0 {
			continue
		}
		if err := p.tree.Signal(int(step.signal), true); err != nil {
			return err
		}
		timer := time.NewTimer(step.wait)
		select {
		case <-p.tree.Gone():
		case <-timer.C:
		case <-s.closing:
		}
		timer.Stop()
		if p.isGone() {
			// Its leader's end is settled in a moment.
			select {
			case <-p.tree.Exited():
			case <-p.released:
			}
			return nil
		}
	}
	return nil
}
