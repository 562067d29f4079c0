/* EXPECT: exit 0: no control group is seen or made, and no limit of one's own is raised */
#include "h.h"
int main(void) {
	probe("/sys/fs/cgroup",access("/sys/fs/cgroup",F_OK));
	probe("mount cgroup2",mount("x","/tmp","cgroup2",0,0));
	probe("mount cgroup",mount("x","/tmp","cgroup",0,"memory"));
	FILE *f=fopen("/proc/self/mountinfo","r");
	char l[4096];
	while (f && fgets(l,4096,f)) if (strstr(l," cgroup")) {
		puts(l);
		bad++;
	}
	int names[]={RLIMIT_NOFILE,RLIMIT_FSIZE,RLIMIT_MEMLOCK,RLIMIT_MSGQUEUE,RLIMIT_SIGPENDING,RLIMIT_NICE,RLIMIT_RTPRIO};
	for (int i=0;i<7;i++) {
		struct rlimit r;
		getrlimit(names[i],&r);
		char n[32];
		snprintf(n,32,"raise rlimit %d",names[i]);
		if (r.rlim_max==RLIM_INFINITY) {
			printf("%s: unlimited ALLOWED\n",n);
			bad++;
			continue;
		}
		r.rlim_max++;
		probe(n,setrlimit(names[i],&r));
	}
	return bad;
}
