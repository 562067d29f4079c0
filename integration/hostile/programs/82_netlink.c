/* EXPECT: exit 0: no netlink socket, whatever its protocol */
#include "h.h"
int main(void) {
	for (int p = 0; p < 32; p++) {
		char name[32];
		snprintf(name, 32, "netlink protocol %d", p);
		probe(name, socket(AF_NETLINK, SOCK_RAW, p));
		probe(name, socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, p));
	}
	return bad;
}
