package leaseinit

import (
	"syscall"
	"unsafe"
)

// program is a list of system calls for the stub or the job's process. It is made
// by lease init in ordinary Go, and played by code that may use nothing of the
// runtime.
type program struct {
	n     int
	steps [maxSteps]step
}

// maxSteps bounds a program: the longer one, the job's, has about forty.
const maxSteps = 80

// step is one system call.
type step struct {
	nr    uintptr
	args  [6]uintptr
	stage Stage
	// keep says that the result is a descriptor that later steps use.
	keep bool
	// kept says that the first argument is the kept descriptor.
	kept bool
	// tolerate is an error that is none; errAny tolerates all.
	tolerate syscall.Errno
}

const errAny = ^syscall.Errno(0)

func (p *program) clear() { p.n = 0 }

// add appends a step that must succeed and returns it for changes.
func (p *program) add(stage Stage, nr uintptr, args ...uintptr) *step {
	s := &p.steps[p.n]
	p.n++
	*s = step{nr: nr, stage: stage}
	copy(s.args[:], args)
	return s
}

// play makes the calls from the step first on and returns the stage and error of the first that failed.
//
//go:nosplit
//go:norace
func (p *program) play(first int) (Stage, syscall.Errno) {
	var kept uintptr
	for i := first; i < p.n; i++ {
		s := (*step)(unsafe.Add(unsafe.Pointer(&p.steps), uintptr(i)*unsafe.Sizeof(step{})))
		if s.kept {
			s.args[0] = kept
		}
		r, _, e := syscall.RawSyscall6(s.nr, s.args[0], s.args[1], s.args[2], s.args[3], s.args[4], s.args[5])
		if e != 0 && e != s.tolerate && s.tolerate != errAny {
			return s.stage, e
		}
		if s.keep {
			kept = r
		}
	}
	return StageNone, 0
}

// text is the address of a string constant that ends with a NUL byte. Constants
// do not move and are never freed.
func text(s string) uintptr {
	if s[len(s)-1] != 0 {
		panic("leaseinit: text without its end")
	}
	return uintptr(unsafe.Pointer(unsafe.StringData(s)))
}
