package seccomp_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local/seccomp"
)

const (
	allow = unix.SECCOMP_RET_ALLOW
	kill  = unix.SECCOMP_RET_KILL_PROCESS
	errno = unix.SECCOMP_RET_ERRNO

	eperm   = errno | uint32(unix.EPERM)
	enosys  = errno | uint32(unix.ENOSYS)
	efamily = errno | uint32(unix.EAFNOSUPPORT)

	eprotocol = errno | uint32(unix.EPROTONOSUPPORT)
	done      = uint32(errno)
)

// call is a system call as a filter sees it (struct seccomp_data).
type call struct {
	arch, number uint32
	args         [6]uint64
}

// machine runs a filter in the machine of golang.org/x/net/bpf.
type machine struct{ vm *bpf.VM }

func newMachine(t testing.TB, f seccomp.Filter) machine {
	t.Helper()
	raw := make([]bpf.RawInstruction, len(f))
	for i, ins := range f {
		raw[i] = bpf.RawInstruction{Op: ins.Code, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	program, understood := bpf.Disassemble(raw)
	require.True(t, understood)
	vm, err := bpf.NewVM(program)
	require.NoError(t, err)
	return machine{vm}
}

// answer runs the filter. That machine loads words in network order where the
// kernel loads them in the processor's own.
func (m machine) answer(t testing.TB, c call) uint32 {
	t.Helper()
	var data [64]byte
	binary.BigEndian.PutUint32(data[0:], c.number)
	binary.BigEndian.PutUint32(data[4:], c.arch)
	for i, a := range c.args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	r, err := m.vm.Run(data[:])
	require.NoError(t, err)
	return uint32(r)
}

// job runs both filters, as a job has them: the stricter answer counts, which is
// the lower of these actions.
type job struct{ lease, job machine }

func newJob(t testing.TB, arch seccomp.Arch) job {
	t.Helper()
	p := seccomp.New(arch)
	return job{newMachine(t, p.Lease), newMachine(t, p.Job)}
}

func (j job) answer(t testing.TB, c call) uint32 {
	t.Helper()
	a, b := j.lease.answer(t, c), j.job.answer(t, c)
	if int32(b&unix.SECCOMP_RET_ACTION_FULL) < int32(a&unix.SECCOMP_RET_ACTION_FULL) {
		return b
	}
	return a
}

// model is what the filters are to answer, said in another way: by name, with
// lists, without a tree. inLease is for lease init and the stub.
func model(arch seccomp.Arch, names map[uint32]string, c call, inLease bool) uint32 {
	if c.arch != arch.Audit() || c.number >= 1<<30 {
		return kill
	}
	name, known := names[c.number]
	arg := func(i int) uint32 { return uint32(c.args[i]) }
	when := func(yes bool, otherwise uint32) uint32 {
		if yes {
			return allow
		}
		return otherwise
	}
	switch {
	case name == "clone3":
		return when(inLease, enosys)
	case !known, slices.Contains(seccomp.Missing(), name):
		return enosys
	case name == "mount", name == "umount2", name == "pivot_root":
		return when(inLease, eperm)
	case name == "clone":
		const namespaces = 0x7e020000 // moby's mask, which has the namespaces of its list
		return when(inLease || arg(0)&namespaces == 0, eperm)
	case name == "sync", name == "syncfs":
		return done
	case name == "mmap":
		return when(arg(3)&0x40000 == 0, eperm)
	case name == "memfd_create":
		return when(arg(1)&4 == 0, eperm)
	case name == "fcntl":
		return when(arg(1) != 1024 && arg(1) != 1040, eperm)
	case name == "shmget":
		return when(arg(2)&0x800 == 0, eperm)
	case name == "prlimit64":
		return when(arg(1) != 4 || c.args[2] == 0, done)
	case name == "setrlimit":
		return when(arg(0) != 4, done)
	case name == "setsockopt":
		return when(arg(1) != 1 || !slices.Contains([]uint32{26, 50, 51, 52}, arg(2)), eperm)
	case name == "ioctl":
		return when(arg(1) != 0x5412 && arg(1) != 0x541c, eperm)
	case name == "socket":
		if !slices.Contains([]uint32{1, 2, 10}, arg(0)) {
			return efamily
		}
		return when(slices.Contains([]uint32{1, 2, 5}, arg(1)%16) && slices.Contains([]uint32{0, 1, 6, 17, 58}, arg(2)), eprotocol)
	case name == "socketpair":
		return when(arg(0) == 1, efamily)
	case name == "personality":
		return when(slices.Contains([]uint32{0, 0x20000, 0x40000, 0x60000, 0xffffffff}, arg(0)), eperm)
	default:
		return when(slices.Contains(seccomp.Allowed(), name), eperm)
	}
}

func byNumber(arch seccomp.Arch) map[uint32]string {
	names := map[uint32]string{}
	for name, number := range arch.Numbers() {
		names[number] = name
	}
	return names
}

// TestEveryNumber compares the filters with the model for every number that there
// is or will be soon, with arguments that some call looks at.
func TestEveryNumber(t *testing.T) {
	var interesting []uint64
	for _, v := range []uint64{
		0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 17, 26, 29, 31, 38, 40, 43, 44, 50, 51, 52, 53, 58, 115, 132, 262, 1024, 1025, 1040, 0x800, 0x801, 0x80002,
		0xffffffff, 0x20000, 0x40000, 0x40022, 0x60000, 0x400000,
		unix.TIOCSTI, unix.TIOCLINUX, unix.TCGETS, unix.TIOCINQ, unix.TIOCSTI - 1, unix.TIOCSTI + 1,
		unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS,
		unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME, uint64(unix.SIGCHLD), unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD), 0x3d0f00,
	} {
		interesting = append(interesting, v, v|1<<32, v|1<<63)
	}
	numbers := []uint32{999, 1 << 20, 1<<30 - 1, 1 << 30, 1<<30 + 59, 0x7fffffff, 0x80000000, 0xffffffff}
	for n := range uint32(601) {
		numbers = append(numbers, n)
	}
	for name, arch := range arches() {
		t.Run(name, func(t *testing.T) {
			names, filters := byNumber(arch), newJob(t, arch)
			count, allowed := 0, 0
			for _, number := range numbers {
				values := interesting
				if !slices.Contains(append(byArgument, "mount", "umount2", "pivot_root"), names[number]) {
					values = []uint64{0, ^uint64(0)}
				}
				for _, value := range values {
					for i := range 4 {
						c := call{arch: arch.Audit(), number: number}
						c.args[i] = value
						inJob, inLease := filters.answer(t, c), filters.lease.answer(t, c)
						if inJob != model(arch, names, c, false) || inLease != model(arch, names, c, true) {
							t.Fatalf("%s (%d), %+v: %#x in a job, %#x in lease init", names[number], number, c, inJob, inLease)
						}
						count++
					}
				}
				if len(values) > 2 {
					count += combined(t, filters, arch, names, number, values)
				}
				if filters.answer(t, call{arch: arch.Audit(), number: number}) == allow {
					allowed++
				}
				for _, mode := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_RISCV64, 0, arch.Audit() ^ 1<<31} {
					require.EqualValues(t, kill, filters.answer(t, call{arch: mode, number: number}))
				}
			}
			p := seccomp.New(arch)
			require.LessOrEqual(t, len(p.Job), seccomp.MaxJob)
			require.Less(t, len(p.Lease), 288)
			t.Logf("%d calls as the model has them; %d and %d instructions, %d numbers allowed", count, len(p.Lease), len(p.Job), allowed)
		})
	}
}

// combined compares with the model what calls with several arguments of interest are
// answered.
func combined(t *testing.T, filters job, arch seccomp.Arch, names map[uint32]string, number uint32, values []uint64) int {
	const many = 2000
	for range many {
		c := call{arch: arch.Audit(), number: number}
		for i := range 4 {
			if i > 0 || rand.IntN(4) > 0 { // the first one often decides alone
				c.args[i] = values[rand.IntN(len(values))]
			} else {
				c.args[i] = uint64(rand.IntN(11))
			}
		}
		if got, want := filters.answer(t, c), model(arch, names, c, false); got != want {
			t.Fatalf("%s (%d), %+v: %#x instead of %#x", names[number], number, c, got, want)
		}
	}
	return many
}

// TestFilter says for some calls what an attacker meets.
func TestFilter(t *testing.T) {
	for _, tt := range []struct {
		name string
		want uint32
		args [6]uint64
	}{
		{"read", allow, [6]uint64{}},
		{"execve", allow, [6]uint64{}},
		{"ptrace", eperm, [6]uint64{}},
		{"mount", eperm, [6]uint64{}},
		{"umount2", eperm, [6]uint64{}},
		{"move_mount", eperm, [6]uint64{}},
		{"open_tree", eperm, [6]uint64{}},
		{"fsopen", eperm, [6]uint64{}},
		{"mount_setattr", eperm, [6]uint64{}},
		{"pivot_root", eperm, [6]uint64{}},
		{"chroot", eperm, [6]uint64{}},
		{"unshare", eperm, [6]uint64{}},
		{"setns", eperm, [6]uint64{}},
		{"bpf", eperm, [6]uint64{}},
		{"keyctl", eperm, [6]uint64{}},
		{"add_key", eperm, [6]uint64{}},
		{"request_key", eperm, [6]uint64{}},
		{"userfaultfd", eperm, [6]uint64{}},
		{"perf_event_open", eperm, [6]uint64{}},
		{"process_vm_readv", eperm, [6]uint64{}},
		{"kcmp", eperm, [6]uint64{}},
		{"pidfd_getfd", eperm, [6]uint64{}},
		{"open_by_handle_at", eperm, [6]uint64{}},
		{"name_to_handle_at", eperm, [6]uint64{}},
		{"sethostname", eperm, [6]uint64{}},
		{"syslog", eperm, [6]uint64{}},
		{"memfd_secret", enosys, [6]uint64{}},
		{"io_uring_setup", enosys, [6]uint64{}},
		{"clone3", enosys, [6]uint64{}},
		{"clone", allow, [6]uint64{uint64(unix.SIGCHLD)}},
		{"clone", allow, [6]uint64{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD}},
		{"clone", eperm, [6]uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}},
		{"ioctl", eperm, [6]uint64{0, unix.TIOCSTI}},
		{"ioctl", eperm, [6]uint64{0, 1<<32 | unix.TIOCSTI}},
		{"ioctl", allow, [6]uint64{0, unix.TCGETS}},
		{"socket", allow, [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}},
		{"socket", efamily, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
		{"socket", efamily, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}},
		{"socket", efamily, [6]uint64{unix.AF_VSOCK}},
		{"socket", efamily, [6]uint64{unix.AF_ALG}},
		{"socket", efamily, [6]uint64{unix.AF_PACKET}},
		{"socket", allow, [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}},
		{"socket", allow, [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, 0}},
		{"socket", allow, [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC, 0}},
		{"socket", eprotocol, [6]uint64{unix.AF_INET, unix.SOCK_PACKET, 0x300}}, // is AF_PACKET
		{"socket", eprotocol, [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}},
		{"socket", eprotocol, [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}},
		{"socket", eprotocol, [6]uint64{unix.AF_INET, unix.SOCK_DCCP, unix.IPPROTO_DCCP}},
		{"socket", eprotocol, [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_L2TP}},
		{"socket", eprotocol, [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}},
		{"socketpair", allow, [6]uint64{unix.AF_UNIX}},
		{"setsockopt", allow, [6]uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}},
		{"setsockopt", allow, [6]uint64{3, unix.IPPROTO_TCP, unix.SO_ATTACH_FILTER}},
		{"setsockopt", eperm, [6]uint64{3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}},
		{"setsockopt", eperm, [6]uint64{3, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF}},
		{"mmap", allow, [6]uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}},
		{"mmap", eperm, [6]uint64{0, 2 << 20, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}},
		{"fcntl", allow, [6]uint64{3, unix.F_SETLK}},
		{"fcntl", eperm, [6]uint64{3, unix.F_SETLEASE, unix.F_RDLCK}},
		{"memfd_create", eperm, [6]uint64{0, unix.MFD_HUGETLB | unix.MFD_CLOEXEC}},
		{"prlimit64", allow, [6]uint64{0, unix.RLIMIT_NOFILE, 1 << 40}},
		{"prlimit64", allow, [6]uint64{0, unix.RLIMIT_CORE, 0, 1 << 40}},
		{"prlimit64", done, [6]uint64{0, unix.RLIMIT_CORE, 0x1000}},
		{"prlimit64", done, [6]uint64{0, unix.RLIMIT_CORE, 1 << 32}},
		{"sync", done, [6]uint64{}},
		{"socketpair", efamily, [6]uint64{unix.AF_TIPC}},
		{"personality", allow, [6]uint64{0xffffffff}},
		{"personality", eperm, [6]uint64{0x400000}},
	} {
		for name, arch := range arches() {
			c := call{arch: arch.Audit(), number: arch.Numbers()[tt.name], args: tt.args}
			require.Equal(t, tt.want, newJob(t, arch).answer(t, c), "%s: %s %v", name, tt.name, tt.args)
		}
	}
}

// TestBytes: the kernel takes an array of struct sock_filter.
func TestBytes(t *testing.T) {
	p := seccomp.New(seccomp.Native())
	for _, f := range []seccomp.Filter{p.Lease, p.Job} {
		b := f.Bytes()
		require.Len(t, b, len(f)*int(unsafe.Sizeof(f[0])))
		for i, ins := range f {
			at := b[i*8:]
			require.Equal(t, ins, unix.SockFilter{
				Code: binary.NativeEndian.Uint16(at), Jt: at[2], Jf: at[3], K: binary.NativeEndian.Uint32(at[4:]),
			})
		}
	}
}

// FuzzTree makes a tree over answers that are not ours, and compares it with them.
func FuzzTree(f *testing.F) {
	f.Add(uint64(1), uint16(500), uint8(3))
	f.Add(uint64(7), uint16(0), uint8(1))
	f.Add(uint64(9), uint16(2000), uint8(2))
	f.Fuzz(func(t *testing.T, seed uint64, many uint16, kinds uint8) {
		random := rand.New(rand.NewPCG(seed, 0))
		kind := func() uint32 { return errno | uint32(random.IntN(int(kinds)%8+1)) + 1 }
		answers := map[uint32]uint32{}
		for range many % 2048 {
			number := random.Uint32N(4096)
			for range random.IntN(6) + 1 {
				answers[number] = kind()
				number++
			}
		}
		tree := newTree(t, answers)
		for number := range uint32(4200) {
			want, has := answers[number]
			if !has {
				want = enosys
			}
			require.Equal(t, want, tree.answer(t, call{number: number}), "number %d", number)
		}
		require.EqualValues(t, kill, tree.answer(t, call{number: 1 << 30}))
	})
}

// newTree is a filter that is nothing but a tree.
func newTree(t testing.TB, answers map[uint32]uint32) machine {
	t.Helper()
	f := seccomp.Filter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	return newMachine(t, append(f, seccomp.Tree(answers)...))
}
