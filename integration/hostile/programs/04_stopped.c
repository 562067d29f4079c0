/* EXPECT: SIGSTOPped tree: cause=wall, killed (SIGKILL works on stopped tasks), gone proven */
#include "h.h"
int main(void) {
	for (int i=0;i<5;i++)if (fork()==0) {
		raise(SIGSTOP);
		for (;;)pause();
	}
	raise(SIGSTOP);
	for (;;)pause();
}
