/* EXPECT: exit 0, leftover: abstract and bound sockets of a child stay behind; the next job has the names */
#include "h.h"
int main(void) {
	struct sockaddr_un a={AF_UNIX},b={AF_UNIX,"/tmp/sock"};
	strcpy(a.sun_path+1,"left");
	int s=socket(AF_UNIX,SOCK_STREAM,0),t=socket(AF_UNIX,SOCK_DGRAM,0);
	if (bind(s,(void*)&a,sizeof(sa_family_t)+5) || listen(s,5)) {
		perror("abstract");
		return 1;
	}
	if (bind(t,(void*)&b,sizeof b)) {
		perror("bound");
		return 1;
	}
	if (!fork()) for (;;) pause();
	return 0;
}
