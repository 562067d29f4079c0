package seccomp

import "golang.org/x/sys/unix"

// Arch is a processor mode and its system calls.
type Arch struct {
	// audit is its AUDIT_ARCH constant.
	audit uint32
	// numbers are all calls that the lists were made with.
	numbers map[string]uint32
}

// AMD64 is the 64-bit mode of x86 processors.
func AMD64() Arch { return Arch{unix.AUDIT_ARCH_X86_64, numbersAMD64()} }

// ARM64 is the 64-bit mode of ARM processors, little-endian.
func ARM64() Arch { return Arch{unix.AUDIT_ARCH_AARCH64, numbersARM64()} }
