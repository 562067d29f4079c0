/* EXPECT: exit 0: a descriptor for pid 1 or for a namespace leads to no namespace that is not the program's own */
#include "h.h"
int main(void) {
	char info[256] = {0};
	int one = syscall(SYS_pidfd_open, 1, 0);
	for (int i = 1; i <= 10; i++)
		probe("namespace of pid 1", ioctl(one, _IO(0xFF, i), 0));
	probe("setns to pid 1", syscall(SYS_setns, one, 0x20000000));
	const char *own[] = {"/proc/self/ns/mnt", "/proc/self/ns/pid", "/proc/self/ns/user", "/proc/self/ns/net", "/proc/self/ns/uts", "/proc/self/ns/ipc", "/proc/self/ns/cgroup"};
	for (unsigned i = 0; i < sizeof own / sizeof *own; i++) {
		int f = open(own[i], O_RDONLY);
		probe("parent", ioctl(f, _IO(0xb7, 2), 0));
		probe("next mount namespace", ioctl(f, _IOR(0xb7, 11, char[16]), info));
		probe("mount namespace before", ioctl(f, _IOR(0xb7, 12, char[16]), info));
		probe("setns", syscall(SYS_setns, f, 0));
		int u = ioctl(f, _IO(0xb7, 1), 0);
		if (u >= 0)
			probe("parent of the owner", ioctl(u, _IO(0xb7, 2), 0));
	}
	return bad;
}
