/* EXPECT: exit 0: exec of huge argv/env is E2BIG; (a request with such argv: verdict exec-failed/invalid, not a crash) */
#include "h.h"
int main(void) {
	char*b=malloc(4<<20);
	memset(b,'x',(4<<20)-1);
	b[(4<<20)-1]=0;
	char*av[]={"x",b,0};
	execv("/bin/true",av);
	probe("exec 4MiB arg",-1);
	char**many=calloc(3000002,sizeof(char*));
	for (int i=0;i<3000000;i++)many[i]="y";
	execv("/bin/true",many);
	probe("exec 3M args",-1);
	return bad;
}
