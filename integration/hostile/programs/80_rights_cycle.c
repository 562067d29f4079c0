/* EXPECT: exit 0: descriptors of both streams, of the workspace and of a bound socket travel in sockets that only hold each other; the end is proven and the lease is reset */
#include "h.h"
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
