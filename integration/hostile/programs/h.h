/* What the programs share. All are compiled as one file (see build_test.go). */
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How many attempts succeeded that should not. */
static int bad;

/* Reports an attempt that must fail. */
static inline void probe(const char *name, long result) {
	if (result < 0) {
		printf("%s: blocked (%s)\n", name, strerror(errno));
	} else {
		printf("%s: ALLOWED\n", name);
		bad++;
	}
	fflush(stdout);
}

/* Sends descriptors through a Unix socket. */
static void send80(int via, int *fds, int n) {
	char c=0,b[CMSG_SPACE(sizeof(int)*8)]={0};
	struct iovec v={&c,1};
	struct msghdr m={.msg_iov=&v,.msg_iovlen=1,.msg_control=b,.msg_controllen=CMSG_SPACE(sizeof(int)*n)};
	struct cmsghdr *h=CMSG_FIRSTHDR(&m);
	h->cmsg_level=SOL_SOCKET;
	h->cmsg_type=SCM_RIGHTS;
	h->cmsg_len=CMSG_LEN(sizeof(int)*n);
	memcpy(CMSG_DATA(h),fds,sizeof(int)*n);
	if (sendmsg(via,&m,0)<0) perror("sendmsg");
}
