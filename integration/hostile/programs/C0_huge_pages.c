/* EXPECT: exit 0: nothing of the host's pool of huge pages, which no limit of memory counts; EPERM, whether there is a pool or not */
#include "h.h"
static void refused(const char *name, long r) {
	if (r >= 0 || errno != EPERM) {
		printf("%s: ALLOWED (%s)\n", name, strerror(errno));
		bad++;
	}
}
int main(void) {
	for (int shift = 0; shift <= 34; shift++) {
		int size = shift << 26; /* MAP_HUGE_SHIFT */
		void *p = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size, -1, 0);
		refused("mmap private", p == MAP_FAILED ? -1 : 0);
		p = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | size, -1, 0);
		refused("mmap shared", p == MAP_FAILED ? -1 : 0);
		refused("memfd", syscall(SYS_memfd_create, "x", 4 | size));
		refused("shm", shmget(IPC_PRIVATE, 2 << 20, 04000 | 0600 | size));
	}
	return bad > 0;
}
