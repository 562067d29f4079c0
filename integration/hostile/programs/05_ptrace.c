/* EXPECT: exit 0: ptrace denied (EPERM by seccomp). Where ptrace is allowed: tracer stuck, killed at wall, gone */
#include "h.h"
int main(void) {
	pid_t p=fork();
	if (!p) {
		for (;;)pause();
	}
	probe("ptrace attach child",ptrace(PTRACE_ATTACH,p,0,0));
	probe("ptrace attach pid1",ptrace(PTRACE_ATTACH,1,0,0));
	probe("traceme",ptrace(PTRACE_TRACEME,0,0,0));
	kill(p,9);
	return bad;
}
