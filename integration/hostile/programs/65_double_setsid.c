/* EXPECT: exit 0, leftover: ten sessions deep, descriptors closed, all signals blocked and ignored */
#include "h.h"
#include <linux/close_range.h>
int main(void) {
	sigset_t s;
	sigfillset(&s);
	for (int i=0;i<10;i++) {
		pid_t p=fork();
		if (p) {
			if (i) _exit(0);
			usleep(30000);
			return 0;
		}
		setsid();
		if (fork()) _exit(0);
		sigprocmask(SIG_BLOCK,&s,0);
		for (int n=1;n<65;n++) signal(n,SIG_IGN);
		close_range(0,~0u,0);
	}
	for (;;) pause();
}
