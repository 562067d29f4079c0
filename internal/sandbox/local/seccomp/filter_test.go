package seccomp_test

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox/local/seccomp"
)

// call is a system call as the filter sees it.
type call struct {
	arch, number uint32
	args         [6]uint64
}

const secret = 0x0123456789abcdef

func program(t testing.TB) []unix.SockFilter {
	t.Helper()
	raw := seccomp.New().Filter(secret)
	size := int(unsafe.Sizeof(unix.SockFilter{}))
	require.Zero(t, len(raw)%size)
	var p []unix.SockFilter
	for ; len(raw) > 0; raw = raw[size:] {
		p = append(p, unix.SockFilter{
			Code: binary.NativeEndian.Uint16(raw), Jt: raw[2], Jf: raw[3], K: binary.NativeEndian.Uint32(raw[4:]),
		})
	}
	return p
}

// answer runs the program as the kernel would.
func answer(t testing.TB, p []unix.SockFilter, c call) uint32 {
	t.Helper()
	var data [64]byte
	binary.NativeEndian.PutUint32(data[0:], c.number)
	binary.NativeEndian.PutUint32(data[4:], c.arch)
	for i, a := range c.args {
		binary.NativeEndian.PutUint64(data[16+8*i:], a)
	}
	var acc uint32
	for pc := 0; ; pc++ {
		ins := p[pc]
		holds := false
		switch ins.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.NativeEndian.Uint32(data[ins.K:])
			continue
		case unix.BPF_RET | unix.BPF_K:
			return ins.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(ins.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = acc == ins.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			holds = acc >= ins.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			holds = acc&ins.K != 0
		default:
			t.Fatalf("instruction %d: unknown code %#x", pc, ins.Code)
		}
		if holds {
			pc += int(ins.Jt)
		} else {
			pc += int(ins.Jf)
		}
	}
}

const (
	allow = unix.SECCOMP_RET_ALLOW
	kill  = unix.SECCOMP_RET_KILL_PROCESS
	errno = unix.SECCOMP_RET_ERRNO
)

func TestFilter(t *testing.T) {
	p := program(t)
	for _, tt := range []struct {
		name string
		call call
		want uint32
	}{
		{"read", call{number: unix.SYS_READ}, allow},
		{"execve", call{number: unix.SYS_EXECVE}, allow},
		{"ptrace", call{number: unix.SYS_PTRACE}, errno | uint32(unix.EPERM)},
		{"mount", call{number: unix.SYS_MOUNT}, errno | uint32(unix.EPERM)},
		{"unshare", call{number: unix.SYS_UNSHARE}, errno | uint32(unix.EPERM)},
		{"setns", call{number: unix.SYS_SETNS}, errno | uint32(unix.EPERM)},
		{"bpf", call{number: unix.SYS_BPF}, errno | uint32(unix.EPERM)},
		{"keyctl", call{number: unix.SYS_KEYCTL}, errno | uint32(unix.EPERM)},
		{"userfaultfd", call{number: unix.SYS_USERFAULTFD}, errno | uint32(unix.EPERM)},
		{"perf_event_open", call{number: unix.SYS_PERF_EVENT_OPEN}, errno | uint32(unix.EPERM)},
		{"process_vm_readv", call{number: unix.SYS_PROCESS_VM_READV}, errno | uint32(unix.EPERM)},
		{"pidfd_getfd", call{number: unix.SYS_PIDFD_GETFD}, errno | uint32(unix.EPERM)},
		{"open_by_handle_at", call{number: unix.SYS_OPEN_BY_HANDLE_AT}, errno | uint32(unix.EPERM)},
		{"io_uring", call{number: unix.SYS_IO_URING_SETUP}, errno | uint32(unix.ENOSYS)},
		{"clone3", call{number: unix.SYS_CLONE3}, errno | uint32(unix.ENOSYS)},
		{"a later call", call{number: 1000}, errno | uint32(unix.ENOSYS)},
		{"x32", call{number: 0x40000000 | unix.SYS_READ}, kill},
		{"minus one", call{number: 0xffffffff}, kill},
		{"fork", call{number: unix.SYS_CLONE, args: [6]uint64{uint64(unix.SIGCHLD)}}, allow},
		{"thread", call{number: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD}}, allow},
		{"clone with a namespace", call{number: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}}, errno | uint32(unix.EPERM)},
		{"clone with a namespace and the secret", call{number: unix.SYS_CLONE, args: [6]uint64{unix.CLONE_NEWUSER, 0, 0, 0, 0, secret}}, allow},
		{"mount with the secret", call{number: unix.SYS_MOUNT, args: [6]uint64{5: secret}}, allow},
		{"umount with the secret", call{number: unix.SYS_UMOUNT2, args: [6]uint64{5: secret}}, allow},
		{"half the secret", call{number: unix.SYS_MOUNT, args: [6]uint64{5: secret & 0xffffffff}}, errno | uint32(unix.EPERM)},
		{"the other half", call{number: unix.SYS_MOUNT, args: [6]uint64{5: secret &^ 0xffffffff}}, errno | uint32(unix.EPERM)},
		{"unshare with the secret", call{number: unix.SYS_UNSHARE, args: [6]uint64{unix.CLONE_NEWUSER, 0, 0, 0, 0, secret}}, errno | uint32(unix.EPERM)},
		{"TIOCSTI", call{number: unix.SYS_IOCTL, args: [6]uint64{0, unix.TIOCSTI}}, errno | uint32(unix.EPERM)},
		{"TIOCSTI with more", call{number: unix.SYS_IOCTL, args: [6]uint64{0, 1<<32 | unix.TIOCSTI}}, errno | uint32(unix.EPERM)},
		{"TCGETS", call{number: unix.SYS_IOCTL, args: [6]uint64{0, unix.TCGETS}}, allow},
		{"unix socket", call{number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_UNIX}}, allow},
		{"netlink socket", call{number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_NETLINK}}, allow},
		{"vsock", call{number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_VSOCK}}, errno | uint32(unix.EAFNOSUPPORT)},
		{"AF_ALG", call{number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_ALG}}, errno | uint32(unix.EAFNOSUPPORT)},
		{"packet socket", call{number: unix.SYS_SOCKET, args: [6]uint64{unix.AF_PACKET}}, errno | uint32(unix.EAFNOSUPPORT)},
		{"personality asked", call{number: unix.SYS_PERSONALITY, args: [6]uint64{0xffffffff}}, allow},
		{"READ_IMPLIES_EXEC", call{number: unix.SYS_PERSONALITY, args: [6]uint64{0x400000}}, errno | uint32(unix.EPERM)},
	} {
		tt.call.arch = seccomp.NativeArch
		require.Equal(t, tt.want, answer(t, p, tt.call), tt.name)
		tt.call.arch = unix.AUDIT_ARCH_I386
		require.EqualValues(t, kill, answer(t, p, tt.call), "%s of another mode", tt.name)
	}
}

// TestEveryNumber runs the filter for every number: it must end everywhere, and
// the number of calls that are allowed is known.
func TestEveryNumber(t *testing.T) {
	p := program(t)
	require.Less(t, len(p), 400)
	allowed := 0
	for number := range uint32(2000) {
		if answer(t, p, call{arch: seccomp.NativeArch, number: number}) == allow {
			allowed++
		}
	}
	t.Logf("%d instructions, %d calls allowed", len(p), allowed)
	require.Greater(t, allowed, 250)
	require.Less(t, allowed, 330)
}
