/* EXPECT: exited, code 137, NOT signaled, NOT oom */
int main(void) {
	return 137;
}
