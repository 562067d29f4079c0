/* EXPECT: exit 0, EMFILE at RLIMIT_NOFILE, raising it is refused */
#include "h.h"
int main(void) {
	int n=0;
	while (open("/dev/null",O_RDONLY)>=0)n++;
	int e=errno;
	struct rlimit r={1<<20,1<<20};
	long x=setrlimit(RLIMIT_NOFILE,&r);
	printf("%d fds: %s; raise %ld\n",n,strerror(e),x);
	return x==0;
}
