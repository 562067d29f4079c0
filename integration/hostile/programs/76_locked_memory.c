/* EXPECT: exit 0: no more than RLIMIT_MEMLOCK is locked */
#include "h.h"
int main(void) {
	char *p=mmap(0,1<<20,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
	probe("mlock of 1 MiB",mlock(p,1<<20));
	probe("mlockall",mlockall(MCL_CURRENT|MCL_FUTURE));
	probe("MAP_LOCKED",mmap(0,1<<20,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_LOCKED,-1,0)==MAP_FAILED?-1:0);
	int s=shmget(IPC_PRIVATE,1<<20,IPC_CREAT|0600);
	probe("SHM_LOCK",shmctl(s,SHM_LOCK,0));
	probe("huge pages",mmap(0,2<<20,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB,-1,0)==MAP_FAILED?-1:0);
	return bad;
}
