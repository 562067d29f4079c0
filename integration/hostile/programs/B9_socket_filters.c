/* EXPECT: exit 0: no filters for sockets, which would be compiled into memory that the host has one amount of */
#include "h.h"
#include <linux/filter.h>
#ifndef SO_ATTACH_REUSEPORT_CBPF
#define SO_ATTACH_REUSEPORT_CBPF 51
#endif
int main(void) {
	struct sock_filter f[] = {{BPF_RET | BPF_K, 0, 0, 1}};
	struct sock_fprog p = {1, f};
	int s = socket(AF_INET, SOCK_DGRAM, 0), on = 1, fd = 0;
	if (setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) < 0)
		return 50;
	probe("SO_ATTACH_FILTER", setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof p));
	probe("SO_ATTACH_REUSEPORT_CBPF", setsockopt(s, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &p, sizeof p));
	probe("SO_ATTACH_BPF", setsockopt(s, SOL_SOCKET, 50, &fd, sizeof fd));
	int u[2];
	socketpair(AF_UNIX, SOCK_DGRAM, 0, u);
	probe("SO_ATTACH_FILTER of a pair", setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof p));
	return bad;
}
