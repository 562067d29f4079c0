/* EXPECT: exit 0, no leftover: the program ends and leaves only zombies */
#include "h.h"
int main(void) {
	pid_t child[40];
	int n = 0;
	for (; n < 40 && (child[n] = fork()) >= 0; n++)
		if (!child[n])
			_exit(0);
	for (int i = 0; i < n; i++) {
		siginfo_t info;
		waitid(P_PID, child[i], &info, WEXITED | WNOWAIT);
	}
	return 0;
}
