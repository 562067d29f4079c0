/* EXPECT: cause=output: the first thread has ended while another floods */
#include "h.h"
static void *floodA2(void *x) {
	static char b[65536];
	for (;;) write(1,b,sizeof b);
}
int main(void) {
	signal(SIGTERM,SIG_IGN);
	pthread_t t;
	pthread_create(&t,0,floodA2,0);
	pthread_exit(0);
}
