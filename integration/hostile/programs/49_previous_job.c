/* EXPECT: run after any job in the same lease: nothing of it is there; exit 0 */
#include "h.h"
#include <dirent.h>
static int listed49(const char *dir, int from, int to) {
	DIR *d=opendir(dir);
	struct dirent *e;
	int n=0;
	while (d && (e=readdir(d))) if (e->d_name[0]!='.' && e->d_name[0]>=from && e->d_name[0]<=to) {
		n++;
	}
	if (d) closedir(d);
	return n;
}
static int lines49(const char *path) {
	FILE *f=fopen(path,"r");
	int n=0,c;
	if (!f) return 1;
	while ((c=getc(f))!=EOF) n+=c=='\n';
	fclose(f);
	return n;
}
static void none49(const char *what, int n) {
	if (n) {
		printf("%s: %d left\n",what,n);
		bad++;
	}
}
int main(void) {
	none49("processes",listed49("/proc",'0','9')-2);
	none49("/workspace",listed49("/workspace",0,255));
	none49("/tmp",listed49("/tmp",0,255));
	none49("/dev/shm",listed49("/dev/shm",0,255));
	none49("sysv shm",lines49("/proc/sysvipc/shm")-1);
	none49("sysv sem",lines49("/proc/sysvipc/sem")-1);
	none49("sysv msg",lines49("/proc/sysvipc/msg")-1);
	none49("unix sockets",lines49("/proc/net/unix")-1);
	none49("flags of stdin",fcntl(0,F_GETFL)&~(O_ACCMODE|0100000));
	none49("signal of stdin",fcntl(0,F_GETSIG));
	none49("owner of stdin",fcntl(0,F_GETOWN));
	none49("place in stdin",lseek(0,0,SEEK_CUR)>0);
	int f=open("/dev/null",O_RDWR);
	none49("touched /dev/null",utimensat(AT_FDCWD,"/dev/null",0,0)==0);
	/* A job in another lease may have it for a moment, as it may any file that is shown to both. */
	int locked=-1;
	for (int i=0;i<200 && locked;i++) {
		locked=flock(f,LOCK_EX|LOCK_NB);
		if (locked) usleep(10000);
	}
	none49("lock on /dev/null",locked!=0);
	none49("priority",getpriority(PRIO_PROCESS,0));
	none49("policy",sched_getscheduler(0));
	none49("policy of pid 1",sched_getscheduler(1));
	cpu_set_t one,all;
	sched_getaffinity(0,sizeof one,&one);
	sched_getaffinity(1,sizeof all,&all);
	none49("affinity",CPU_COUNT(&one)!=sysconf(_SC_NPROCESSORS_ONLN));
	none49("files in the root",!access("/x",F_OK)+!access("/usr/x",F_OK));
	none49("umask",umask(022)!=022);
	return bad;
}
