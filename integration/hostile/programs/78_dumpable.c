/* EXPECT: exit 0: being undumpable, named like others, or in another memory layout changes nothing */
#include "h.h"
int main(void) {
	prctl(PR_SET_DUMPABLE,0);
	prctl(PR_SET_NAME,"sallyport");
	prctl(PR_SET_PDEATHSIG,SIGKILL);
	prctl(PR_SET_TIMERSLACK,1);
	probe("PR_SET_NO_NEW_PRIVS off",prctl(PR_SET_NO_NEW_PRIVS,0,0,0,0));
	probe("PR_SET_SECUREBITS",prctl(PR_SET_SECUREBITS,1));
	probe("PR_CAPBSET_READ",prctl(PR_CAPBSET_READ,21,0,0,0)==1?0:-1);
	probe("ambient",prctl(PR_CAP_AMBIENT,PR_CAP_AMBIENT_RAISE,21,0,0));
	probe("PR_SET_MM",prctl(PR_SET_MM,PR_SET_MM_START_BRK,0x1000,0,0));
	probe("PR_SET_SECCOMP off",prctl(PR_SET_SECCOMP,0,0,0,0));
	return bad;
}
