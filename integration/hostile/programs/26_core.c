/* EXPECT: signaled SIGABRT, no core file anywhere; the limit of 1, at which no program of the host's that takes dumps is started either (core(5)), can be neither raised nor lowered */
#include "h.h"
int main(void) {
	struct rlimit was, is, r = {RLIM_INFINITY, RLIM_INFINITY};
	getrlimit(RLIMIT_CORE, &was);
	setrlimit(RLIMIT_CORE, &r);
	r.rlim_cur = r.rlim_max = 0;
	setrlimit(RLIMIT_CORE, &r);
	prlimit(getpid(), RLIMIT_CORE, &r, 0);
	prlimit(1, RLIMIT_CORE, &r, 0);
	getrlimit(RLIMIT_CORE, &is);
	if (was.rlim_max > 1 || is.rlim_cur != was.rlim_cur || is.rlim_max != was.rlim_max)
		printf("core dumps of %ld, then %ld ALLOWED\n", (long)was.rlim_max, (long)is.rlim_cur);
	fflush(stdout);
	abort();
}
