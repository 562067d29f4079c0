/* EXPECT: exit 0: 40 MiB are there */
#include "h.h"
int main(void) {
	char *p=mmap(0,40<<20,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
	if (p==MAP_FAILED) return 1;
	memset(p,1,40<<20);
	return 0;
}
