/* EXPECT: exit 0: answers that nobody reads, in the sockets of many processes, use up no memory of the kernel's beyond the limit: there are no such sockets */
#include "h.h"
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
int main(int c, char **v) {
	struct {
		struct nlmsghdr h;
		struct ifinfomsg i;
	}
	q={{sizeof q,RTM_NEWLINK,NLM_F_REQUEST|NLM_F_ACK,1},{AF_UNSPEC,0,1,IFF_UP,IFF_UP}};
	long n=0;
	int k=0;
	for (;k<40;k++) if (!fork()) {
		for (;;) {
			int s=socket(AF_NETLINK,SOCK_RAW,0);
			if (s<0) break;
			while (send(s,&q,sizeof q,MSG_DONTWAIT)>0 && n<1000000) n++;
		}
		for (;;) pause();
	}
	usleep(400000);
	puts("sent");
	fflush(stdout);
	while (c > 1) 		pause();
	return 0;
}
