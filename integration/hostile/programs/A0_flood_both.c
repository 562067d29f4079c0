/* EXPECT: cause=output: both streams are flooded by threads that block all signals, TERM is ignored */
#include "h.h"
static void *floodA0(void *fd) {
	static char b[65536];
	for (;;) write((long)fd,b,sizeof b);
}
int main(void) {
	sigset_t s;
	sigfillset(&s);
	sigprocmask(SIG_BLOCK,&s,0);
	pthread_t t;
	for (long i=0;i<8;i++) pthread_create(&t,0,floodA0,(void*)(1+i%2));
	for (;;) pause();
}
