/* EXPECT: exit 0, everything blocked; only own pid ns visible */
#include "h.h"
int main(void) {
	probe("open /proc/1/mem",open("/proc/1/mem",O_RDWR));
	probe("open /proc/1/environ",open("/proc/1/environ",O_RDONLY));
	probe("open /proc/1/root",open("/proc/1/root/etc",O_RDONLY));
	probe("open /proc/1/fd/3",open("/proc/1/fd/3",O_RDWR));
	char b[8];
	struct iovec l={b,8},r={(void*)0x400000,8};
	probe("process_vm_readv",syscall(SYS_process_vm_readv,1,&l,1,&r,1,0));
	int f=syscall(SYS_pidfd_open,1,0);
	if (f>=0) {
		probe("pidfd_getfd",syscall(438,f,3,0));
		probe("setns pidfd",syscall(SYS_setns,f,CLONE_NEWNS));
	}
	return bad;
}
