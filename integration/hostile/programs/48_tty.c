/* EXPECT: exit 0: no controlling tty, TIOCSTI refused */
#include "h.h"
int main(void) {
	char c='x';
	probe("TIOCSTI",ioctl(0,TIOCSTI,&c));
	probe("open /dev/tty",open("/dev/tty",O_RDWR));
	probe("ptmx",open("/dev/ptmx",O_RDWR));
	return bad;
}
