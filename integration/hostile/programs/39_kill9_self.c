/* EXPECT: signaled SIGKILL, cause empty (not oom, not wall) */
#include "h.h"
int main(void) {
	kill(getpid(),SIGKILL);
	return 0;
}
