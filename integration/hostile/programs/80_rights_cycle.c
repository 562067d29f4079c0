/* EXPECT: exit 0: descriptors of both streams, of the workspace and of a bound socket travel in sockets that only hold each other; the end is proven and the lease is reset */
#include "h.h"
static void send80(int via, int *fds, int n) {
	char c=0,b[CMSG_SPACE(sizeof(int)*8)]={0};
	struct iovec v={&c,1};
	struct msghdr m={.msg_iov=&v,.msg_iovlen=1,.msg_control=b,.msg_controllen=CMSG_SPACE(sizeof(int)*n)};
	struct cmsghdr *h=CMSG_FIRSTHDR(&m);
	h->cmsg_level=SOL_SOCKET;
	h->cmsg_type=SCM_RIGHTS;
	h->cmsg_len=CMSG_LEN(sizeof(int)*n);
	memcpy(CMSG_DATA(h),fds,sizeof(int)*n);
	if (sendmsg(via,&m,0)<0) perror("sendmsg");
}
int main(void) {
	for (int k=0;k<8;k++) {
		int p[2];
		socketpair(AF_UNIX,k%2?SOCK_STREAM:SOCK_DGRAM,0,p);
		int s=socket(AF_UNIX,SOCK_STREAM,0);
		struct sockaddr_un a={AF_UNIX};
		snprintf(a.sun_path,100,"/workspace/s%d",k);
		bind(s,(void*)&a,sizeof a);
		int f=open("/workspace/held",O_CREAT|O_RDWR,0600),d=open("/workspace",O_RDONLY),t=open("/tmp",O_RDONLY);
		int fds[]={p[0],p[1],1,2,f,d,s,t};
		send80(p[0],fds,8);
		send80(p[1],fds,8);
	}
	puts("sent");
	return 0;
}
