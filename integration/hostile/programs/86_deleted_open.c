/* EXPECT: exit 0, leftover: a child holds a deleted file of 12 MiB, open, mapped and as its working directory's child */
#include "h.h"
int main(void) {
	int f=open("/workspace/gone",O_CREAT|O_RDWR,0600);
	ftruncate(f,12<<20);
	char *p=mmap(0,12<<20,PROT_READ|PROT_WRITE,MAP_SHARED,f,0);
	memset(p,1,12<<20);
	unlink("/workspace/gone");
	mkdir("/workspace/d",0700);
	chdir("/workspace/d");
	rmdir("/workspace/d");
	if (!fork()) for (;;) pause();
	return 0;
}
