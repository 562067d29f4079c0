package seccomp

import (
	"cmp"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	// offsetArgs is that of the first argument's low half, on a little-endian
	// machine; the next is argSize further.
	offsetArgs = 16
	argSize    = 8
)

const (
	allow     uint32 = unix.SECCOMP_RET_ALLOW
	kill      uint32 = unix.SECCOMP_RET_KILL_PROCESS
	eperm            = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys           = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	efamily          = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)
	eprotocol        = unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)
	// done is success without the call.
	done uint32 = unix.SECCOMP_RET_ERRNO

	// firstX32 is where another mode of the same processor begins (x86 only; no
	// other has numbers there).
	firstX32 uint32 = 0x40000000
)

// newNamespaces are the flags of clone(2) that make namespaces. CLONE_NEWTIME is
// not one of them: clone takes its bit for the exit signal's.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// maxBranch is the farthest that a conditional jump reaches.
const maxBranch = 255

// Filter is a program for the kernel.
type Filter []unix.SockFilter

// Bytes is the filter as the kernel takes it: an array of struct sock_filter.
func (f Filter) Bytes() []byte {
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), len(f)*int(unsafe.Sizeof(f[0]))))
}

// Policy is the pair of filters of all leases. A call goes through if both let it
// through.
type Policy struct {
	// Lease is loaded once a lease, by lease init.
	Lease Filter
	// Job is loaded by each job's process before it executes the program. It takes
	// away what Lease leaves to lease init and the stub. MaxJob instructions at most.
	Job Filter
}

// MaxJob bounds the filter of a job. It is loaded with every job.
const MaxJob = 16

// New makes the policy for a processor.
func New(arch Arch) Policy {
	p := Policy{Lease: prologue(arch), Job: job(arch)}
	p.Lease = append(p.Lease, tree(spans(answers(arch)))...)
	return p
}

// prologue refuses other modes and decides the calls that depend on an argument.
func prologue(arch Arch) Filter {
	program := Filter{
		load(offsetArch),
		jump(unix.BPF_JEQ, arch.audit, 1, 0),
		ret(kill),
		load(offsetNumber),
	}
	for _, d := range decided() {
		program = append(program, jump(unix.BPF_JEQ, arch.numbers[d.name], 0, uint8(len(d.body))))
		program = append(program, d.body...)
	}
	return program
}

// job refuses what makes mounts and namespaces, and clone3, whose arguments a filter
// cannot see. It is the second filter, so it
// need not look at the processor's mode.
func job(arch Arch) Filter {
	return Filter{
		load(offsetNumber),
		jump(unix.BPF_JEQ, arch.numbers["mount"], 7, 0),
		jump(unix.BPF_JEQ, arch.numbers["umount2"], 6, 0),
		jump(unix.BPF_JEQ, arch.numbers["pivot_root"], 5, 0),
		jump(unix.BPF_JEQ, arch.numbers["clone3"], 5, 0),
		jump(unix.BPF_JEQ, arch.numbers["clone"], 0, 2),
		load(arg(0)),
		jump(unix.BPF_JSET, newNamespaces, 1, 0),
		ret(allow),
		ret(eperm),
		ret(enosys),
	}
}

// decision is the end of a program for one call. It ends with a return.
type decision struct {
	name string
	body []unix.SockFilter
}

// only allows a call only if its argument i is one of values.
func only(i int, answer uint32, values ...uint32) []unix.SockFilter {
	return compareArg(i, answer, allow, values...)
}

// compareArg answers match if the argument i is one of values. The kernel takes the
// arguments in question as 32 bits, too.
func compareArg(i int, otherwise, match uint32, values ...uint32) []unix.SockFilter {
	return append(check(i, otherwise, values...), ret(match))
}

// check goes on behind itself only if the argument i is one of values.
func check(i int, otherwise uint32, values ...uint32) []unix.SockFilter {
	body := []unix.SockFilter{load(arg(i))}
	for n, v := range values {
		body = append(body, jump(unix.BPF_JEQ, v, uint8(len(values)-n), 0))
	}
	return append(body, ret(otherwise))
}

// when has then decide if the argument i is value, and allows all else.
func when(i int, value uint32, then []unix.SockFilter) []unix.SockFilter {
	return append([]unix.SockFilter{load(arg(i)), jump(unix.BPF_JEQ, value, 1, 0), ret(allow)}, then...)
}

// without allows a call only if its argument i has none of flags.
func without(i int, flags uint32) []unix.SockFilter {
	return []unix.SockFilter{load(arg(i)), jump(unix.BPF_JSET, flags, 0, 1), ret(eperm), ret(allow)}
}

// unlessNull answers done if the pointer that is argument i points anywhere.
func unlessNull(i int) []unix.SockFilter {
	return []unix.SockFilter{
		load(arg(i)),
		jump(unix.BPF_JEQ, 0, 0, 2),
		load(arg(i) + argSize/2),
		jump(unix.BPF_JEQ, 0, 1, 0),
		ret(done),
		ret(allow),
	}
}

// arg is the offset of the argument i.
func arg(i int) uint32 { return uint32(offsetArgs + i*argSize) }

// span is a range of numbers from first up to the next span.
type span struct {
	first, answer uint32
}

// answers are the answers for the numbers that the lists name.
func answers(arch Arch) map[uint32]uint32 {
	all := map[uint32]uint32{}
	for _, number := range arch.numbers {
		all[number] = eperm
	}
	set := func(answer uint32, names ...string) {
		for _, name := range names {
			if number, has := arch.numbers[name]; has {
				all[number] = answer
			}
		}
	}
	set(allow, allowed()...)
	set(enosys, missing()...)
	set(done, pretended()...)
	set(allow, "clone", "clone3", "mount", "umount2", "pivot_root") // Policy.Job takes them away
	return all
}

// spans covers all numbers there are with what answers says. Numbers that no call
// has are answered as by a kernel without one.
func spans(answers map[uint32]uint32) []span {
	numbers := make([]uint32, 0, len(answers))
	for number := range answers {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	all := []span{{0, enosys}}
	add := func(first, answer uint32) {
		last := &all[len(all)-1]
		switch {
		case last.first == first:
			last.answer = answer
		case last.answer != answer:
			all = append(all, span{first, answer})
		}
	}
	for i, number := range numbers {
		add(number, answers[number])
		if i+1 == len(numbers) || numbers[i+1] != number+1 {
			add(number+1, enosys)
		}
	}
	add(firstX32, kill)
	return slices.CompactFunc(all, func(a, b span) bool { return cmp.Compare(a.answer, b.answer) == 0 })
}

// tree decides between spans.
func tree(spans []span) []unix.SockFilter {
	if len(spans) == 1 {
		return []unix.SockFilter{ret(spans[0].answer)}
	}
	middle := len(spans) / 2
	below, above := tree(spans[:middle]), tree(spans[middle:])
	first := spans[middle].first
	var program []unix.SockFilter
	if len(below) <= maxBranch {
		program = append(program, jump(unix.BPF_JGE, first, uint8(len(below)), 0))
	} else {
		program = append(program, jump(unix.BPF_JGE, first, 0, 1),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(below))})
	}
	return append(append(program, below...), above...)
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(compare uint16, value uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, Jt: yes, Jf: no, K: value}
}

func ret(answer uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: answer}
}
