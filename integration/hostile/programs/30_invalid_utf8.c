/* EXPECT: exit 0; 256*4 bytes returned byte-exact (NUL, 0x80..0xff, ESC sequences) */
#include "h.h"
int main(void) {
	unsigned char b[256];
	for (int i=0;i<256;i++)b[i]=i;
	for (int k=0;k<4;k++)write(1,b,256);
	return 0;
}
