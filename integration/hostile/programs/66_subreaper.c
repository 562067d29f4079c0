/* EXPECT: exit 0, leftover: orphans collected by a subreaper, a death signal of their own, parents that die first */
#include "h.h"
int main(void) {
	if (!fork()) {
		prctl(PR_SET_CHILD_SUBREAPER,1);
		for (int i=0;i<8;i++) if (!fork()) {
			prctl(PR_SET_PDEATHSIG,SIGUSR1);
			signal(SIGUSR1,SIG_IGN);
			if (fork()) _exit(0);
			for (;;) pause();
		}
		for (;;) pause();
	}
	usleep(30000);
	return 0;
}
