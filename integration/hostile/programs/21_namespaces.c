/* EXPECT: exit 0, all blocked (seccomp, no caps, max_user_namespaces=0) */
#include "h.h"
static int nothing(void *x) {
	return 0;
}
static char stack21[65536];
int main(void) {
	probe("unshare user",unshare(CLONE_NEWUSER));
	probe("unshare net",unshare(CLONE_NEWNET));
	probe("unshare pid",unshare(CLONE_NEWPID));
	probe("clone newuser",clone(nothing,stack21+65536,CLONE_NEWUSER|SIGCHLD,0));
	unsigned long a[11]={CLONE_NEWUSER,0,0,0,SIGCHLD};
	long r=syscall(435,a,88);
	if (r==0)_exit(0);
	probe("clone3 newuser",r);
	int n=open("/proc/1/ns/mnt",O_RDONLY);
	probe("open ns",n);
	if (n>=0)probe("setns",setns(n,0));
	return bad;
}
