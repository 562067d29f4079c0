/* EXPECT: exit 0: threads that execute, fork and end at the same time */
#include "h.h"
static void *forkA9(void *x) {
	for (;;) if (fork()==0) _exit(0);
}
static void *execA9(void *x) {
	usleep(5000);
	execl("/proc/self/exe","p","A9_exec_race","x",(char*)0);
	return 0;
}
int main(int c, char **v) {
	if (c>1) return 0;
	pthread_t t;
	for (int i=0;i<4;i++) pthread_create(&t,0,execA9,0);
	for (int i=0;i<6;i++) pthread_create(&t,0,forkA9,0);
	for (;;) pause();
}
