/* EXPECT: exit 0: nobody makes himself or pid 1 less likely to be killed for memory */
#include "h.h"
static void set73(const char *p, const char *v) {
	int f=open(p,O_WRONLY);
	probe(p,f<0?-1:write(f,v,strlen(v)));
	if (f>=0) close(f);
}
int main(void) {
	set73("/proc/self/oom_score_adj","-1");
	set73("/proc/self/oom_score_adj","-1000");
	set73("/proc/self/oom_adj","-17");
	set73("/proc/1/oom_score_adj","1000");
	set73("/proc/1/oom_score_adj","-1000");
	char b[16]={0};
	int f=open("/proc/self/oom_score_adj",O_RDONLY);
	read(f,b,15);
	if (atoi(b)!=1000) bad++;
	return bad;
}
