/* EXPECT: exit 0: System V objects stay behind, and go with the namespace; POSIX queues cannot be made */
#include "h.h"
#include <mqueue.h>
#include <sys/sem.h>
#include <sys/msg.h>
int main(void) {
	for (int i=0;i<8;i++) {
		int s=shmget(0x5a11+i,1<<20,IPC_CREAT|0666);
		if (s>=0) memset(shmat(s,0,0),1,1<<20);
		semget(0x5a11+i,50,IPC_CREAT|0666);
		msgget(0x5a11+i,IPC_CREAT|0666);
	}
	struct mq_attr a={0,10,8192};
	probe("mq_open",mq_open("/left",O_CREAT|O_RDWR,0666,&a));
	int f=shm_open("/left",O_CREAT|O_RDWR,0666);
	ftruncate(f,1<<20);
	return bad;
}
