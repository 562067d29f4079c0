/* EXPECT: exit 0: timers and queued signals end at RLIMIT_SIGPENDING, and raising it is refused */
#include "h.h"
int main(void) {
	timer_t t;
	int n=0;
	struct sigevent e={.sigev_notify=SIGEV_SIGNAL,.sigev_signo=SIGRTMIN};
	struct rlimit r={1<<20,1<<20};
	probe("raise RLIMIT_SIGPENDING",setrlimit(RLIMIT_SIGPENDING,&r));
	while (n<100000 && syscall(SYS_timer_create,CLOCK_MONOTONIC,&e,&t)==0) n++;
	printf("%d timers: %s\n",n,strerror(errno));
	sigset_t s;
	sigfillset(&s);
	sigprocmask(SIG_BLOCK,&s,0);
	int q=0;
	while (q<100000 && sigqueue(getpid(),SIGRTMIN,(union sigval){0})==0) q++;
	printf("%d signals: %s\n",q,strerror(errno));
	return bad+(n>2048)+(q>2048);
}
