/* EXPECT: exit 0: holes and reservations end at the limits of file size and disk */
#include "h.h"
int main(void) {
	signal(SIGXFSZ,SIG_IGN);
	int f=open("/workspace/s",O_CREAT|O_RDWR,0600);
	probe("hole of 1 TiB",ftruncate(f,1L<<40));
	probe("write behind 1 TiB",pwrite(f,"x",1,1L<<40));
	probe("reserve 1 GiB",fallocate(f,0,0,1<<30));
	probe("reserve 20 MiB",fallocate(f,0,0,20<<20));
	probe("keep size 1 GiB",fallocate(f,1,0,1<<30));
	int g=memfd_create("m",0);
	probe("memory file of 1 TiB",ftruncate(g,1L<<40));
	probe("copy to 1 TiB",copy_file_range(f,&(off_t){0},g,&(off_t){1L<<40},1,0)>0?0:-1);
	return bad;
}
