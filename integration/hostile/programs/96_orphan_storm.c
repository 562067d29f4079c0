/* EXPECT: exit 0: thousands of orphans are collected while the program runs */
#include "h.h"
int main(void) {
	for (int i=0;i<2000;i++) {
		pid_t p=fork();
		if (!p) {
			if (fork()==0) _exit(0);
			_exit(0);
		}
		if (p>0) waitpid(p,0,0);
		else usleep(100);
	}
	usleep(50000);
	return 0;
}
