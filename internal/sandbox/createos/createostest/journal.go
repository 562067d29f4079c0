package createostest

import (
	"sync"
)

// frame is one piece of output.
type frame struct {
	seq    int64
	stream int
	data   []byte
}

// journal keeps the newest output of a process, and holds it back if it has to.
type journal struct {
	limit    int
	holdBack bool

	mu sync.Mutex
	// frames are what is kept; their sequence has no hole.
	frames []frame
	newest int64
	bytes  int
	// total counts all bytes that ever came.
	total int64
	// followers are the cursors of those who read now.
	followers map[*follower]int64
	released  bool
	changed   chan struct{}
}

// follower is somebody who reads a journal.
type follower struct{}

func newJournal(limit int, holdBack bool) *journal {
	return &journal{limit: limit, holdBack: holdBack, followers: map[*follower]int64{}, changed: make(chan struct{})}
}

// touch wakes all who wait; j.mu is held.
func (j *journal) touch() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// wake wakes all who wait for something that changed outside.
func (j *journal) wake() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.touch()
}

// append adds output and evicts the oldest, or waits before.
func (j *journal) append(stream int, p []byte) {
	for {
		j.mu.Lock()
		if !j.mustWait(len(p)) {
			break
		}
		changed := j.changed
		j.mu.Unlock()
		<-changed
	}
	defer j.mu.Unlock()
	j.newest++
	j.frames = append(j.frames, frame{seq: j.newest, stream: stream, data: append([]byte(nil), p...)})
	j.bytes += len(p)
	j.total += int64(len(p))
	for j.bytes > j.limit && len(j.frames) > 1 {
		j.drop()
	}
	j.touch()
}

func (j *journal) drop() {
	j.bytes -= len(j.frames[0].data)
	j.frames = j.frames[1:]
}

// mustWait says whether n more bytes would cost a follower something; j.mu is held.
func (j *journal) mustWait(n int) bool {
	if !j.holdBack || j.released {
		return false
	}
	for _, cursor := range j.followers {
		unread := 0
		for _, f := range j.frames {
			if f.seq > cursor {
				unread += len(f.data)
			}
		}
		if unread > 0 && unread+n > j.limit {
			return true
		}
	}
	return false
}

// release holds nothing back any more.
func (j *journal) release() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.released {
		j.released = true
		j.touch()
	}
}

// evict drops all up to a sequence number.
func (j *journal) evict(upto int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.frames) > 0 && j.frames[0].seq <= upto {
		j.drop()
	}
	j.touch()
}

// oldest is the oldest sequence number that is kept; newest+1 when nothing is.
func (j *journal) oldest() int64 {
	if len(j.frames) == 0 {
		return j.newest + 1
	}
	return j.frames[0].seq
}

// after returns what follows a cursor; evicted says that some of it is not there
// any more. changed is closed at the next change.
func (j *journal) after(f *follower, cursor int64) (frames []frame, oldest int64, evicted bool, changed <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if at, there := j.followers[f]; there && at != cursor {
		j.followers[f] = cursor
		if j.holdBack {
			j.touch()
		}
	}
	oldest = j.oldest()
	if cursor+1 < oldest {
		return nil, oldest, true, j.changed
	}
	if n := int(cursor + 1 - oldest); n < len(j.frames) {
		frames = append(frames, j.frames[n:]...)
	}
	return frames, oldest, false, j.changed
}

func (j *journal) join(f *follower, cursor int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.followers[f] = cursor
}

func (j *journal) leave(f *follower) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.followers, f)
	j.touch()
}

// span is what details say.
func (j *journal) span() (oldest, newest, total int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.newest == 0 {
		return 0, 0, 0
	}
	return j.oldest(), j.newest, j.total
}
