/* EXPECT: exit 0: as many descriptors on their way through sockets as the kernel takes; other leases of the same user can still send theirs */
#include "h.h"
int main(int c, char **v) {
	int fds[200], n = 0, full = 0;
	for (int k = 0; k < 80 && !full; k++) {
		int p[2];
		if (socketpair(AF_UNIX, SOCK_DGRAM, 0, p) < 0)
			break;
		char b[CMSG_SPACE(sizeof fds)], x = 0;
		for (int i = 0; i < 200; i++)
			fds[i] = p[0];
		for (;;) {
			struct iovec o = {&x, 1};
			struct msghdr m = {.msg_iov = &o, .msg_iovlen = 1, .msg_control = b, .msg_controllen = sizeof b};
			memset(b, 0, sizeof b);
			struct cmsghdr *h = CMSG_FIRSTHDR(&m);
			h->cmsg_level = SOL_SOCKET;
			h->cmsg_type = SCM_RIGHTS;
			h->cmsg_len = CMSG_LEN(sizeof fds);
			memcpy(CMSG_DATA(h), fds, sizeof fds);
			if (sendmsg(p[0], &m, MSG_DONTWAIT) < 0) {
				full = errno == ETOOMANYREFS;
				break;
			}
			n += 200;
		}
	}
	printf("%s\n", full ? "as many as there may be" : "as many as fit");
	fprintf(stderr, "%d: %s\n", n, strerror(errno));
	fflush(stdout);
	while (c > 1)
		pause();
	return 0;
}
