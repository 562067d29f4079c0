/* EXPECT: exit 0: descriptors 0 to 2 closed, opened on other things and written to */
#include "h.h"
int main(void) {
	close(0);
	close(1);
	close(2);
	open("/dev/null",O_RDWR);
	open("/workspace/out",O_CREAT|O_RDWR,0600);
	open("/workspace/err",O_CREAT|O_RDWR,0600);
	printf("lost\n");
	fflush(stdout);
	for (int i=0;i<3;i++) {
		char n[32];
		snprintf(n,32,"/proc/1/fd/%d",i);
		if (open(n,O_RDWR)>=0) return 1;
	}
	return 0;
}
