package seccomp

// What the tests compare with other sources.

// Numbers are the calls of a.
func (a Arch) Numbers() map[string]uint32 { return a.numbers }

// Audit is the AUDIT_ARCH constant of a.
func (a Arch) Audit() uint32 { return a.audit }

// Allowed are the names of the list.
func Allowed() []string { return allowed() }

// Missing are the names that the kernel pretends not to have.
func Missing() []string { return missing() }

// Tree is the tree for answers.
func Tree(answers map[uint32]uint32) Filter { return tree(spans(answers)) }
