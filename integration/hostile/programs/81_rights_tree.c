/* EXPECT: exit 0, leftover: descriptors that were handed down a tree of processes and closed by those that had them */
#include "h.h"
int main(void) {
	int p[2];
	socketpair(AF_UNIX,SOCK_SEQPACKET,0,p);
	if (!fork()) {
		char c,b[256];
		struct iovec v={&c,1};
		struct msghdr m={.msg_iov=&v,.msg_iovlen=1,.msg_control=b,.msg_controllen=sizeof b};
		close(1);
		close(2);
		recvmsg(p[1],&m,0);
		for (;;) pause();
	}
	char c=0,b[CMSG_SPACE(8)]={0};
	struct iovec v={&c,1};
	struct msghdr m={.msg_iov=&v,.msg_iovlen=1,.msg_control=b,.msg_controllen=sizeof b};
	struct cmsghdr *h=CMSG_FIRSTHDR(&m);
	h->cmsg_level=SOL_SOCKET;
	h->cmsg_type=SCM_RIGHTS;
	h->cmsg_len=CMSG_LEN(8);
	int fds[]={1,2};
	memcpy(CMSG_DATA(h),fds,8);
	sendmsg(p[0],&m,0);
	close(1);
	close(2);
	usleep(20000);
	return 0;
}
