/* EXPECT: exit 0, leftover=true; worker's pipe reader gets EOF because the holder is dead */
#include "h.h"
int main(void) {
	if (fork()==0) {
		sleep(1000);
	}
	write(1,"parent gone\n",12);
	return 0;
}
