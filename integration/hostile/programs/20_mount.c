/* EXPECT: exit 0, all blocked */
#include "h.h"
int main(void) {
	probe("mount tmpfs",mount("x","/tmp","tmpfs",0,0));
	probe("remount rw",mount(0,"/",0,MS_REMOUNT|MS_BIND,0));
	probe("umount /proc",umount2("/proc",MNT_DETACH));
	probe("pivot_root",syscall(SYS_pivot_root,".","."));
	probe("chroot",chroot("/tmp"));
	probe("fsopen",syscall(430,"tmpfs",0));
	probe("open_tree",syscall(428,AT_FDCWD,"/",1));
	probe("write /usr",open("/usr/x",O_CREAT|O_WRONLY,0644));
	probe("write /",open("/x",O_CREAT|O_WRONLY,0644));
	probe("write /etc",open("/etc/passwd",O_WRONLY));
	return bad;
}
