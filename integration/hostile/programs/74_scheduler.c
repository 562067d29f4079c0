/* EXPECT: exit 0: no real-time, no better priority, and no hand on the scheduling of pid 1 */
#include "h.h"
int main(void) {
	struct sched_param p={1},z={0};
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(0,&one);
	struct {
		unsigned size,policy;
		unsigned long flags;
		int nice;
		unsigned prio;
		unsigned long runtime,deadline,period;
	}
	a={48,6,0,0,0,1000000,10000000,10000000};
	probe("SCHED_FIFO",sched_setscheduler(0,SCHED_FIFO,&p));
	probe("SCHED_RR",sched_setscheduler(0,SCHED_RR,&p));
	probe("SCHED_DEADLINE",syscall(SYS_sched_setattr,0,&a,0));
	errno=0;
	setpriority(PRIO_PROCESS,0,-5);
	probe("nice -5",getpriority(PRIO_PROCESS,0)<0?0:-1);
	probe("real-time input and output",syscall(SYS_ioprio_set,1,0,1<<13|0));
	probe("pid 1 idle",sched_setscheduler(1,SCHED_IDLE,&z));
	probe("pid 1 nice",setpriority(PRIO_PROCESS,1,19));
	probe("group 0 of pid 1 nice",setpriority(PRIO_PGRP,1,19));
	a.policy=5;
	a.runtime=a.deadline=a.period=0;
	probe("pid 1 sched_setattr",syscall(SYS_sched_setattr,1,&a,0));
	probe("pid 1 on one processor",sched_setaffinity(1,sizeof one,&one));
	probe("pid 1 ioprio",syscall(SYS_ioprio_set,1,1,3<<13));
	setpriority(PRIO_USER,0,19);
	probe("pid 1 nice as of its user",getpriority(PRIO_PROCESS,1)==19?0:-1);
	probe("raise RLIMIT_RTPRIO",setrlimit(RLIMIT_RTPRIO,&(struct rlimit){1,99}));
	return bad;
}
