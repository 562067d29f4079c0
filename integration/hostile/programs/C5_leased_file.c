/* EXPECT: exit 0: files with a lease that nobody is left to give back, each held by a socket in a ring: who opens them must not wait */
#include "h.h"
int main(void) {
	for (int i = 0; i < 20; i++) {
		char name[16];
		snprintf(name, sizeof name, "leased%d", i);
		int f = open(name, O_CREAT | O_RDWR, 0600), p[2];
		write(f, "x", 1);
		if (fcntl(f, F_SETLEASE, F_WRLCK) < 0)
			perror("lease");
		socketpair(AF_UNIX, SOCK_STREAM, 0, p);
		int fds[] = {f, p[0], p[1]};
		send80(p[0], fds, 3);
		send80(p[1], fds, 3);
	}
	return 0;
}
