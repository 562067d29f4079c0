/* EXPECT: exit 0: a program that executes itself a hundred times, with arguments and environment that grow */
#include "h.h"
int main(int c, char **v) {
	int n=c>1?atoi(v[1]):0;
	if (n>=100) return 0;
	char num[16];
	snprintf(num,16,"%d",n+1);
	char *b=malloc(1001*n+1);
	memset(b,'e',1001*n);
	b[1001*n]=0;
	char *a[]={"p","77_exec_loop",num,b,0},*e[]={b,0};
	execve("/proc/self/exe",a,e);
	return 1;
}
