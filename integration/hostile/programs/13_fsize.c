/* EXPECT: signaled SIGXFSZ (RLIMIT_FSIZE); sparse file is refused too */
#include "h.h"
int main(void) {
	int f=open("/tmp/x",O_CREAT|O_RDWR,0600);
	if (ftruncate(f,1L<<40)==0)puts("1 TiB sparse ALLOWED");
	return 1;
}
