/* EXPECT: exit 0: netlink changes nothing, and only what lists addresses is there */
#include "h.h"
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
static long set82(int type, int flags) {
	int s=socket(AF_NETLINK,SOCK_RAW,0);
	struct {
		struct nlmsghdr h;
		struct ifinfomsg i;
	}
	q={{sizeof q,type,NLM_F_REQUEST|NLM_F_ACK|flags,1},{AF_UNSPEC,0,1,IFF_UP,IFF_UP}};
	if (s<0 || send(s,&q,sizeof q,0)<0) return -1;
	struct {
		struct nlmsghdr h;
		int e;
		char rest[4096];
	}
	r={0};
	recv(s,&r,sizeof r,0);
	close(s);
	if (r.h.nlmsg_type==NLMSG_ERROR && r.e<0) {
		errno=-r.e;
		return -1;
	}
	return 0;
}
int main(void) {
	probe("loopback up",set82(RTM_NEWLINK,0));
	probe("new link",set82(RTM_NEWLINK,NLM_F_CREATE|NLM_F_EXCL));
	probe("delete link",set82(RTM_DELLINK,0));
	for (int p=1;p<23;p++) {
		char n[32];
		snprintf(n,32,"netlink protocol %d",p);
		probe(n,socket(AF_NETLINK,SOCK_RAW,p));
	}
	return bad;
}
