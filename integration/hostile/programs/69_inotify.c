/* EXPECT: exit 0: few inotify instances for a lease, so that those of the user that the worker is stay free */
#include "h.h"
#include <sys/inotify.h>
int main(void) {
	int n=0;
	while (n<200 && inotify_init1(0)>=0) n++;
	printf("%d instances: %s\n",n,strerror(errno));
	return n>64;
}
