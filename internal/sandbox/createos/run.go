package createos

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// run is one process tree. Its life: prepare (it waits at its gate) → Open → the follower
// reads its output to the end and sees to the proof → drained. Terminate, or a fault,
// sets an ender to work beside the follower.
type run struct {
	box     *box
	program *program
	sink    sandbox.Sink
	// base is the path that the names of its files inside begin with.
	base string
	// pid is the process's id; set under mu before the follower starts.
	pid string

	// ready is closed when the process waits at its gate; or will never.
	ready     chan struct{}
	readyOnce sync.Once
	// dead is closed when the tree's end is proven; drained, when the follower has ended.
	dead, drained chan struct{}

	mu   sync.Mutex
	gate gate
	end  sandbox.End
	// cause is why it cannot be followed (any more); nil when it was, to the end.
	cause error
	// asked says that the owner wanted its end, faulty that we did: then its exit is not
	// the program's own.
	asked, faulty bool
	// atGate says that the process said that it waits there.
	atGate bool
	// fileFault is the number of the file that could not be placed, or -1.
	fileFault int
	// newest is the number of the last piece of output, once known.
	newest *uint64
	// ender is the ongoing work on the tree's end.
	ender *ender
	// unfollow ends the follower.
	unfollow context.CancelCauseFunc
	// staged says that files of ours may be left inside.
	staged bool
}

var _ sandbox.Run = (*run)(nil)

type gate int

const (
	gateClosed gate = iota
	gateOpen
	// gateSpent: it was never opened and never will be.
	gateSpent
)

func newRun(b *box, g *program, sink sandbox.Sink) *run {
	return &run{
		box: b, program: g, sink: sink, base: b.own + "/" + rand.Text(), fileFault: -1,
		ready: make(chan struct{}), dead: make(chan struct{}), drained: make(chan struct{}),
		end: sandbox.End{
			Started: sandbox.StartedNo,
			Usage:   sandbox.Usage{CPUUser: -1, CPUSystem: -1, MemoryPeakBytes: -1, PidsPeak: -1},
		},
	}
}

const (
	// stagedInput is the largest standard input that is uploaded before the start; what
	// is larger is written while the process runs.
	stagedInput = 8 << 20
	// inputPiece is the most that one call writes to a standard input.
	inputPiece = 256 << 10
)

// prepare sets the process up behind its gate. After an error of kind Refused nothing of
// it is left.
func (r *run) prepare(ctx context.Context) error {
	sizes, err := r.placeFiles(ctx)
	if err != nil {
		return r.unstage(ctx, err)
	}
	input, rest, err := r.placeInput(ctx)
	if err != nil {
		return r.unstage(ctx, err)
	}
	nonce := rand.Text()
	cfg := &r.box.p.cfg
	argv := r.program.argv(nonce, r.base, input, int(cfg.GateTimeout/time.Second), cfg.Workspace, sizes)
	d, err := r.box.p.api.start(ctx, r.box.id, cfg.Workspace, argv)
	if err != nil {
		return r.notCreated(ctx, err)
	}
	r.mu.Lock()
	r.pid = d.ID
	r.mu.Unlock()
	r.follow(nonce)
	if err := r.atTheGate(ctx, input); err != nil {
		return err
	}
	if rest != nil {
		r.box.p.spawn(func(ctx context.Context) { r.feed(ctx, rest) })
	}
	return nil
}

// placeFiles uploads the files' contents in one piece and returns their sizes.
func (r *run) placeFiles(ctx context.Context) ([]int64, error) {
	if len(r.program.files) == 0 {
		return nil, nil
	}
	content := newCounted(r.program.files)
	err := r.upload(ctx, "-files", content)
	switch {
	case content.fault != nil:
		return nil, sandbox.Errorf(sandbox.Refused, "place", "%w", content.fault)
	case kindOf(err) == sandbox.Refused && err != nil:
		return nil, sandbox.Errorf(sandbox.Refused, "place", "%w", &sandbox.FileError{Path: r.program.files[0].Path, Err: err})
	}
	return content.sizes, err
}

// upload stages one of our files. What is small is sent with its length.
func (r *run) upload(ctx context.Context, name string, source io.Reader) error {
	r.staged = true
	content := &released{source: source}
	defer content.release()
	head := make([]byte, inputPiece)
	n, err := readFull(content, head)
	if err != nil {
		return err
	}
	if n < len(head) {
		return r.box.p.api.upload(ctx, r.box.id, r.base+name, bytes.NewReader(head[:n]), int64(n))
	}
	return r.box.p.api.upload(ctx, r.box.id, r.base+name, io.MultiReader(bytes.NewReader(head), content), -1)
}

// released is a source that the transport, which may read on after its call, lets go of.
type released struct {
	mu     sync.Mutex
	source io.Reader
}

// Read implements io.Reader.
func (r *released) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.source == nil {
		return 0, io.ErrClosedPipe
	}
	// Each piece is a chunk on the wire.
	n, err := readFull(r.source, p)
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (r *released) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source = nil
}

// placeInput uploads the standard input and says where it comes from: none, file, or pipe
// where it is too large, with all of it. A source that fails is an input that ends there.
func (r *run) placeInput(ctx context.Context) (from string, rest io.Reader, err error) {
	if r.program.Stdin == nil {
		return "none", nil, nil
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(onlyReader{r.program.Stdin}, stagedInput+1)); err != nil {
		r.box.p.log.Warn().Str("lease", r.box.handle.Lease).Msg("the source of a standard input failed")
	} else if data.Len() > stagedInput {
		return "pipe", io.MultiReader(&data, r.program.Stdin), nil
	}
	r.staged = true
	size := int64(data.Len())
	return "file", nil, r.box.p.api.upload(ctx, r.box.id, r.base+"-stdin", &data, size)
}

// onlyReader hides what io.Copy would use instead of reading.
type onlyReader struct{ io.Reader }

// unstage removes what was uploaded for a process that was not created. The sandbox is as
// it was only if that is sure.
func (r *run) unstage(ctx context.Context, why error) error {
	err := ctx.Err() // the caller waits no longer
	if err == nil {
		ctx, cancel := cleanup(ctx, r.box.p.cfg.CleanupTimeout)
		defer cancel()
		err = r.removeStaged(ctx)
	}
	if err != nil && kindOf(why) == sandbox.Refused {
		return sandbox.Errorf(sandbox.Unavailable, "clean up", "%w; what was uploaded may be left: %w", why, err)
	}
	return why
}

func (r *run) removeStaged(ctx context.Context) error {
	if !r.staged {
		return nil
	}
	code, err := r.box.p.api.exec(ctx, r.box.id, "/bin/rm", "-f", "--", r.base+"-files", r.base+"-stdin", r.base+"-gate")
	if err == nil && code != 0 {
		err = errors.New("the files could not be removed")
	}
	return err
}

// notCreated decides about a create call that brought no process.
func (r *run) notCreated(ctx context.Context, err error) error {
	switch kindOf(err) {
	case sandbox.Ambiguous, sandbox.Protocol:
		// There may be a process of which nobody knows the id. It waits at a gate that
		// never opens; only the sandbox's end surely ends it.
		err = sandbox.Errorf(sandbox.Ambiguous, "create a process", "%w: %w", errUnconfirmedProcess, err)
	case sandbox.Gone:
		if _, lost := r.box.there(ctx); lost != nil {
			return lost
		}
	case sandbox.Refused, sandbox.Busy, sandbox.Unavailable:
	}
	return r.unstage(ctx, err)
}

// atTheGate closes the standard input and waits until the process stands at its gate.
func (r *run) atTheGate(ctx context.Context, input string) error {
	if input != "pipe" {
		if err := r.box.p.api.closeStdin(ctx, r.box.id, r.pid); err != nil {
			return r.abandon(err)
		}
	}
	select {
	case <-r.ready:
	case <-ctx.Done():
		return r.abandon(&callError{what: "process set-up", effect: looks, err: context.Cause(ctx)})
	}
	r.mu.Lock()
	atGate, fault := r.atGate, r.fileFault
	r.mu.Unlock()
	switch {
	case atGate:
		return nil
	case fault < 0 || fault >= len(r.program.files):
		return r.abandon(errors.New("the process did not come to its gate: the image must provide Bash and coreutils"))
	}
	// The process has cleaned up and ends.
	select {
	case <-r.drained:
	case <-ctx.Done():
		return r.abandon(&callError{what: "process set-up", effect: looks, err: context.Cause(ctx)})
	}
	if !r.finished() {
		return r.abandon(errUnconfirmedEnd)
	}
	return sandbox.Errorf(sandbox.Refused, "place", "%w", &sandbox.FileError{
		Path: r.program.files[fault].Path, Err: errors.New("the sandbox could not write it"),
	})
}

// abandon ends a process that did not come to its gate, behind the caller's back, and
// returns an error after which the sandbox can only be destroyed.
func (r *run) abandon(why error) error {
	r.spend()
	r.request(0, false)
	if kindOf(why) == sandbox.Refused {
		return sandbox.Errorf(sandbox.Unavailable, "prepare", "%w", why)
	}
	return why
}

// openings is how often the gate's file is uploaded: that it is there twice is as once.
const openings = 3

// Open implements sandbox.Run.
func (r *run) Open(ctx context.Context) error {
	const op = "open"
	if ctx.Err() != nil {
		return sandbox.Errorf(sandbox.Refused, op, "not begun: %w", context.Cause(ctx))
	}
	if err := r.box.usable(op); err != nil {
		return sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	r.mu.Lock()
	if r.gate != gateClosed || closed(r.dead) {
		r.mu.Unlock()
		return sandbox.Errorf(sandbox.Refused, op, "the gate was opened before, or the run was terminated")
	}
	r.gate = gateOpen
	r.end.Started = sandbox.StartedMaybe
	r.mu.Unlock()
	doubt := false
	for try := 1; ; try++ {
		err := r.box.p.api.upload(ctx, r.box.id, r.base+"-gate", strings.NewReader("open"), 4)
		if err == nil {
			return nil
		}
		kind := kindOf(err)
		doubt = doubt || kind == sandbox.Ambiguous || kind == sandbox.Protocol
		if try < openings && doubt && passing(err) && ctx.Err() == nil {
			continue
		}
		if doubt {
			return sandbox.Errorf(sandbox.Ambiguous, op, "%w", err)
		}
		r.shut()
		return sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
}

// shut notes that the gate surely did not open.
func (r *run) shut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end.Started == sandbox.StartedMaybe {
		r.gate = gateSpent
		r.end.Started = sandbox.StartedNo
	}
}

// spend makes sure that a gate which is still closed stays so.
func (r *run) spend() (closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate == gateClosed {
		r.gate = gateSpent
	}
	return r.gate == gateSpent
}

// Wait implements sandbox.Run.
func (r *run) Wait(ctx context.Context) (sandbox.End, error) {
	const op = "wait"
	select {
	case <-r.drained:
		return r.answer(op)
	default:
	}
	select {
	case <-r.drained:
		return r.answer(op)
	case <-r.box.p.alive.Done():
		return r.known(), sandbox.Errorf(sandbox.Unavailable, op, "%w", errClosed)
	case <-ctx.Done():
		return r.known(), sandbox.Errorf(sandbox.Ambiguous, op, "the end is not known yet: %w", context.Cause(ctx))
	}
}

func (r *run) answer(op string) (sandbox.End, error) {
	r.mu.Lock()
	end, cause := r.end, r.cause
	r.mu.Unlock()
	switch {
	case !end.Proof.Proven && cause != nil:
		return end, sandbox.Errorf(sandbox.Ambiguous, op, "%w: %w", errUnconfirmedEnd, cause)
	case !end.Proof.Proven:
		return end, sandbox.Errorf(sandbox.Ambiguous, op, "%w", errUnconfirmedEnd)
	case cause != nil:
		return end, fail(op, cause)
	}
	return end, nil
}

func (r *run) known() sandbox.End {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.end
}

// exists says that there is a process.
func (r *run) exists() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pid != ""
}

// finished says that the end is proven and the follower has done all it could.
func (r *run) finished() bool { return closed(r.drained) && closed(r.dead) }

// prove notes the proven end of the tree; d is the process's last state, if there is one.
func (r *run) prove(evidence []sandbox.Evidence, d *details) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if closed(r.dead) {
		return
	}
	now := time.Now()
	if d != nil {
		if newest, err := d.newest(); err == nil {
			r.newest = &newest
		}
		if exit := d.exit(); exit != nil && r.end.Exit == nil && r.gate == gateOpen && (r.asked || !r.faulty) {
			r.end.Exit = exit
		}
	}
	if r.end.Exit != nil && r.end.EndedAt.IsZero() {
		r.end.EndedAt = now
	}
	if r.gate != gateOpen {
		evidence = append(evidence, sandbox.Evidence{Kind: sandbox.EvidenceNotStarted, Detail: "the start gate never opened"})
	}
	r.end.Proof = sandbox.Proof{Proven: true, Evidence: evidence}
	r.end.ProvenAt = now
	r.noExitOfOurs()
	close(r.dead)
}

// noExitOfOurs takes back an exit where the program surely did not run: it is our script's.
// mu is held.
func (r *run) noExitOfOurs() {
	if r.end.Started == sandbox.StartedNo {
		r.end.Exit = nil
	}
}

// sandboxGone notes that the sandbox, and with it the run, is proven gone.
func (r *run) sandboxGone(proof sandbox.Proof) {
	r.spend()
	r.prove(proof.Evidence, nil)
	r.mu.Lock()
	unfollow, started := r.unfollow, r.pid != ""
	r.mu.Unlock()
	if unfollow != nil {
		unfollow(errSandboxLost)
	}
	if !started {
		r.readyOnce.Do(func() { close(r.ready) })
	}
}

// feed writes a large standard input while the process runs. A process that ends, or
// closes its end, is no error; what is in doubt ends the run, since the input could have a
// hole.
func (r *run) feed(ctx context.Context, source io.Reader) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errEnded)
	r.box.p.tasks.Go(func() {
		select {
		case <-r.dead:
			cancel(errEnded)
		case <-ctx.Done():
		}
	})
	piece := make([]byte, inputPiece)
	for ctx.Err() == nil {
		n, err := io.ReadFull(source, piece)
		if n > 0 {
			if inputErr := r.box.p.api.input(ctx, r.box.id, r.pid, piece[:n]); inputErr != nil {
				r.inputFailed(ctx, inputErr)
				return
			}
		}
		if err != nil {
			// A source that fails is an input that ends there.
			if closeErr := r.box.p.api.closeStdin(ctx, r.box.id, r.pid); closeErr != nil {
				r.inputFailed(ctx, closeErr)
			}
			return
		}
	}
}

func (r *run) inputFailed(ctx context.Context, err error) {
	if ctx.Err() != nil || kindOf(err) == sandbox.Gone || kindOf(err) == sandbox.Busy {
		return
	}
	r.mu.Lock()
	if r.cause == nil {
		r.cause = fmt.Errorf("the standard input could not be written: %w", err)
	}
	r.faulty = true
	r.mu.Unlock()
	r.request(killGrace, false)
}

// word takes a line that our script has written.
func (r *run) word(text string) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch words[0] {
	case "ready":
		r.atGate = true
		r.readyOnce.Do(func() { close(r.ready) })
	case "file":
		if n, err := strconv.Atoi(words[len(words)-1]); err == nil {
			r.fileFault = n
		}
		r.readyOnce.Do(func() { close(r.ready) })
	case "gate":
		// The program surely does not run; whoever opens the gate from now on is late.
		if r.gate == gateClosed {
			r.gate = gateSpent
		}
		r.end.Started = sandbox.StartedNo
	case "fail":
		r.end.Started = sandbox.StartedNo
		r.end.StartError = r.program.startError(words[1:])
	case "start":
		r.end.Started = sandbox.StartedYes
	}
}
