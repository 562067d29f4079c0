/* EXPECT: exit 0, leftover: as many full pipes as descriptors allow, held by many processes */
#include "h.h"
int main(void) {
	static char b[65536];
	int made=0;
	for (int k=0;k<40;k++) if (!fork()) {
		int p[2];
		while (pipe2(p,O_NONBLOCK)==0) fcntl(p[1],F_SETPIPE_SZ,1<<20);
		for (;;) pause();
	}
	usleep(100000);
	return made;
}
