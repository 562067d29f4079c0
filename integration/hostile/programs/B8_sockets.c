/* EXPECT: exit 0: no socket but Unix, TCP, UDP and ICMP, of whatever family, type and protocol: for others the host would load modules */
#include "h.h"
int main(void) {
	for (int family = 0; family < 50; family++)
		for (int type = 0; type < 16; type++)
			for (int protocol = 0; protocol < 300; protocol++) {
				int s = socket(family, type, protocol);
				if (s < 0)
					continue;
				close(s);
				int unix_ = family == AF_UNIX && protocol <= 1;
				int inet = (family == AF_INET || family == AF_INET6) && (type == SOCK_STREAM || type == SOCK_DGRAM);
				if (unix_ || inet && (protocol == 0 || protocol == 1 || protocol == 6 || protocol == 17 || protocol == 58))
					continue;
				printf("socket(%d, %d, %d): ALLOWED\n", family, type, protocol);
				bad++;
			}
	return bad > 0;
}
