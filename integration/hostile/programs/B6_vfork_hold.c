/* EXPECT: cause=wall: a chain of parents that vfork holds while their children wait, with SIGTERM blocked; gone proven */
#include "h.h"
static void hold(int depth) {
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, 0);
	if (depth && vfork() == 0)
		hold(depth - 1);
	for (;;)
		pause();
}
int main(void) {
	for (int k = 0; k < 5; k++)
		if (!fork())
			hold(8);
	hold(8);
	return 0;
}
