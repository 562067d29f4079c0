/* EXPECT: cause=wall: everything is stopped again and again, pid 1 too if it can be; gone proven */
#include "h.h"
int main(void) {
	for (int i=0;i<10;i++) if (!fork()) for (;;) {
		kill(-1,SIGSTOP);
		kill(1,SIGSTOP);
		kill(1,SIGTSTP);
	}
	kill(-1,SIGSTOP);
	raise(SIGSTOP);
	for (;;) pause();
}
