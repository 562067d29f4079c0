package seccomp

// Native is the processor mode that the worker was built for.
func Native() Arch { return AMD64() }
