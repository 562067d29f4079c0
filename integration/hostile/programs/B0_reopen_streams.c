/* EXPECT: exit 0: the streams are opened again by name, also as what they are not */
#include "h.h"
int main(void) {
	int w=open("/proc/self/fd/1",O_WRONLY|O_NONBLOCK),e=open("/dev/stderr",O_WRONLY|O_APPEND);
	printf("again: %d %d\n",w>=0,e>=0);
	fflush(stdout);
	int r=open("/proc/self/fd/1",O_RDONLY|O_NONBLOCK);
	if (r>=0) {
		fcntl(r,F_SETPIPE_SZ,4096);
		if (!fork()) for (;;) pause();
	}
	return !(w>=0 && e>=0);
}
