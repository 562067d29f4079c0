/* EXPECT: exit 0: 40 MiB of memory files stay in sockets that only hold each other; the next job has its memory */
#include "h.h"
int main(void) {
	static char mib[1 << 20];
	for (int k = 0; k < 40; k++) {
		int p[2], f = memfd_create("left", 0);
		write(f, mib, sizeof mib);
		socketpair(AF_UNIX, SOCK_STREAM, 0, p);
		int fds[] = {p[0], p[1], f};
		for (int i = 0; i < 2; i++)
			send80(p[i], fds, 3);
	}
	return 0;
}
