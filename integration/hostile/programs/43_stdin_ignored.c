/* EXPECT: exit 0 with a large stdin never read: the worker's writer must not block and must ignore EPIPE */
int main(void) {
	return 0;
}
