/* EXPECT: exit 0, leftover: processes that wait for their own supervisor's answer to a system call, which never comes, end like all others */
#include "h.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
int main(void) {
	struct sock_filter f[] = {
		{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0},
		{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_getppid},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_USER_NOTIF},
		{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
	};
	struct sock_fprog p = {4, f};
	for (int k = 0; k < 10; k++)
		if (!fork()) {
			for (int s = 1; s < 65; s++)
				signal(s, SIG_IGN);
			/* Waits killably where the kernel has it (1 << 5), else as for any signal. */
			if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | (k % 2 ? 1 << 5 : 0), &p) < 0)
				_exit(1);
			syscall(SYS_getppid);
			for (;;)
				pause();
		}
	usleep(30000);
	return 0;
}
