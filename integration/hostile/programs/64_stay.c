/* EXPECT: helper of 64_clone_kinds: waits for ever */
#include "h.h"
int main(void) {
	for (;;) pause();
}
