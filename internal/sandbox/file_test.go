package sandbox_test

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/sandbox"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		dir           bool
		named, below  bool
	}{
		{"out.txt", "out.txt", false, true, false},
		{"out.txt", "out.tx", false, false, false},
		{"./a//b", "a/b", false, true, false},
		{"*.txt", "a.txt", false, true, false},
		{"*.txt", "d/a.txt", false, false, false},
		{"d/*.txt", "d", true, false, true},
		{"d/*.txt", "e", true, false, false},
		{"d/*.txt", "d/a.txt", false, true, false},
		{"d", "d", true, true, false},
		{"*", "d", true, true, false},
		{"**", "a", false, true, false},
		{"**", "a/b/c", false, true, false},
		{"**", "a", true, false, true},
		{"**/*.go", "x.go", false, true, false},
		{"**/*.go", "a/b/x.go", false, true, false},
		{"**/*.go", "a/b", true, false, true},
		{"out/**", "out", true, false, true},
		{"out/**", "out", false, true, false},
		{"out/**", "out/a/b", false, true, false},
		{"out/**", "other/a", false, false, false},
		{"a/**/z", "a/z", false, true, false},
		{"a/**/z", "a/b/c/z", false, true, false},
		{"a/**/z", "a/b/c/y", false, false, false},
		{"a/**/**/z", "a/b/z", false, true, false},
		{"[a-c]?", "b1", false, true, false},
		{"*", "no\xffutf8\n", false, true, false},
	} {
		p, err := sandbox.CompilePatterns([]string{c.pattern})
		require.NoError(t, err)
		m := p.Match(c.name)
		named, below := m.File, false
		if c.dir {
			named, below = m.Dir, m.Below
		}
		require.Equal(t, []bool{c.named, c.below}, []bool{named, below}, "%s against %s", c.pattern, c.name)
	}
	for _, bad := range []string{"", ".", "/", "/a", "..", "../a", "a/../../b", "[", "a[b/c]", `x\`, "a\x00b"} {
		_, err := sandbox.CompilePatterns([]string{"fine", bad})
		require.Error(t, err, "%q", bad)
	}
	require.False(t, sandbox.Patterns(nil).Match("a").Any())
}

// A pattern that compiles never fails later, never names what lies outside, and
// does not hide below a directory that it does not look into.
func FuzzPatterns(f *testing.F) {
	f.Add("a/**/b*", "a/c/bx")
	f.Add("**/**/**/**/**/x", strings.Repeat("x/", 30)+"y")
	f.Add("[a-", "a")
	f.Add("../x", "../x")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p, err := sandbox.CompilePatterns([]string{pattern})
		if err != nil || len(pattern) > 256 || len(name) > 256 { // requests bound them
			return
		}
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		if name == "" {
			return
		}
		m := p.Match(name)
		require.False(t, m.Dir && !m.File, "a pattern's end that names directories names files, too")
		if !m.File {
			return
		}
		for i := range name {
			if name[i] == '/' {
				require.True(t, p.Match(name[:i]).Below, "%q names %q but does not look into %q", pattern, name, name[:i])
			}
		}
	})
}
