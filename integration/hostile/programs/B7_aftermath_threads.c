/* EXPECT: cause=wall: 60 threads share 40 MiB that must be freed, each in a different kind of wait, with signals blocked; gone proven */
#include "h.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
static int pipes[2], fifo;
static pthread_mutex_t never = PTHREAD_MUTEX_INITIALIZER;
static void *wait_somehow(void *x) {
	long k = (long)x;
	char b[8];
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, 0);
	for (;;)
		switch (k % 8) {
		case 0: read(pipes[0], b, 8); break;
		case 1: pthread_mutex_lock(&never); break;
		case 2: open("/workspace/fifo", O_RDONLY); break;
		case 3: flock(open("/workspace/locked", O_CREAT | O_RDWR, 0600), LOCK_EX); break;
		case 4: poll(0, 0, -1); break;
		case 5: accept(fifo, 0, 0); break;
		case 6: sigwaitinfo(&(sigset_t){0}, 0); break;
		case 7: { struct flock l = {.l_type = F_WRLCK}; fcntl(open("/workspace/locked2", O_CREAT | O_RDWR, 0600), F_OFD_SETLKW, &l); sleep(1000); }
		}
}
int main(void) {
	pthread_t t;
	pipe(pipes);
	mkfifo("/workspace/fifo", 0600);
	fifo = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un a = {AF_UNIX, "/workspace/sock"};
	bind(fifo, (void *)&a, sizeof a);
	listen(fifo, 1);
	pthread_mutex_lock(&never);
	char *p = mmap(0, 40 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(p, 1, 40 << 20);
	for (long k = 0; k < 60; k++)
		pthread_create(&t, 0, wait_somehow, (void *)k);
	wait_somehow(0);
	return 0;
}
