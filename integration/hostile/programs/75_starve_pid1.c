/* EXPECT: cause=wall: burners that ignore TERM on every processor while pid 1 is made as idle as it can be; gone proven in time */
#include "h.h"
int main(void) {
	struct sched_param z={0};
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(0,&one);
	sched_setscheduler(1,SCHED_IDLE,&z);
	setpriority(PRIO_PROCESS,1,19);
	setpriority(PRIO_USER,0,19);
	sched_setaffinity(1,sizeof one,&one);
	syscall(SYS_ioprio_set,1,1,3<<13);
	setpriority(PRIO_PROCESS,0,0);
	signal(SIGTERM,SIG_IGN);
	for (int i=0;i<50;i++) if (!fork()) {
		sched_setaffinity(0,sizeof one,&one);
		for (volatile long x=0;;x++);
	}
	for (volatile long x=0;;x++);
}
