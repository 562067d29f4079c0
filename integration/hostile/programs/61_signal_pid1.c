/* EXPECT: exit 7: no signal from inside, also with a forged sender, ends or moves pid 1 */
#include "h.h"
int main(void) {
	for (int s=1;s<65;s++) if (s!=SIGCONT) kill(1,s);
	for (int s=1;s<65;s++) {
		siginfo_t i;
		memset(&i,0,sizeof i);
		i.si_signo=s;
		i.si_code=SI_QUEUE;
		syscall(SYS_rt_sigqueueinfo,1,s,&i);
		syscall(SYS_rt_tgsigqueueinfo,1,1,s,&i);
		int f=syscall(SYS_pidfd_open,1,0);
		if (f>=0) {
			syscall(SYS_pidfd_send_signal,f,s,&i,0);
			syscall(SYS_pidfd_send_signal,f,s,0,0);
			close(f);
		}
		i.si_code=SI_USER;
		syscall(SYS_rt_sigqueueinfo,1,s,&i);
		i.si_code=SI_KERNEL;
		syscall(SYS_rt_sigqueueinfo,1,s,&i);
		i.si_code=SI_ASYNCIO;
		syscall(SYS_rt_sigqueueinfo,1,s,&i);
		syscall(SYS_tkill,1,s);
		syscall(SYS_tgkill,1,1,s);
	}
	usleep(50000);
	return 7;
}
