package createostest

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

// bigFrame is the payload of a frame that is too big for a client's bound of 1 MiB.
const bigFrame = 1 << 20

// stream is one connection to a process's output.
type stream struct {
	server  *Server
	process *process
	w       http.ResponseWriter
	r       *http.Request
	fx      effects
	// cursor is the last sequence number that was sent; sent counts data frames on
	// this connection.
	cursor int64
	sent   int
	// shift is taken from sequence numbers once counters are restarted.
	shift int64
	// fired are the actions that have had their moment.
	fired map[int]bool
}

// connect streams a process's output.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	st, done, err := s.openStream(w, r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	defer done()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	st.flush()
	st.run()
}

func (s *Server) openStream(w http.ResponseWriter, r *http.Request) (*stream, func(), error) {
	b, err := s.find(r)
	if err != nil {
		return nil, nil, err
	}
	p := b.process(s, r.PathValue("pid"))
	done, err := s.use(b)
	if err != nil {
		return nil, nil, err
	}
	st := &stream{server: s, process: p, w: w, r: r, fx: in(r).fx, fired: map[int]bool{}}
	if err := st.seek(); err != nil {
		done()
		return nil, nil, err
	}
	return st, done, nil
}

// seek finds where the stream begins.
func (st *stream) seek() error {
	if st.process == nil {
		return refuse(http.StatusNotFound, "no such process")
	}
	after, err := number(st.r, "after", 0)
	if err != nil {
		return err
	}
	if a, ok := st.fx.find(kindEvict); ok {
		st.process.journal.evict(a.n)
	}
	oldest, newest, _ := st.process.journal.span()
	if after > newest {
		return refuse(http.StatusBadRequest, "after: %d is newer than %d", after, newest)
	}
	if newest > 0 && after+1 < oldest {
		return &refusal{
			status: http.StatusGone, text: "the output was evicted", code: "output_offset_expired",
			more: map[string]any{"oldest_available_seq": oldest},
		}
	}
	if a, ok := st.fx.find(kindDuplicate); ok && a.after == 0 {
		after = max(min(a.n-1, after), oldest-1, 0)
	}
	st.cursor = after
	return nil
}

// run sends frames until the exit frame, the client's end or a script's.
func (st *stream) run() {
	j, me := st.process.journal, &follower{}
	j.join(me, st.cursor)
	defer j.leave(me)
	heartbeat := time.NewTicker(st.server.config.Heartbeat)
	defer heartbeat.Stop()
	for {
		if !st.moment() {
			return
		}
		// Before the journal is read, so that nothing of before the exit is missed.
		exited := st.process.hasExited()
		frames, oldest, evicted, changed := j.after(me, st.cursor)
		switch {
		case evicted:
			st.line(map[string]any{"type": "error", "error": "output_offset_expired", "oldest_available_seq": oldest})
			return
		case len(frames) > 0 && st.holdsLast(frames, exited):
			st.early(frames)
			return
		case len(frames) > 0 && st.holdsMore(exited):
		case len(frames) > 0:
			if !st.data(frames[0]) {
				return
			}
			continue
		case exited:
			st.end()
			return
		}
		st.flush()
		select {
		case <-changed:
		case <-heartbeat.C:
			st.line(map[string]any{"type": "heartbeat"})
		case <-st.r.Context().Done():
			return
		case <-st.process.released:
			st.cutOff()
		case <-st.server.closing:
			st.cutOff()
		}
	}
}

// cutOff ends a stream whose sandbox is gone: never in good order.
func (st *stream) cutOff() {
	in(st.r).w.reset()
}

// holdsMore says that the last frame may not be told from the others yet.
func (st *stream) holdsMore(exited bool) bool { return st.fx.has(kindExitEarly) && !exited }

// holdsLast says that the exit frame has to go before the last data frame.
func (st *stream) holdsLast(frames []frame, exited bool) bool {
	return exited && len(frames) == 1 && st.fx.has(kindExitEarly)
}

// early sends the exit frame, and then the last data frame.
func (st *stream) early(frames []frame) {
	st.end()
	st.data(frames[0])
}

// end sends the exit frame.
func (st *stream) end() {
	if st.fx.has(kindNoExit) {
		return
	}
	e := st.process.tree.Exit()
	if e.Signal == 0 {
		st.line(map[string]any{"type": "exit", "exit_code": e.Code})
		return
	}
	st.line(map[string]any{"type": "exit", "signal": signalName(e.Signal)})
}

// moment carries out what is due between two frames; false ends the stream.
func (st *stream) moment() bool {
	for i, a := range st.fx {
		if a.moment == nil || st.fired[i] || st.sent < a.after {
			continue
		}
		st.fired[i] = true
		if !a.moment(st) {
			return false
		}
	}
	return true
}

// data sends a data frame, as a script wants it; false ends the stream.
func (st *stream) data(f frame) bool {
	name := "stdout"
	if f.stream == 2 {
		name = "stderr"
	}
	view := map[string]any{"type": "data", "seq": f.seq - st.shift, "stream": name, "data_base64": base64.StdEncoding.EncodeToString(f.data)}
	st.cursor = f.seq
	for i, a := range st.fx {
		if a.kind == kindGap && a.n == f.seq {
			return true
		}
		if a.frame == nil || st.fired[i] || st.sent < a.after {
			continue
		}
		st.fired[i] = true
		if !a.frame(st, view) {
			return false
		}
	}
	st.line(view)
	st.sent++
	return true
}

// half sends the first half of a frame.
func (st *stream) half(view map[string]any) {
	text := encode(view)
	st.server.write(st.w, text[:len(text)/2])
	st.flush()
}

func (st *stream) line(v map[string]any) { st.text(string(encode(v))) }

func (st *stream) text(line string) {
	st.server.write(st.w, []byte(strings.TrimSuffix(line, "\n")+"\n"))
	st.flush()
}

func (st *stream) flush() {
	if f, ok := st.w.(http.Flusher); ok {
		f.Flush()
	}
}

// silent waits; false when the stream has to end first.
func (st *stream) silent(d time.Duration) bool {
	st.flush()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-st.r.Context().Done():
	case <-st.server.closing:
	}
	return false
}
