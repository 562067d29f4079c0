/* EXPECT: exit 0: host's loopback (NATS 4222 or argv[1]) and any address unreachable, no DNS, no raw/netlink control */
#include "h.h"
int main(int c,char**v) {
	int port=c>1?atoi(v[1]):4222;
	int s=socket(AF_INET,SOCK_STREAM,0);
	struct sockaddr_in a={AF_INET,htons(port),{htonl(0x7f000001)}};
	probe("connect 127.0.0.1",connect(s,(void*)&a,sizeof a));
	s=socket(AF_INET,SOCK_STREAM,0);
	a.sin_addr.s_addr=htonl(0xa9fea9fe);
	probe("connect 169.254.169.254",connect(s,(void*)&a,sizeof a));
	probe("raw socket",socket(AF_INET,SOCK_RAW,1));
	probe("packet socket",socket(AF_PACKET,SOCK_RAW,0));
	probe("vsock",socket(40,SOCK_STREAM,0));
	probe("AF_ALG",socket(38,SOCK_SEQPACKET,0));
	return bad;
}
