/* EXPECT: exit 0, leftover: children by vfork, with other parents, other death signals, or a shared memory are as dead as all others */
#include "h.h"
static char stacks64[4][65536];
static int stay64(void *x) {
	for (;;) pause();
}
int main(void) {
	if (clone(stay64,stacks64[0]+65536,CLONE_PARENT|SIGCHLD,0)<0) perror("CLONE_PARENT");
	if (clone(stay64,stacks64[1]+65536,CLONE_PARENT|CLONE_VM,0)<0) perror("CLONE_PARENT|CLONE_VM");
	if (clone(stay64,stacks64[2]+65536,SIGUSR2,0)<0) perror("SIGUSR2");
	if (clone(stay64,stacks64[3]+65536,CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND,0)<0) perror("all shared");
	if (syscall(SYS_clone,0,0,0,0,0)==0) for (;;) pause();
	if (syscall(SYS_clone,CLONE_UNTRACED|SIGKILL,0,0,0,0)==0) for (;;) pause();
	if (vfork()==0) execl("/proc/self/exe","p","64_stay",(char*)0);
	puts("done");
	return 0;
}
