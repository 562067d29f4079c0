/* EXPECT: signaled SIGSYS: the 32-bit syscall ABI is killed (filter checks arch) */
#include "h.h"
int main(void) {
	long r=0;
	asm volatile("int $0x80":"=a"(r):"a"(20),"b"(0),"c"(0),"d"(0):"r8","r9","r10","r11","memory");
	printf("i386 getpid -> %ld\n",r);
	return r>0;
}
