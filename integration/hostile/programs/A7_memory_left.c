/* EXPECT: exit 0: most of the memory limit is left in System V segments and files for the next job to trip over */
#include "h.h"
int main(void) {
	int s=shmget(IPC_PRIVATE,24<<20,IPC_CREAT|0600);
	memset(shmat(s,0,0),1,24<<20);
	const char *d[]={"/tmp/x","/dev/shm/x","/workspace/x"};
	static char b[1<<20];
	for (int k=0;k<3;k++) {
		int f=open(d[k],O_CREAT|O_RDWR,0600);
		for (int i=0;i<8;i++) write(f,b,sizeof b);
	}
	return 0;
}
