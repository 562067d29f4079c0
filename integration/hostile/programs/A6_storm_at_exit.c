/* EXPECT: exit 0 before the wall: the program ends while its children make orphans and zombies as fast as they can */
#include "h.h"
int main(void) {
	for (int i=0;i<24;i++) if (!fork()) for (;;) {
		if (fork()==0) {
			if (fork()==0) _exit(0);
			_exit(0);
		}
		while (waitpid(-1,0,WNOHANG)>0);
	}
	usleep(20000);
	return 0;
}
