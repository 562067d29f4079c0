/* EXPECT: cause=wall: pid 1 is flooded with SIGCHLD, SIGTERM, SIGHUP and real-time signals while TERM is ignored; gone proven in time */
#include "h.h"
int main(void) {
	signal(SIGTERM,SIG_IGN);
	signal(SIGHUP,SIG_IGN);
	for (int i=0;i<20;i++) if (!fork()) for (;;) {
		kill(1,SIGCHLD);
		kill(1,SIGTERM);
		kill(1,SIGHUP);
		sigqueue(1,SIGRTMIN+i%20,(union sigval){0});
	}
	for (;;) pause();
}
