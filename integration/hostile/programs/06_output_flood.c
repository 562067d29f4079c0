/* EXPECT: cause=output, killed, output truncated at the limit, worker memory flat, gone proven */
#include "h.h"
int main(void) {
	char b[65536];
	memset(b,'A',sizeof b);
	signal(SIGTERM,SIG_IGN);
	for (;;)if (write(1,b,sizeof b)<0)signal(SIGPIPE,SIG_IGN);
}
