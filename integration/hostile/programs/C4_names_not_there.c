/* EXPECT: exit 0 or oom: the kernel remembers names that were looked up and are not there; what it remembers is no later job's memory */
#include "h.h"
int main(void) {
	static char name[256];
	struct stat st;
	const char *dirs[] = {"/bin", "/workspace", "/tmp", "/"};
	for (int i = 0; i < 100000; i++)
		for (int d = 0; d < 4; d++) {
			snprintf(name, sizeof name, "%s/%0200d", dirs[d], i);
			stat(name, &st);
		}
	return 0;
}
