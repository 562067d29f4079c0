/* EXPECT: exit 0, leftover: as many pipes as descriptors allow, as large as they may be, held by many processes */
#include "h.h"
int main(int c, char **v) {
	for (int k = 0; k < 40; k++)
		if (!fork()) {
			int p[2];
			while (pipe2(p, O_NONBLOCK) == 0)
				fcntl(p[1], F_SETPIPE_SZ, 1 << 20);
			for (;;)
				pause();
		}
	usleep(100000);
	puts("made");
	fflush(stdout);
	while (c > 1)
		pause();
	return 0;
}
