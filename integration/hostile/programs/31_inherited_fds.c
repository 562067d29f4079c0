/* EXPECT: exit 0: no descriptor above 2 is open */
#include "h.h"
int main(void) {
	for (int i=3;i<4096;i++)if (fcntl(i,F_GETFD)>=0) {
		char p[64],l[256]={0};
		snprintf(p,64,"/proc/self/fd/%d",i);
		readlink(p,l,255);
		printf("fd %d -> %s ALLOWED\n",i,l);
		bad++;
	}
	printf("%d leaked\n",bad);
	return bad;
}
