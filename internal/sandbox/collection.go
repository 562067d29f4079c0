package sandbox

// Collection is what all implementations of Run.Collect share: what is refused, and
// the bounds. It is for one call, and for one goroutine.
type Collection struct {
	spec CollectSpec
	take func(Collected) error
	// taken counts what take has seen, left is what is left of MaxBytes, more counts
	// the matches that take does not see.
	taken int
	left  int64
	more  int
}

// NewCollection begins a collection that hands over to take.
func NewCollection(spec CollectSpec, take func(Collected) error) *Collection {
	return &Collection{spec: spec, take: take, left: spec.MaxBytes}
}

// FileKind is what a name in a workspace stands for.
type FileKind int

// The kinds. The zero value is none of them that could be collected.
const (
	KindSpecial FileKind = iota
	KindRegular
	KindDirectory
	KindSymlink
)

// Refuse says what is wrong with a match, or nothing.
func (c *Collection) Refuse(path string, kind FileKind, links, size int64) string {
	switch kind {
	case KindSymlink:
		return RefusedSymlink
	case KindDirectory:
		return RefusedDirectory
	case KindSpecial:
		return RefusedSpecial
	case KindRegular:
	}
	switch {
	case links != 1:
		return RefusedHardLink
	case len(path) > MaxCollectPath:
		return RefusedLong
	case size > c.spec.MaxFileBytes:
		return RefusedSize(size, c.spec.MaxFileBytes)
	case size > c.left:
		return RefusedSize(size, c.left)
	}
	return ""
}

// Full says that take sees nothing more.
func (c *Collection) Full() bool { return c.taken == c.spec.MaxFiles }

// Give hands over, within the bound on the number. What has content counts with its
// size from here on.
func (c *Collection) Give(found Collected) error {
	if c.Full() {
		c.more++
		return nil
	}
	c.taken++
	if found.Content != nil {
		c.left -= found.Size
	}
	return c.take(found)
}

// Missed notes matches that take will not see.
func (c *Collection) Missed(n int) { c.more += n }

// More counts the matches that take did not see.
func (c *Collection) More() int { return c.more }
