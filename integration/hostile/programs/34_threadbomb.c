/* EXPECT: EAGAIN at pids limit; exit 0; pids_max_hits>0 */
#include "h.h"
static void *sleeper(void *x) {
	for (;;) pause();
}
int main(void) {
	int n=0;
	pthread_t p;
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a,16384);
	while (n<100000&&pthread_create(&p,&a,sleeper,0)==0)n++;
	printf("%d threads then refused\n",n);
	fflush(stdout);
	_exit(n>=100000);
}
