/* EXPECT: exit 0 or SIGSEGV: the old page of calls gives the time, or is not there */
#include "h.h"
int main(void) {
#ifdef __x86_64__
long t=((long(*)(long*))0xffffffffff600400)(0);
return t<1000000000;
#else
return 0;
#endif
}
