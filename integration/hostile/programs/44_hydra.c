/* EXPECT: main exits 0 while 30 children re-fork for ever: pid-ns teardown beats the race; gone proven */
#include "h.h"
int main(void) {
	for (int i=0;i<30;i++)if (!fork()) {
		setsid();
		for (;;) {
			if (fork()>0)_exit(0);
		}
	}
	usleep(30000);
	return 0;
}
