/* EXPECT: exit 0: setuid bit has no effect (nosuid + no_new_privs), setuid(0) refused */
#include "h.h"
int main(int c,char**v) {
	if (c>1) {
		printf("euid after exec of setuid self: %d\n",geteuid());
		return geteuid()!=atoi(v[1]);
	}
	uid_t u=geteuid();
	if (u)probe("setuid(0)",setuid(0));
	char b[64];
	snprintf(b,64,"%d",u);
	FILE*i=fopen("/proc/self/exe","r"),*o=fopen("/workspace/suid","w");
	char d[65536];
	size_t n;
	while ((n=fread(d,1,sizeof d,i))>0)fwrite(d,1,n,o);
	fclose(o);
	chmod("/workspace/suid",06755);
	pid_t p=fork();
	if (!p) {
		execl("/workspace/suid","suid","24_setuid",b,(char*)0);
		_exit(9);
	}
	int st;
	waitpid(p,&st,0);
	return bad+(WEXITSTATUS(st)!=0);
}
