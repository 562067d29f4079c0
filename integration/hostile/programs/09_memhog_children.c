/* EXPECT: cause=oom: many 12 MiB children exceed the tree limit though each is small */
#include "h.h"
int main(void) {
	for (int i=0;i<20;i++)if (fork()==0) {
		volatile char*p=malloc(12<<20);
		for (long k=0;k<(12<<20);k+=512)p[k]=1;
		for (;;)pause();
	}
	for (;;)pause();
}
