/* EXPECT: exit 0, ENOSPC from the sized tmpfs (or oom); never unbounded */
#include "h.h"
int main(void) {
	int f=open("/dev/shm/x",O_CREAT|O_RDWR,0600);
	char b[65536]={1};
	long n=0;
	while (write(f,b,sizeof b)>0)n+=sizeof b;
	printf("wrote %ld KiB: %s\n",n>>10,strerror(errno));
	return 0;
}
