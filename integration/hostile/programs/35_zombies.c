/* EXPECT: zombies count against pids; killed at wall or exits; all reaped, gone proven */
#include "h.h"
int main(void) {
	int n=0;
	for (;;) {
		pid_t p=fork();
		if (p<0)break;
		if (!p)_exit(0);
		n++;
		if (n>100000)return 1;
	}
	printf("%d zombies then %s\n",n,strerror(errno));
	return 0;
}
