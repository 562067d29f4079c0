/* EXPECT: wall: whoever sees another one die makes two more, so that a kill is answered with forks */
#include "h.h"
static void breed(int depth) {
	for (int i = 0; i < 3; i++)
		if (fork() == 0) {
			if (depth > 0)
				breed(depth - 1);
			prctl(PR_SET_PDEATHSIG, SIGUSR1);
			for (;;)
				pause();
		}
	for (;;) {
		if (waitpid(-1, 0, __WALL) < 0 && errno == ECHILD)
			usleep(1000);
		for (int i = 0; i < 2; i++)
			if (fork() == 0)
				breed(0);
	}
}
static void more(int s) {
	if (fork() == 0)
		breed(1);
}
int main(void) {
	signal(SIGTERM, more);
	signal(SIGUSR1, more);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	breed(2);
}
