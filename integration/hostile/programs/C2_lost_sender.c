/* EXPECT: exit 0 or signaled SIGKILL: signals of which the kernel forgets who sent them, because pid 1 may have none waiting; what this ends is the program's own run */
#include "h.h"
int main(void) {
	struct rlimit none = {0, 0};
	int sigs[] = {SIGUSR1, SIGCHLD, SIGTERM, SIGUSR1, SIGHUP};
	signal(SIGTERM, SIG_IGN);
	prlimit(1, RLIMIT_SIGPENDING, &none, 0);
	for (int i = 0; i < 1000; i++)
		for (unsigned k = 0; k < sizeof sigs / sizeof *sigs; k++) {
			siginfo_t s = {0};
			s.si_code = SI_QUEUE;
			syscall(SYS_tgkill, 1, 1, sigs[k]);
			syscall(SYS_rt_sigqueueinfo, 1, sigs[k], &s);
			syscall(SYS_rt_tgsigqueueinfo, 1, 1, sigs[k], &s);
		}
	usleep(50000);
	return 0;
}
