package fake

import (
	"strings"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

const (
	// pipePiece is the greatest piece that a program writes at once.
	pipePiece = 32 << 10
	// sinkPiece is the greatest piece that the sink gets (sandbox.Sink).
	sinkPiece = 256 << 10

	sigKill, sigTerm = 9, 15
)

// supervise runs the program and hands its output over; it returns when the run
// is over in every respect.
func (r *run) supervise() {
	var helpers sync.WaitGroup
	helpers.Go(func() { r.pump(sandbox.Stdout, r.out) })
	helpers.Go(func() { r.pump(sandbox.Stderr, r.errs) })
	helpers.Go(r.watch)
	var exit *sandbox.Exit
	switch {
	case r.script.open == "hang", r.script.open == "unstarted", r.script.open == "die":
		<-r.over // it never got its start signal
	case r.script.start == "":
		r.box.p.world.begin()
		exit = r.lead()
	}
	close(r.out)
	close(r.errs)
	r.settle(exit)
	helpers.Wait()
	close(r.drained)
}

// watch ends the tree with its sandbox or with the provider.
func (r *run) watch() {
	select {
	case <-r.box.resident.gone:
		r.interrupt(causeGone)
	case <-r.box.p.closing:
		r.interrupt(causeClosed)
	case <-r.dead:
	}
}

// lead runs the steps and returns the leader's end; nil when nobody knows it.
func (r *run) lead() *sandbox.Exit {
	for _, s := range r.script.steps {
		if exit := r.step(s); exit != nil {
			return exit
		}
		select {
		case <-r.over:
			return r.ended()
		default:
		}
	}
	return &sandbox.Exit{}
}

// ended is how the leader ends when it has to.
func (r *run) ended() *sandbox.Exit {
	r.mu.Lock()
	cause, trap := r.cause, r.termExit
	r.mu.Unlock()
	if cause == causeTerm {
		if trap == nil {
			return &sandbox.Exit{Signal: sigTerm}
		}
		timer := time.NewTimer(trap.d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return &sandbox.Exit{Code: int(trap.n)}
		case <-r.killed:
		}
		r.mu.Lock()
		cause = r.forced
		r.mu.Unlock()
	}
	if cause == causeKill {
		return &sandbox.Exit{Signal: sigKill}
	}
	return nil
}

// step does one step; it returns an exit when that ends the leader by itself.
func (r *run) step(s step) *sandbox.Exit {
	switch s.name {
	case "print":
		r.write(r.out, []byte(s.text+"\n"))
	case "err":
		r.write(r.errs, []byte(s.text+"\n"))
	case "cat":
		r.cat()
	case "write":
		r.flood(r.out, s.n)
	case "write-err":
		r.flood(r.errs, s.n)
	case "env":
		r.write(r.out, []byte(r.env(s.text)+"\n"))
	case "pwd":
		r.write(r.out, []byte(r.cwd()+"\n"))
	case "touch":
		r.box.p.world.put(r.box.resident, s.text, item{})
	case "put":
		name, text, _ := strings.Cut(s.text, ":")
		r.box.p.world.put(r.box.resident, name, item{content: text})
	case "show":
		r.write(r.out, r.box.show(s.text))
	case "make":
		r.box.make(s.text)
	case "ls":
		r.write(r.out, r.box.files())
	case "sleep":
		r.sleep(s.d)
	case "forever":
		<-r.over
	case "cpu":
		return r.burn(s.d)
	case "memory":
		return r.allocate(s.n)
	case "exit":
		return &sandbox.Exit{Code: int(s.n)}
	case "signal":
		return &sandbox.Exit{Signal: int(s.n)}
	case "oom":
		return r.oom()
	case "die":
		r.die(s.text == "unproven")
	default:
		r.adopt(s)
	}
	return nil
}

// adopt does the steps that change how the tree takes signals.
func (r *run) adopt(s step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s.name {
	case "ignore-term":
		r.ignoring = true
	case "term-exit":
		r.termExit = &s
	case "leftover":
		c := child{ignoring: r.ignoring}
		if s.d >= 0 {
			c.until = time.Now().Add(s.d)
		}
		r.children = append(r.children, c)
	}
}

func (r *run) write(to chan<- []byte, p []byte) bool {
	for len(p) > 0 {
		piece := p[:min(len(p), pipePiece)]
		select {
		case to <- piece:
			p = p[len(piece):]
		case <-r.over:
			return false
		}
	}
	return true
}

func (r *run) flood(to chan<- []byte, n int64) {
	block := []byte(strings.Repeat(Pattern, pipePiece/len(Pattern)))
	for n > 0 {
		piece := block[:min(n, int64(len(block)))]
		if !r.write(to, piece) {
			return
		}
		n -= int64(len(piece))
	}
}

func (r *run) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.over:
		return false
	}
}

// cat copies standard input to stdout. It reads in a goroutine of its own: a
// reader that blocks must not keep the tree alive.
func (r *run) cat() {
	if r.process.Stdin == nil {
		return
	}
	pieces := make(chan []byte)
	reading := r.box.p.spawn(func() {
		defer close(pieces)
		for {
			piece := make([]byte, pipePiece)
			n, err := r.process.Stdin.Read(piece)
			select {
			case pieces <- piece[:n]:
			case <-r.over:
				return
			}
			if err != nil {
				return
			}
		}
	})
	for reading {
		select {
		case piece, more := <-pieces:
			if !more || !r.write(r.out, piece) {
				return
			}
		case <-r.over:
			return
		}
	}
}

func (r *run) env(name string) string {
	for _, entry := range r.process.Env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func (r *run) cwd() string {
	if r.process.Cwd == "" {
		return workspace
	}
	return r.process.Cwd
}

func (r *run) burn(d time.Duration) *sandbox.Exit {
	r.mu.Lock()
	limit := r.process.Limits.CPU
	exceeded := limit > 0 && r.cpu+d > limit
	if exceeded {
		d = limit - r.cpu
	}
	r.cpu += d
	r.mu.Unlock()
	if !r.sleep(d) || !exceeded {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end.CPUExceeded = true
	return &sandbox.Exit{Signal: sigKill}
}

func (r *run) allocate(n int64) *sandbox.Exit {
	limit := r.process.Limits.MemoryBytes
	if limit > 0 && n > limit {
		return r.oom()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory = max(r.memory, n)
	return nil
}

func (r *run) oom() *sandbox.Exit {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory = max(r.memory, r.process.Limits.MemoryBytes)
	r.end.OOM++
	return &sandbox.Exit{Signal: sigKill}
}

// die breaks the sandbox under the program.
func (r *run) die(unproven bool) {
	if unproven {
		r.mu.Lock()
		r.unprovable = true
		r.mu.Unlock()
		r.box.p.world.spoil(r.box.resident)
		r.interrupt(causeGone)
		return
	}
	r.box.p.world.vanish(r.box.resident)
	<-r.over
}

// settle notes the leader's end, ends what it left behind, and waits for the
// proof.
func (r *run) settle(exit *sandbox.Exit) {
	r.mu.Lock()
	now := time.Now()
	r.end.Exit, r.end.EndedAt = exit, now
	r.end.Leftover = r.alive(now) > 0
	r.end.StartError = r.startError()
	if r.end.StartError == nil {
		r.end.Usage = sandbox.Usage{
			CPUUser: r.cpu, MemoryPeakBytes: r.memory, PidsPeak: int64(1 + len(r.children)), Source: "cgroup",
		}
	}
	never := r.unprovable
	r.mu.Unlock()
	p := r.prove(never)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killTimer != nil {
		r.killTimer.Stop()
	}
	r.end.Proof = p
	if p.Proven {
		r.end.ProvenAt = time.Now()
	}
	close(r.dead)
}

// prove waits until the end of the tree is proven, or can never be.
func (r *run) prove(never bool) sandbox.Proof {
	select {
	case <-r.box.resident.gone:
		return proof(sandbox.EvidenceNotFound, "the sandbox is gone")
	default:
	}
	var due <-chan time.Time
	if !never {
		timer := time.NewTimer(r.script.delay["wait"])
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-due:
		if r.box.p.caps.Scope == "kernel" {
			return proof(sandbox.EvidencePidfd, "the tree's init is dead")
		}
		return proof(sandbox.EvidenceTreeExited, "the tree has exited")
	case <-r.box.resident.gone:
		return proof(sandbox.EvidenceNotFound, "the sandbox is gone")
	case <-r.box.p.closing:
		return sandbox.Proof{}
	}
}

// alive counts the children that live after the leader; r.mu is held.
func (r *run) alive(now time.Time) int {
	n := 0
	for _, c := range r.children {
		termed := r.terminated && !c.ignoring
		if r.forced == causeNone && !termed && (c.until.IsZero() || c.until.After(now)) {
			n++
		}
	}
	return n
}

func (r *run) startError() *sandbox.StartError {
	if r.script.start == "" {
		return nil
	}
	path := r.process.Argv[0]
	if r.script.start == sandbox.StartBadCwd && r.process.Cwd != "" {
		path = r.process.Cwd
	}
	return &sandbox.StartError{Reason: r.script.start, Path: path}
}

// pump hands one stream to the sink, in pieces as large as there are.
func (r *run) pump(stream sandbox.Stream, from <-chan []byte) {
	for {
		select {
		case <-r.deaf:
			return
		case piece, more := <-from:
			if !more {
				return
			}
			if r.isDeaf() {
				return
			}
			if err := r.sink.Write(stream, gather(piece, from)); err != nil {
				r.deafOnce.Do(func() { close(r.deaf) })
				return
			}
		}
	}
}

func (r *run) isDeaf() bool {
	select {
	case <-r.deaf:
		return true
	default:
		return false
	}
}

// gather adds what is waiting in the pipe to piece.
func gather(piece []byte, from <-chan []byte) []byte {
	all := append([]byte(nil), piece...)
	for len(all)+pipePiece <= sinkPiece {
		select {
		case next := <-from: // empty once the pipe is closed
			if len(next) == 0 {
				return all
			}
			all = append(all, next...)
		default:
			return all
		}
	}
	return all
}
