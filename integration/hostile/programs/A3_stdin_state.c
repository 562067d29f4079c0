/* EXPECT: exit 0: what is done to the open file of an empty stdin is nobody else's business */
#include "h.h"
#include <sys/file.h>
int main(void) {
	fcntl(0,F_SETFL,O_NONBLOCK|O_APPEND|O_ASYNC);
	fcntl(0,F_SETSIG,SIGRTMIN+5);
	fcntl(0,F_SETOWN,getpid());
	flock(0,LOCK_EX);
	lseek(0,1234,SEEK_SET);
	return 0;
}
