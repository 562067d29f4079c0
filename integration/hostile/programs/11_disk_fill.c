/* EXPECT: exit 0, ENOSPC (tmpfs size / quota) or SIGXFSZ at RLIMIT_FSIZE; host disk unharmed */
#include "h.h"
int main(void) {
	char b[65536]={1},p[64];
	long n=0;
	for (int i=0;i<100;i++) {
		snprintf(p,64,"/workspace/f%d",i);
		int f=open(p,O_CREAT|O_RDWR,0600);
		if (f<0)break;
		ssize_t r;
		long k=0;
		while (k<(4<<20)&&(r=write(f,b,sizeof b))>0) {
			n+=r;
			k+=r;
		}
		close(f);
		if (k<(4<<20))break;
	}
	printf("wrote %ld KiB: %s\n",n>>10,strerror(errno));
	return 0;
}
