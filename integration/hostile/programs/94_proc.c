/* EXPECT: exit 0: nothing secret of pid 1, nothing of the host's kernel, and nothing to write */
#include "h.h"
int main(void) {
	const char *one[]={"environ","maps","smaps","mem","syscall","stack","auxv","io","root/etc","cwd/etc","fd/3","map_files","pagemap","personality","timers","clear_refs"};
	char p[64],b[16];
	for (unsigned i=0;i<sizeof one/sizeof *one;i++) {
		snprintf(p,64,"/proc/1/%s",one[i]);
		int f=open(p,O_RDONLY);
		probe(p,f<0?-1:(read(f,b,16)<=0?-1:0));
	}
	probe("exe of pid 1",readlink("/proc/1/exe",p,63));
	probe("executing pid 1",execl("/proc/1/exe","sallyport-lease","x",(char*)0));
	const char *host[]={"/proc/kcore","/proc/keys","/proc/kmsg","/proc/timer_list","/proc/kpagecount","/proc/kpageflags","/proc/kpagecgroup","/proc/slabinfo","/proc/vmallocinfo","/proc/iomem","/proc/sched_debug","/proc/sysrq-trigger","/sys/kernel","/sys/fs/cgroup/cgroup.procs","/sys/firmware"};
	for (unsigned i=0;i<sizeof host/sizeof *host;i++) {
		int f=open(host[i],O_RDONLY);
		long n=f<0?-1:read(f,b,16);
		int zero=n>=15&&!memcmp(b,"00000000-000000",15);
		probe(host[i],n<=0||zero?-1:0);
	}
	const char *w[]={"/proc/sys/kernel/core_pattern","/proc/sys/kernel/hostname","/proc/sys/kernel/domainname","/proc/sys/net/ipv4/ip_forward","/proc/sys/net/core/somaxconn","/proc/sys/net/ipv4/ping_group_range","/proc/sys/user/max_user_namespaces","/proc/sys/vm/drop_caches","/proc/sys/kernel/ns_last_pid","/proc/sys/kernel/sem","/proc/sys/kernel/shmmax","/proc/sys/fs/mqueue/msg_max","/proc/sysrq-trigger","/proc/self/setgroups","/proc/self/uid_map","/proc/self/gid_map","/proc/irq/default_smp_affinity","/proc/bus","/proc/1/comm","/proc/1/autogroup","/proc/1/timerslack_ns","/proc/1/coredump_filter"};
	for (unsigned i=0;i<sizeof w/sizeof *w;i++) {
		int f=open(w[i],O_WRONLY);
		probe(w[i],f<0?-1:write(f,"0\n",2)<0?-1:strcmp(w[i],"/proc/sysrq-trigger")?0:-1);
	}
	return bad;
}
