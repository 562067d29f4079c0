/* EXPECT: cause=wall: every SIGTERM makes more processes, which fork and exit for ever; gone proven */
#include "h.h"
static void more63(int s) {
	for (int i=0;i<4;i++) if (!fork()) {
		signal(SIGTERM,more63);
		for (;;) if (!fork()) _exit(0);
		else while (waitpid(-1,0,WNOHANG)>0);
	}
}
int main(void) {
	signal(SIGTERM,more63);
	for (;;) pause();
}
