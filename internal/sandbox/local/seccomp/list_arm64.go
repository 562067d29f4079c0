package seccomp

import "golang.org/x/sys/unix"

// NativeArch is the processor mode whose calls the filter knows, an AUDIT_ARCH
// constant of the kernel.
const NativeArch uint32 = unix.AUDIT_ARCH_AARCH64

// native are the calls whose names differ on this processor.
func native() []uint32 {
	return []uint32{unix.SYS_FSTATAT, unix.SYS_MAP_SHADOW_STACK}
}
