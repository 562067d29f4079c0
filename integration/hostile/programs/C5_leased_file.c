/* EXPECT: exit 0: no leases of files, not on the program's own nor on what is shown to all, for which whoever opens the file would wait; files that sockets in a ring hold */
#include "h.h"
int main(void) {
	for (int i = 0; i < 20; i++) {
		char name[16];
		snprintf(name, sizeof name, "leased%d", i);
		int f = open(name, O_CREAT | O_RDWR, 0600), p[2];
		write(f, "x", 1);
		probe("write lease", fcntl(f, F_SETLEASE, F_WRLCK));
		socketpair(AF_UNIX, SOCK_STREAM, 0, p);
		int fds[] = {f, p[0], p[1]};
		send80(p[0], fds, 3);
		send80(p[1], fds, 3);
	}
	int f = open("/etc/passwd", O_RDONLY);
	probe("read lease of a file of the system's", fcntl(f, F_SETLEASE, F_RDLCK));
	probe("write lease of a file of the system's", fcntl(f, F_SETLEASE, F_WRLCK));
	return bad;
}
