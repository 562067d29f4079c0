/* EXPECT: exit 0: the host has one number of asynchronous requests for all; a job takes none of it */
#include "h.h"
int main(void) {
	long n=0;
	for (int i=0;i<64;i++) {
		unsigned long c=0;
		if (syscall(SYS_io_setup,1024,&c)==0) n+=1024;
	}
	printf("%ld requests: %s\n",n,strerror(errno));
	return n>0;
}
