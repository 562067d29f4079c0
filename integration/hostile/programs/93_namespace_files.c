/* EXPECT: exit 0: no namespace of pid 1 is opened or entered, nor is one's own again */
#include "h.h"
int main(void) {
	const char *n[]={"user","mnt","pid","net","ipc","uts","cgroup","time","pid_for_children"};
	char p[64];
	for (int i=0;i<9;i++) {
		snprintf(p,64,"/proc/1/ns/%s",n[i]);
		probe(p,open(p,O_RDONLY));
		snprintf(p,64,"/proc/self/ns/%s",n[i]);
		int f=open(p,O_RDONLY);
		if (f>=0) {
			probe(n[i],setns(f,0));
			probe("parent",i==2?ioctl(f,0xb702):-1);
			close(f);
		}
	}
	return bad;
}
