/* EXPECT: exit 0, blocked; and nodev on the workspace */
#include "h.h"
int main(void) {
	probe("mknod block",mknod("/workspace/sda",S_IFBLK|0666,makedev(254,0)));
	probe("mknod mem",mknod("/workspace/mem",S_IFCHR|0666,makedev(1,1)));
	const char*d[]={"/dev/mem","/dev/kmem","/dev/kvm","/dev/vda","/dev/sda","/dev/fuse","/dev/net/tun","/dev/vsock","/dev/console","/dev/tty",0};
	for (int i=0;d[i];i++)probe(d[i],open(d[i],O_RDWR));
	return bad;
}
