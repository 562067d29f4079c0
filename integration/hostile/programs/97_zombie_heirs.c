/* EXPECT: exit 0, no leftover: the program ends and leaves only zombies */
#include "h.h"
int main(void) {
	int n=0;
	for (;n<40;n++) {
		pid_t p=fork();
		if (p==0) _exit(0);
		if (p<0) break;
	}
	usleep(30000);
	for (int i=0;i<n;i++) {
		siginfo_t s;
		waitid(P_ALL,0,&s,WEXITED|WNOWAIT);
	}
	return 0;
}
