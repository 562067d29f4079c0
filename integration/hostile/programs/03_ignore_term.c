/* EXPECT: cause=wall, SIGTERM ignored, SIGKILL after grace, gone proven; wall ~= limit+grace */
#include "h.h"
int main(void) {
	for (int i=1;i<65;i++)signal(i,SIG_IGN);
	for (;;)pause();
}
