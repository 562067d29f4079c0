/* EXPECT: exit 0: no job has the kernel watch the host's pressure for it */
#include "h.h"
int main(void) {
	const char *all[] = {"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io", "/proc/pressure/irq"};
	for (int i = 0; i < 4; i++) {
		int f = open(all[i], O_RDWR | O_NONBLOCK);
		probe(all[i], f < 0 ? -1 : write(f, "some 500000 2000000", 20));
	}
	return bad;
}
