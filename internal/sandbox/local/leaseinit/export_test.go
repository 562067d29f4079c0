package leaseinit

import (
	"encoding/binary"
	"errors"
	"unsafe"
)

// DecodeSetup is what lease init does with a set-up.
func DecodeSetup(b []byte) (Setup, bool) { return decodeSetup(b) }

// DecodeJob reads an encoded job as lease init and the stub do, tables of offsets and
// all, but stays inside of it.
func DecodeJob(b []byte) (*Job, error) {
	if len(b) < headerSize {
		return nil, errors.New("short")
	}
	h := *(*jobHeader)(unsafe.Pointer(&b[0]))
	if h.kind != kindJob || int(h.size) != len(b) {
		return nil, errors.New("header")
	}
	var bad error
	text := func(off uint64) string {
		for end := off; end < uint64(len(b)); end++ {
			if b[end] == 0 {
				return string(b[off:end])
			}
		}
		bad = errors.New("a string outside")
		return ""
	}
	word := func(off uint64) uint64 {
		if off%8 != 0 || off+8 > uint64(len(b)) {
			bad = errors.New("a word outside, or not aligned")
			return 0
		}
		return binary.NativeEndian.Uint64(b[off:])
	}
	table := func(off uint32) (list []string) {
		for at := uint64(off); bad == nil; at += 8 {
			v := word(at)
			if v == 0 {
				break
			}
			list = append(list, text(v))
		}
		return list
	}
	j := &Job{
		Seq: h.seq, Candidates: table(h.candidates), Argv: table(h.argv), Env: table(h.env), Cwd: text(uint64(h.cwd)),
		Workspace: text(uint64(h.workspace)), Tmp: text(uint64(h.tmp)), Shm: text(uint64(h.shm)), Processes: h.processes,
	}
	for i := range uint64(h.nrlimits) {
		at := uint64(h.rlimits) + 16*i
		j.Rlimits = append(j.Rlimits, Rlimit{Resource: word(at), Value: word(at + 8)})
	}
	return j, bad
}
