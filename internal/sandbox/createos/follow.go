package createos

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
)

const (
	// maxReconnects bounds the connections of one run, progress or not.
	maxReconnects = 100
	// treeLook is how long the tree of a leader that has ended may take to be gone before
	// it counts as left over.
	treeLook = 250 * time.Millisecond
	// recoverLook is how long one look waits for the end of a process whose output cannot
	// be read.
	recoverLook = 30 * time.Second
	// drainTime is how long an output stream may be silent after the tree's proven end.
	drainTime = 2 * time.Second
	// maxPiece is the most that a sink gets at once.
	maxPiece = 256 << 10
)

// errDeaf is a sink that takes no more.
var errDeaf = errors.New("the sink takes no more")

// follower reads a run's output to its end. It is owned by its goroutine.
type follower struct {
	*run
	marks marks
	// cursor is the number of the last piece that was handed over.
	cursor uint64
	// inRow counts the reconnections since the last progress, all of them all.
	inRow, all int
	// exited says that the exit frame was seen.
	exited bool
}

// follow starts the follower.
func (r *run) follow(nonce string) {
	f := &follower{run: r, marks: marks{nonce: nonce}}
	r.box.p.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(errEnded)
		defer close(r.drained)
		defer r.readyOnce.Do(func() { close(r.ready) })
		r.mu.Lock()
		r.unfollow = cancel
		dead := closed(r.dead)
		r.mu.Unlock()
		if dead {
			return
		}
		f.conclude(ctx, f.read(ctx))
		if f.struck() && !f.fell(ctx) {
			r.box.p.spawn(r.suspect)
		}
	})
}

// struck says that the leader was killed, or is gone, and nobody here did it: perhaps with its sandbox.
func (r *run) struck() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	killed := r.end.Exit != nil && r.end.Exit.Signal == int(unix.SIGKILL)
	return !r.asked && !r.faulty && (killed || errors.Is(r.cause, errProcessGone))
}

// fell looks, now and a moment later, whether the sandbox goes with a program that was
// killed: then that is no end of the program's own.
func (f *follower) fell(ctx context.Context) bool {
	for look := range 2 {
		if look > 0 && sleep(ctx, f.box.p.cfg.Poll) != nil {
			return false
		}
		v, err := f.box.there(ctx)
		if err == nil && v.Status != statusDestroying || err != nil && kindOf(err) != sandbox.Gone {
			continue
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.asked {
			return true // it is our own doing
		}
		f.end.Exit, f.end.EndedAt = nil, time.Time{}
		if f.cause == nil {
			f.cause = gone(errSandboxLost)
		}
		return true
	}
	return false
}

// suspect looks a few times whether the sandbox is there: one that dies takes its
// processes first.
func (r *run) suspect(ctx context.Context) {
	pause := 4 * r.box.p.cfg.Poll
	for range suspicions {
		if _, err := r.box.there(ctx); err != nil && !passing(err) || !r.current() {
			return
		}
		if sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, maxSuspicion)
	}
}

// suspicions is how often a sandbox is looked at whose process was killed, maxSuspicion the
// longest time in between: half a minute all together.
const (
	suspicions   = 8
	maxSuspicion = 5 * time.Second
)

// current says that the sandbox is still the run's.
func (r *run) current() bool {
	r.box.mu.Lock()
	defer r.box.mu.Unlock()
	return r.box.run == r && !closed(r.box.gone) && !closed(r.box.lost)
}

// read follows the output over as many connections as it takes. Nil means that the exit
// is known and all output was handed over as far as one can tell.
func (f *follower) read(ctx context.Context) error {
	for {
		before := f.cursor
		err := f.connection(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errDeaf):
			return f.deaf(ctx)
		case closed(f.dead) && f.caughtUp():
			return nil
		case errors.Is(err, errIdle):
			// The silence may be the process's own.
			if err := f.look(ctx); err != nil {
				return err
			}
			continue
		case !errors.Is(err, errResumable):
			return err
		}
		if f.cursor > before {
			f.inRow = 0
		}
		f.inRow++
		f.all++
		if f.all > maxReconnects || closed(f.dead) && f.inRow > 1 {
			return err
		}
		if f.inRow > f.box.p.cfg.Reconnects {
			if done, err := f.recover(ctx, err); done || err != nil {
				return err
			}
			f.inRow = 0
		}
		if err := sleep(ctx, f.box.p.cfg.ReconnectDelay); err != nil {
			return err
		}
	}
}

// errResumable marks what another connection can make good.
var errResumable = errors.New("another connection can make it good")

func resumable(err error) error { return &resumableError{err} }

type resumableError struct{ err error }

func (e *resumableError) Error() string        { return e.err.Error() }
func (e *resumableError) Unwrap() error        { return e.err }
func (e *resumableError) Is(target error) bool { return target == errResumable }

// connection reads one connection. Nil means that the exit frame was seen.
func (f *follower) connection(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errEnded)
	watch := newWatch(func() { cancel(errIdle) })
	defer watch.stop()
	watch.start(f.box.p.cfg.RequestTimeout)
	body, err := f.box.p.api.connect(ctx, f.box.id, f.pid, f.cursor)
	watch.stop()
	if err != nil {
		return f.notConnected(ctx, err)
	}
	defer body.Close() //nolint:errcheck // nothing is lost with what is not read
	f.box.p.tasks.Go(func() {
		select {
		case <-f.dead:
			watch.shorten(drainTime)
		case <-ctx.Done():
		}
	})
	lines := bufio.NewReaderSize(body, 64<<10)
	for {
		watch.start(f.box.p.cfg.IdleTimeout)
		line, err := readLine(lines)
		watch.stop()
		switch {
		case err == nil:
		case errors.Is(context.Cause(ctx), errIdle):
			return errIdle
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errFrameSize):
			return err
		case errors.Is(err, io.EOF):
			return resumable(errNoExit)
		default:
			return resumable(errConnection)
		}
		if done, err := f.take(line, watch); done || err != nil {
			return err
		}
	}
}

// notConnected says what a refused connection means.
func (f *follower) notConnected(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errIdle):
		return resumable(errConnection)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case statusOf(err) == http.StatusGone:
		return errEvicted
	case statusOf(err) == http.StatusNotFound:
		return f.missing(ctx)
	case statusOf(err) == http.StatusConflict:
		// Perhaps it was paused under us.
		if err := f.box.resume(ctx); err != nil && !passing(err) {
			return err
		}
		return resumable(errors.Join(errConnection, err))
	case passing(err):
		return resumable(errors.Join(errConnection, err))
	}
	return err
}

// missing finds out what is gone when the process is: it alone, or its sandbox.
func (f *follower) missing(ctx context.Context) error {
	f.mu.Lock()
	e := f.ender
	f.mu.Unlock()
	if e != nil { // which knows more about it
		select {
		case <-e.done:
		case <-f.dead:
		case <-ctx.Done():
		}
	}
	for {
		if closed(f.dead) {
			return errProcessGone
		}
		v, err := f.box.there(ctx)
		if err != nil {
			return resumable(err)
		}
		if v.Status != statusDestroying && !f.box.isClosing() {
			break
		}
		// The processes of a sandbox that is being destroyed go before it does.
		if err := sleep(ctx, f.box.p.cfg.Poll); err != nil {
			return err
		}
	}
	f.prove([]sandbox.Evidence{{Kind: sandbox.EvidenceNotFound, Detail: "CreateOS answers 404 for the process"}}, nil)
	return gone(errProcessGone)
}

// take handles one line; done says that it was the exit.
func (f *follower) take(line []byte, watch *watch) (done bool, err error) {
	if len(line) == 0 {
		return false, nil
	}
	frame, err := decodeFrame(line, f.cursor)
	if err != nil {
		return false, err
	}
	switch frame.kind {
	case frameData:
		watch.noted = 0
		if err := f.hand(frame); err != nil {
			return false, err
		}
		f.cursor = frame.seq
	case frameSeen:
	case frameHeartbeat:
		watch.noted++
		if closed(f.dead) && watch.noted > 1 {
			return false, resumable(errNoExit) // it lives on after its process
		}
	case frameExit:
		f.exited = true
		f.setExit(frame.exit)
		return true, nil
	case frameError:
		if frame.evicted {
			return false, errEvicted
		}
		return false, errStreamError
	}
	return false, nil
}

// hand gives a piece to the sink, without what our script has written.
func (f *follower) hand(frame frame) error {
	output, words := f.marks.take(frame.stream, frame.data)
	for _, word := range words {
		if word != "" {
			f.word(word)
		}
	}
	for len(output) > 0 {
		n := min(len(output), maxPiece)
		if f.sink.Write(frame.stream, output[:n:n]) != nil {
			return errDeaf
		}
		output = output[n:]
	}
	return nil
}

// setExit notes the leader's end.
func (r *run) setExit(exit *sandbox.Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end.Exit != nil || r.gate != gateOpen || r.end.StartError != nil || r.end.Started == sandbox.StartedNo {
		return
	}
	r.end.Exit = exit
	r.end.EndedAt = time.Now()
}

// deaf waits for the end of a run whose output nobody takes: it is held back, or ended.
func (f *follower) deaf(ctx context.Context) error {
	select {
	case <-f.dead:
		return errDeaf
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// caughtUp says that all output is known to have been handed over.
func (f *follower) caughtUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest != nil && *f.newest == f.cursor
}

// look asks for the process's state when its output says nothing.
func (f *follower) look(ctx context.Context) error {
	if closed(f.dead) {
		return errNoExit
	}
	_, err := f.box.p.api.look(ctx, f.box.id, f.pid)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case statusOf(err) == http.StatusNotFound:
		return f.missing(ctx)
	case passing(err):
		f.inRow++
		f.all++
		if f.inRow > f.box.p.cfg.Reconnects || f.all > maxReconnects {
			return errors.Join(errConnection, err)
		}
		return sleep(ctx, f.box.p.cfg.ReconnectDelay)
	}
	return err
}

// recover learns the end of a process whose output cannot be read: the exit from its
// state, and from the journal whether something is missing. done says that the end is
// known; otherwise the process lives, and its output is worth another try.
func (f *follower) recover(ctx context.Context, why error) (done bool, err error) {
	for fails := 0; ; {
		d, err := f.box.p.api.waitTree(ctx, f.box.id, f.pid, recoverLook)
		switch {
		case err == nil && d.TreeExited:
			return true, f.replay(ctx, &d)
		case err == nil:
			return false, errUnconfirmedEnd
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case statusOf(err) == http.StatusRequestTimeout:
			d, lookErr := f.box.p.api.look(ctx, f.box.id, f.pid)
			if lookErr == nil && d.LeaderExited {
				return true, f.replay(ctx, &d)
			}
			return false, nil
		case statusOf(err) == http.StatusNotFound:
			return false, f.missing(ctx)
		case !passing(err):
			return false, err
		}
		if fails++; fails > f.box.p.cfg.Reconnects {
			return false, errors.Join(why, err)
		}
		if err := sleep(ctx, f.box.p.cfg.ReconnectDelay); err != nil {
			return false, err
		}
	}
}

// replay reads what is left in the journal of a process that has ended.
func (f *follower) replay(ctx context.Context, d *details) error {
	newest, err := d.newest()
	if err != nil || newest < f.cursor {
		return errJournal
	}
	if exit := d.exit(); exit != nil {
		f.setExit(exit)
	} else {
		return errNoExit
	}
	f.mu.Lock()
	f.newest = &newest
	f.mu.Unlock()
	if err := f.fill(ctx, newest); err != nil {
		return err
	}
	if d.TreeExited {
		f.prove(treeExited(), d)
	}
	return nil
}

// fill reads on until the piece with that number, in one more round of connections. That
// it does not succeed is no error: conclude declares what is missing.
func (f *follower) fill(ctx context.Context, newest uint64) error {
	for try := 0; f.cursor < newest && try < f.box.p.cfg.Reconnects; try++ {
		pause := f.box.p.cfg.ReconnectDelay
		if try == 0 {
			pause *= 4
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		err := f.connection(ctx)
		switch {
		case err == nil || errors.Is(err, errResumable) || errors.Is(err, errIdle):
		case errors.Is(err, errEvicted):
			return nil
		default:
			return err
		}
	}
	return nil
}

// conclude sees to the proof and declares what is missing.
func (f *follower) conclude(ctx context.Context, err error) {
	switch {
	case closed(f.dead):
		err = f.afterDeath(err)
	case err == nil:
		err = f.settle(ctx)
	case errors.Is(err, errClosed) || errors.Is(err, errDeaf):
	default:
		err = f.fault(ctx, err)
	}
	f.declare(err)
	f.tidy(ctx)
}

// afterDeath says what of an error counts once the tree is proven gone.
func (f *follower) afterDeath(err error) error {
	if errors.Is(err, errProcessGone) && sandbox.KindOf(err) == sandbox.Gone && !f.wanted() {
		return err // gone by itself, and its exit is not known
	}
	if _, broken := errors.AsType[streamError](err); broken {
		return err
	}
	return nil
}

// wanted says that somebody has asked for the end.
func (r *run) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// settle proves the end of the tree of a leader that has ended, and ends what is left of it.
func (f *follower) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, f.box.p.cfg.CleanupTimeout, errTimeout)
	defer cancel()
	for try := 0; !f.wanted() && try <= retries; try++ {
		d, err := f.box.p.api.waitTree(ctx, f.box.id, f.pid, treeLook)
		switch {
		case err == nil && d.TreeExited:
			if newest, journalErr := d.newest(); journalErr == nil && newest > f.cursor {
				err = f.fill(ctx, newest)
			}
			f.prove(treeExited(), &d)
			return err
		case statusOf(err) == http.StatusRequestTimeout || err == nil:
			f.leftover()
			try = retries
		case statusOf(err) == http.StatusNotFound:
			if _, err := f.box.there(ctx); err == nil {
				f.prove([]sandbox.Evidence{{Kind: sandbox.EvidenceNotFound, Detail: "CreateOS answers 404 for the process"}}, nil)
			}
			if closed(f.dead) {
				return nil
			}
		case !passing(err):
			try = retries
		}
	}
	f.await(ctx)
	return nil
}

// leftover notes that others of the tree live on.
func (r *run) leftover() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end.Leftover = !r.asked
}

// await has the tree ended and waits for that.
func (f *follower) await(ctx context.Context) {
	select {
	case <-f.dead:
	case <-f.request(killGrace, false):
	case <-ctx.Done():
	}
}

// fault ends a run that cannot be followed any more. Where its leader had ended before,
// its exit counts, and only the output is lost.
func (f *follower) fault(ctx context.Context, why error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killGrace+f.box.p.cfg.CleanupTimeout, errTimeout)
	defer cancel()
	if errors.Is(why, errEvicted) {
		if d, err := f.box.p.api.look(ctx, f.box.id, f.pid); err == nil {
			if exit := d.exit(); exit != nil {
				f.setExit(exit)
			}
		}
	}
	f.spend() // a gate that is still closed stays so
	f.mu.Lock()
	f.faulty = true
	known := f.end.Exit != nil
	f.mu.Unlock()
	f.await(ctx)
	if known && errors.Is(why, errEvicted) {
		f.declareLost(errEvicted)
		return nil
	}
	if errors.Is(why, errEvicted) {
		f.declareLost(errEvicted)
		return gone(errEvicted)
	}
	return why
}

// declare notes why the run could not be followed, and what output is missing.
func (f *follower) declare(err error) {
	f.mu.Lock()
	if f.cause == nil && err != nil && !errors.Is(err, errDeaf) {
		f.cause = err
	}
	incomplete := !f.exited && (f.newest == nil || *f.newest > f.cursor) || f.newest != nil && *f.newest > f.cursor
	if !incomplete && f.newest != nil && f.end.Proof.Proven && f.end.Started == sandbox.StartedMaybe {
		// All output is there, and not the mark that is written before the program runs.
		f.end.Started = sandbox.StartedNo
	}
	f.noExitOfOurs()
	started := f.end.Started != sandbox.StartedNo
	f.mu.Unlock()
	switch {
	case errors.Is(err, errDeaf) || !started || !incomplete:
	case err != nil:
		f.declareLost(err)
	default:
		f.declareLost(errIncomplete)
	}
}

// declareLost declares that output behind the cursor is missing.
func (f *follower) declareLost(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end.OutputLost != nil {
		return
	}
	f.end.OutputLost = &sandbox.OutputLost{First: f.cursor + 1, Reason: why.Error()}
	if f.newest != nil && *f.newest > f.cursor {
		f.end.OutputLost.Last = *f.newest
	}
}

// tidy removes the uploaded input of a process that ended before it did so itself, as far
// as that can be done: a reset does it for certain.
func (f *follower) tidy(ctx context.Context) {
	f.mu.Lock()
	clean := !f.staged || f.end.Started == sandbox.StartedYes || f.end.StartError != nil || !f.end.Proof.Proven
	f.mu.Unlock()
	if clean || ctx.Err() != nil || closed(f.box.gone) || closed(f.box.lost) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.box.p.cfg.CleanupTimeout)
	defer cancel()
	if err := f.removeStaged(ctx); err != nil {
		f.box.p.log.Debug().Err(err).Str("lease", f.box.handle.Lease).Msg("uploaded input is left in its sandbox")
	}
}

// watch calls late when something takes too long.
type watch struct {
	// noted counts heartbeats without output; it belongs to the reader.
	noted int

	mu    sync.Mutex
	timer *time.Timer
	late  func()
	most  time.Duration // once shortened
	runs  bool
}

func newWatch(late func()) *watch { return &watch{late: late} }

func (w *watch) start(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = true
	if w.most > 0 {
		d = min(d, w.most)
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(d, w.late)
		return
	}
	w.timer.Reset(d)
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = false
	if w.timer != nil {
		w.timer.Stop()
	}
}

// shorten lets nothing take longer than d from now on.
func (w *watch) shorten(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = d
	if w.runs {
		w.timer.Reset(d)
	}
}
