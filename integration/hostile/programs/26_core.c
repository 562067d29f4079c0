/* EXPECT: signaled SIGABRT, no core file anywhere (RLIMIT_CORE 0; a |pipe core_pattern must not run: core limit 0 or 1, dumpable) */
#include "h.h"
int main(void) {
	struct rlimit r={RLIM_INFINITY,RLIM_INFINITY};
	if (!setrlimit(RLIMIT_CORE,&r))puts("core raise ALLOWED");
	abort();
}
