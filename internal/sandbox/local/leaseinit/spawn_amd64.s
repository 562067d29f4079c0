#include "textflag.h"

// func spawnStub(nr, a, b, c uintptr) (pid uintptr)
TEXT ·spawnStub(SB), NOSPLIT, $0-40
	MOVQ nr+0(FP), AX
	MOVQ a+8(FP), DI
	MOVQ b+16(FP), SI
	MOVQ c+24(FP), DX
	XORL R10, R10
	XORL R8, R8
	XORL R9, R9
	SYSCALL
	TESTQ AX, AX
	JZ   child
	MOVQ AX, pid+32(FP)
	RET

child:
	// On a stack of its own.
	XORL BP, BP
	CALL ·stub(SB)
	INT  $3

// func spawnChild(nr, a, b uintptr) (pid uintptr)
TEXT ·spawnChild(SB), NOSPLIT, $0-32
	MOVQ nr+0(FP), AX
	MOVQ a+8(FP), DI
	MOVQ b+16(FP), SI
	XORL DX, DX
	XORL R10, R10
	XORL R8, R8
	XORL R9, R9
	SYSCALL
	TESTQ AX, AX
	JZ   child
	MOVQ AX, pid+24(FP)
	RET

child:
	// Below the stub's frames, which stay as they are until it goes on.
	CALL ·child(SB)
	INT  $3
