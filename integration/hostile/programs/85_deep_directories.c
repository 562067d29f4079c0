/* EXPECT: exit 0: directories deeper than any path is long, closed to everybody, stay behind */
#include "h.h"
int main(void) {
	int n=0;
	chdir("/workspace");
	for (;n<1500;n++) {
		if (mkdir("dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",0700) || chdir("dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd")) break;
		if (n%50==0) chmod("..",0);
	}
	printf("%d deep: %s\n",n,strerror(errno));
	return 0;
}
