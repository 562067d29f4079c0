package bus

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// minPooled is the smallest chunk whose buffer is used again. A flood of large
	// chunks otherwise keeps the collector busy: measured, half the throughput.
	minPooled = 16 << 10
	// bufferClasses are the sizes 16, 32, … 256 KiB, so a buffer is at most half
	// empty.
	bufferClasses = 5
)

// payload is one event's data, shared by the lanes that carry it. The last one
// to let go gives its buffer back.
type payload struct {
	data   []byte
	holds  atomic.Int32
	buffer *[]byte // nil when it is not from the pool
	pool   *sync.Pool
}

// payloads makes payloads and keeps their buffers.
type payloads struct {
	pools [bufferClasses]sync.Pool
}

// clone copies data; the caller holds the payload and must release it.
func (p *payloads) clone(data []byte) *payload {
	made := &payload{}
	made.holds.Store(1)
	class := bits.Len(uint(max(len(data), 1)-1)) - bits.Len(minPooled-1)
	if len(data) < minPooled || class >= bufferClasses {
		made.data = slices.Clone(data)
		return made
	}
	made.pool = &p.pools[class]
	buffer, ok := made.pool.Get().(*[]byte)
	if !ok {
		fresh := make([]byte, minPooled<<class)
		buffer = &fresh
	}
	made.buffer, made.data = buffer, (*buffer)[:copy(*buffer, data)]
	return made
}

func (p *payload) hold() { p.holds.Add(1) }

func (p *payload) release() {
	if p.holds.Add(-1) == 0 && p.buffer != nil {
		p.data = nil
		p.pool.Put(p.buffer)
	}
}

// size is what the payload occupies.
func (p *payload) size() int { return cap(p.data) }
