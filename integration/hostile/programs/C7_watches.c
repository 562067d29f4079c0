/* EXPECT: exit 0 or oom, leftover: as many watches of descriptors as there can be, in many processes, all to be undone at their end */
#include "h.h"
#include <sys/epoll.h>
int main(void) {
	for (int k = 0; k < 50; k++)
		if (fork() == 0) {
			int to[110], n = 0;
			for (int i = 0; i < 110; i++)
				to[i] = syscall(SYS_eventfd2, 0, 0);
			for (int e; (e = epoll_create1(0)) >= 0;)
				for (int i = 0; i < 110; i++) {
					struct epoll_event ev = {EPOLLIN | EPOLLET};
					if (epoll_ctl(e, EPOLL_CTL_ADD, to[i], &ev) < 0)
						break;
					n++;
				}
			for (;;)
				pause();
		}
	usleep(300000);
	return 0;
}
