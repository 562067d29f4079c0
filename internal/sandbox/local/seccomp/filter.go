package seccomp

import (
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
	allow   uint32 = unix.SECCOMP_RET_ALLOW
	kill    uint32 = unix.SECCOMP_RET_KILL_PROCESS
	eperm          = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys         = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	efamily        = unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)

	// lastKnown is the highest number that the list was made with.
	lastKnown uint32 = unix.SYS_RSEQ_SLICE_YIELD
	// firstX32 is where another mode of the same processor begins (x86 only; no
	// other has numbers there).
	firstX32 uint32 = 0x40000000
)

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// maxBranch is the farthest that a conditional jump reaches.
const maxBranch = 255

// Policy is what the filters of all leases have in common. It is safe for
// concurrent use.
type Policy struct {
	tree []unix.SockFilter
}

// New makes the policy.
func New() *Policy { return &Policy{tree: tree(ranges())} }

// Filter is the program as the kernel takes it: an array of struct sock_filter.
// Whoever passes secret in the sixth argument may mount, unmount and make
// namespaces.
func (p *Policy) Filter(secret uint64) []byte {
	program := append(prologue(secret), p.tree...)
	size := int(unsafe.Sizeof(program[0]))
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&program[0])), len(program)*size))
}

// prologue refuses other modes and decides the calls that depend on an argument.
func prologue(secret uint64) []unix.SockFilter {
	program := []unix.SockFilter{
		load(offsetArch),
		jump(unix.BPF_JEQ, NativeArch, 1, 0),
		ret(kill),
		load(offsetNumber),
	}
	// Each body ends with a return.
	for _, c := range []struct {
		number uint32
		body   []unix.SockFilter
	}{
		{unix.SYS_CLONE, cloned(secret)},
		{unix.SYS_MOUNT, secretly(secret)},
		{unix.SYS_UMOUNT2, secretly(secret)},
		{unix.SYS_IOCTL, compareArg(1, allow, eperm, unix.TIOCSTI, unix.TIOCLINUX)},
		{unix.SYS_SOCKET, only(0, efamily, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK)},
		{unix.SYS_PERSONALITY, only(0, eperm, personalities()...)},
	} {
		program = append(program, jump(unix.BPF_JEQ, c.number, 0, uint8(len(c.body))))
		program = append(program, c.body...)
	}
	return program
}

// personalities are those of ordinary programs (personality(2)): Linux, with the
// address layout not randomised, the uname of 2.6, both, and the question.
func personalities() []uint32 {
	const addrNoRandomize, uname26, question = 0x0040000, 0x0020000, 0xffffffff
	return []uint32{0, addrNoRandomize, uname26, uname26 | addrNoRandomize, question}
}

// secretly allows a call with the secret.
func secretly(secret uint64) []unix.SockFilter {
	const low = offsetArgs + 5*argSize
	return []unix.SockFilter{
		load(low), jump(unix.BPF_JEQ, uint32(secret), 0, 3),
		load(low + argSize/2), jump(unix.BPF_JEQ, uint32(secret>>32), 0, 1),
		ret(allow), ret(eperm),
	}
}

// cloned allows clone without new namespaces, and with them secretly.
func cloned(secret uint64) []unix.SockFilter {
	return append([]unix.SockFilter{load(offsetArgs), jump(unix.BPF_JSET, newNamespaces, 1, 0), ret(allow)}, secretly(secret)...)
}

// only allows a call only if its argument i is one of values.
func only(i int, answer uint32, values ...uint32) []unix.SockFilter {
	return compareArg(i, answer, allow, values...)
}

// compareArg answers match if the argument i is one of values.
func compareArg(i int, otherwise, match uint32, values ...uint32) []unix.SockFilter {
	body := []unix.SockFilter{load(uint32(offsetArgs + i*argSize))}
	for n, v := range values {
		body = append(body, jump(unix.BPF_JEQ, v, uint8(len(values)-n), 0))
	}
	return append(body, ret(otherwise), ret(match))
}

// span is a range of numbers from first up to the next span.
type span struct {
	first  uint32
	answer uint32
}

// ranges are the answers for all numbers.
func ranges() []span {
	allowed := slices.Concat(common(), native())
	later := missing()
	answer := func(number uint32) uint32 {
		switch {
		case slices.Contains(allowed, number):
			return allow
		case slices.Contains(later, number):
			return enosys
		default:
			return eperm
		}
	}
	spans := []span{{0, answer(0)}}
	for number := uint32(1); number <= lastKnown; number++ {
		if a := answer(number); a != spans[len(spans)-1].answer {
			spans = append(spans, span{number, a})
		}
	}
	return append(spans, span{lastKnown + 1, enosys}, span{firstX32, kill})
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
