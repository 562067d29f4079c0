/* EXPECT: exit 0 at once, leftover=true, daemon killed with the pid ns, stdout reaches EOF, gone proven */
#include "h.h"
int main(void) {
	if (fork()==0) {
		setsid();
		if (fork())_exit(0);
		for (int i=1;i<65;i++)signal(i,SIG_IGN);
		prctl(PR_SET_PDEATHSIG,0);
		for (;;)pause();
	}
	usleep(50000);
	puts("main done");
	return 0;
}
