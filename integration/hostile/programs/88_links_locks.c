/* EXPECT: exit 0: no link to what is read-only, attributes and locks without end, none of it outlives */
#include "h.h"
#include <sys/xattr.h>
#include <sys/file.h>
int main(void) {
	probe("link to /bin/sh",link("/bin/sh","/workspace/sh"));
	probe("rename over /etc/passwd",rename("/workspace","/etc/passwd"));
	probe("attribute on /bin/sh",setxattr("/bin/sh","user.x","y",1,0));
	probe("trusted attribute",setxattr("/workspace","trusted.x","y",1,0));
	probe("capability on a file",setxattr("/workspace","security.capability","\1\0\0\2\377\377\377\377\377\377\377\377\0\0\0\0\0\0\0\0",20,0));
	int f=open("/workspace/x",O_CREAT|O_RDWR,0600),n=0;
	char b[65536]={0},k[32];
	for (;n<5000;n++) {
		snprintf(k,32,"user.%d",n);
		if (fsetxattr(f,k,b,n%2?65000:1,0)) break;
	}
	printf("%d attributes: %s\n",n,strerror(errno));
	for (n=0;n<5000;n++) {
		struct flock l={.l_type=F_WRLCK,.l_start=n*2,.l_len=1};
		if (fcntl(f,F_SETLK,&l)) break;
	}
	printf("%d locks\n",n);
	flock(open("/bin/sh",O_RDONLY),LOCK_EX);
	flock(0,LOCK_EX);
	fcntl(f,F_SETLEASE,F_WRLCK);
	fcntl(open("/workspace",O_RDONLY),F_NOTIFY,0x3f|0x80000000);
	return bad;
}
