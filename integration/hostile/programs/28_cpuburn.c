/* EXPECT: cause=wall; cpu_ms <= wall_ms*quota (4 burners, quota 100% => <= wall) */
#include "h.h"
int main(void) {
	for (int i=0;i<4;i++)if (!fork())for (volatile long x=0;;x++);
	for (volatile long x=0;;x++);
}
