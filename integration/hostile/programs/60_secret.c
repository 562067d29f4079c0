/* EXPECT: exit 0: mounts and namespaces stay refused whatever is passed in the sixth argument, with what can be found in registers, auxv and on the stack, and with guesses */
#include "h.h"
#include <sys/auxv.h>
static long try60(long sixth) {
	long r=syscall(SYS_clone,CLONE_NEWUSER|SIGCHLD,0,0,0,0,sixth);
	if (r==0) _exit(0);
	if (r>0 || errno!=EPERM) {
		printf("clone with %lx: %ld %s ALLOWED\n",sixth,r,strerror(errno));
		bad++;
	}
/* A wrong path would be answered ENOENT only by a kernel that was reached. */
if (syscall(SYS_mount,"none","/nowhere","nosuchfs",0,0,sixth)==0 || errno!=EPERM) {
	printf("mount with %lx: %s ALLOWED\n",sixth,strerror(errno));
	bad++;
}
if (syscall(SYS_umount2,"/nowhere",0,0,0,0,sixth)==0 || errno!=EPERM) {
	printf("umount with %lx: %s ALLOWED\n",sixth,strerror(errno));
	bad++;
}
return 0;
}
int main(void) {
long fixed[]={0,1,-1,1L<<63,0x7fffffff,0xffffffffL,0x5a110000,getpid(),time(0)};
for (unsigned i=0;i<sizeof fixed/sizeof *fixed;i++) try60(fixed[i]);
long *rnd=(long*)getauxval(AT_RANDOM);
try60(rnd[0]);
try60(rnd[1]);
long here;
for (int i=0;i<40;i++) try60(((volatile long*)&here)[i]);
unsigned long x=88172645463325252UL^(unsigned long)&here;
for (int i=0;i<20000;i++) {
	x^=x<<13;
	x^=x>>7;
	x^=x<<17;
	try60(x);
}
probe("what pid 1 waits in",open("/proc/1/syscall",O_RDONLY));
probe("memory of pid 1",open("/proc/1/mem",O_RDONLY));
probe("maps of pid 1",open("/proc/1/maps",O_RDONLY));
return bad;
}
