/* EXPECT: exit 0 leaving /workspace/out -> /etc/shadow etc; the WORKER must collect with openat2(RESOLVE_BENEATH|NO_SYMLINKS|NO_XDEV)+O_NONBLOCK and refuse symlink, fifo, socket, device, hard link trick */
#include "h.h"
int main(void) {
	symlink("/etc/shadow","/workspace/out");
	symlink("..","/workspace/dir");
	symlink("/proc/self/root","/workspace/root");
	mkfifo("/workspace/fifo",0666);
	int s=socket(AF_UNIX,SOCK_STREAM,0);
	struct sockaddr_un a={AF_UNIX,"/workspace/sock"};
	bind(s,(void*)&a,sizeof a);
	probe("hardlink /usr/bin/su",link("/usr/bin/su","/workspace/su"));
	int f=open("/workspace/-rf\n\xff",O_CREAT|O_WRONLY,0);
	(void)f;
	mkdir("/workspace/d000",0);
	return bad;
}
