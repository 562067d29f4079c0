/* EXPECT: exit 0 or signaled SIGKILL: an ordinary user's job shares its uid with pid 1 and can limit it; it ends only itself */
#include "h.h"
int main(void) {
	struct rlimit none = {0, 0};
	for (int i = 0; i < RLIM_NLIMITS; i++)
		prlimit(1, i, &none, 0);
	for (int i = 0; i < 200; i++)
		if (!fork())
			_exit(0);
	usleep(100000);
	return 0;
}
