#include "textflag.h"

// func spawnStub(nr, a, b, c uintptr) (pid uintptr)
TEXT ·spawnStub(SB), NOSPLIT, $0-40
	MOVD nr+0(FP), R8
	MOVD a+8(FP), R0
	MOVD b+16(FP), R1
	MOVD c+24(FP), R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD ZR, R5
	SVC
	CBZ  R0, child
	MOVD R0, pid+32(FP)
	RET

child:
	// On a stack of its own.
	MOVD ZR, R29
	CALL ·stub(SB)
	BRK

// func spawnChild(nr, a, b uintptr) (pid uintptr)
TEXT ·spawnChild(SB), NOSPLIT, $0-32
	MOVD nr+0(FP), R8
	MOVD a+8(FP), R0
	MOVD b+16(FP), R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD ZR, R5
	SVC
	CBZ  R0, child
	MOVD R0, pid+24(FP)
	RET

child:
	// Below the stub's frames, which stay as they are until it goes on.
	CALL ·child(SB)
	BRK
