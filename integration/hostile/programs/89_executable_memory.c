/* EXPECT: exit 0: pages of /tmp may be executed, those of /dev/shm may not */
#include "h.h"
int main(void) {
	int f=open("/dev/shm/x",O_CREAT|O_RDWR,0700);
	ftruncate(f,4096);
	probe("mapping of /dev/shm",mmap(0,4096,PROT_READ|PROT_EXEC,MAP_SHARED,f,0)==MAP_FAILED?-1:0);
	void *p=mmap(0,4096,PROT_READ,MAP_SHARED,f,0);
	probe("mprotect of /dev/shm",mprotect(p,4096,PROT_READ|PROT_EXEC));
	write(f,"#!/bin/sh\n",10);
	close(f);
	probe("execute in /dev/shm",execl("/dev/shm/x","x",(char*)0));
	void *q=mmap(0,4096,PROT_READ|PROT_WRITE|PROT_EXEC,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
	if (q==MAP_FAILED) bad++;
	return bad;
}
