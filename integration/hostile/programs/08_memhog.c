/* EXPECT: cause=oom (cgroup oom_kill>0); without cgroup: malloc fails at RLIMIT_AS, exit 7 */
#include "h.h"
int main(void) {
	for (;;) {
		char*p=mmap(0,1<<20,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
		if (p==MAP_FAILED)return 7;
		memset(p,1,1<<20);
	}
}
