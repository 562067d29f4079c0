/* EXPECT: signaled SIGSYS: calls of the x32 mode end the program */
#include "h.h"
int main(void) {
	long r=syscall(0x40000000|39);
	printf("x32 getpid -> %ld\n",r);
	return 1;
}
