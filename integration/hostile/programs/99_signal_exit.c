/* EXPECT: signaled by its argument: every signal that ends a program is reported as such */
#include "h.h"
int main(int c, char **v) {
	int s=atoi(v[1]);
	kill(getpid(),s);
	if (s==SIGSTOP||s==SIGTSTP||s==SIGTTIN||s==SIGTTOU) return 0;
	sigset_t a;
	sigemptyset(&a);
	return 100;
}
