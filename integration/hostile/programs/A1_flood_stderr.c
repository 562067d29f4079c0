/* EXPECT: cause=output: stdout is closed, stderr is flooded */
#include "h.h"
int main(void) {
	static char b[65536];
	signal(SIGTERM,SIG_IGN);
	close(0);
	close(1);
	for (;;) write(2,b,sizeof b);
}
