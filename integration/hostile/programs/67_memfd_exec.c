/* EXPECT: exit 0: a program executed out of memory is as confined as one from a file */
#include "h.h"
#include <sys/sendfile.h>
int main(int c, char **v) {
	if (c>1) {
		probe("mount",mount("x","/tmp","tmpfs",0,0));
		probe("unshare",unshare(CLONE_NEWUSER));
		probe("setuid 0",setuid(0));
		return bad;
	}
	int in=open("/proc/self/exe",O_RDONLY);
	for (int k=0;k<2;k++) {
		int f=memfd_create("p",k?MFD_ALLOW_SEALING:0);
		off_t o=0;
		struct stat st;
		fstat(in,&st);
		while (o<st.st_size && sendfile(f,in,&o,st.st_size-o)>0);
		fchmod(f,06755);
		pid_t p=fork();
		if (!p) {
			char *a[]={"p","67_memfd_exec","x",0},*e[]={0};
			if (k) fexecve(f,a,e);
			else syscall(SYS_execveat,f,"",a,e,AT_EMPTY_PATH);
			perror("execute");
			_exit(9);
		}
		int s;
		waitpid(p,&s,0);
		if (s) bad++;
		close(f);
	}
	return bad;
}
