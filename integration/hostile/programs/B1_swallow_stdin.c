/* EXPECT: exit 0, leftover: a child holds stdin and reads nothing of it */
#include "h.h"
int main(void) {
	if (!fork()) for (;;) pause();
	return 0;
}
