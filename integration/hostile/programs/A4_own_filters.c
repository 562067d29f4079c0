/* EXPECT: exit 0: as many filters of its own as a program can load, in many processes; the next lease still gets one */
#include "h.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
int main(int c, char **v) {
	static struct sock_filter f[4000];
	for (int i = 0; i < 3999; i++)
		f[i] = (struct sock_filter){BPF_LD | BPF_W | BPF_ABS, 0, 0, i % 2 * 4};
	f[3999] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
	struct sock_fprog p = {4000, f};
	for (int k = 0; k < 30; k++)
		if (!fork()) {
			int n = 0;
			while (n < 100 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p) == 0)
				n++;
			if (k == 0) {
				printf("%d filters: %s\n", n, strerror(errno));
				fflush(stdout);
			}
			for (;;)
				pause();
		}
	usleep(300000);
	while (c > 1)
		pause();
	return 0;
}
