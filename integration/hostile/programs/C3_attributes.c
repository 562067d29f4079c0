/* EXPECT: exit 0 or oom: as many and as large extended attributes as files of a tmpfs take, in /workspace, /tmp and /dev/shm */
#include "h.h"
#include <sys/xattr.h>
int main(void) {
	static char value[32 << 10];
	const char *dirs[] = {"/workspace", "/tmp", "/dev/shm"};
	char path[64], name[64];
	long n = 0;
	for (int d = 0; d < 3; d++)
		for (int f = 0; f < 64; f++) {
			snprintf(path, sizeof path, "%s/f%d", dirs[d], f);
			close(open(path, O_CREAT | O_WRONLY, 0600));
			for (int i = 0; i < 4000; i++) {
				snprintf(name, sizeof name, "user.%d", i);
				if (setxattr(path, name, value, i % 2 ? sizeof value : 1, 0) < 0)
					break;
				n++;
			}
		}
	printf("%ld attributes: %s\n", n, strerror(errno));
	probe("trusted", setxattr("/workspace/f0", "trusted.x", "x", 1, 0));
	probe("security", setxattr("/workspace/f0", "security.capability", "x", 1, 0));
	probe("attribute of the system's", setxattr("/bin", "user.x", "x", 1, 0));
	return bad;
}
