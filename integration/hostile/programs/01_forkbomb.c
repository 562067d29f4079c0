/* EXPECT: verdict killed, cause=wall (or job ends itself), pids_max_hits>0, proven gone, host unharmed */
#include "h.h"
int main(void) {
	for (;;) {
		if (fork()<0)usleep(1000);
	}
}
