package sandbox

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// File is an input that Prepare places in the workspace. The files of a process
// are placed in their order, each as the job's own: its user owns it. Directories
// that are missing are made with mode 0755.
type File struct {
	// Path is relative to the workspace, with slashes; it never leads out of it.
	Path string
	// Mode is its permissions; 0 means 0644.
	Mode fs.FileMode
	// Content is read to its end, once, before Prepare returns. An error that it
	// returns stands in Prepare's, which is then Refused and has a *FileError.
	Content io.Reader
}

// FileError is why a file could not be placed.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("file %q: %v", e.Path, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

// CheckFiles says, as a *FileError, what is wrong with files that no workspace could take: a path that
// leads out or stands twice, a mode that is more than permissions, no content.
func CheckFiles(files []File) error {
	taken := make(map[string]bool, len(files)) // a directory is false
	for i := range files {
		f := &files[i]
		fault := func(format string, args ...any) error { return &FileError{f.Path, fmt.Errorf(format, args...)} }
		_, there := taken[f.Path]
		switch {
		case !fs.ValidPath(f.Path) || f.Path == "." || strings.Contains(f.Path, "\x00"):
			return fault("must be a path below the workspace, without . and ..")
		case f.Mode&^fs.ModePerm != 0:
			return fault("mode %v is more than permissions", f.Mode)
		case f.Content == nil:
			return fault("has no content")
		case there:
			return fault("another file has this path, or is below it")
		}
		taken[f.Path] = true
		for j := range f.Path {
			if f.Path[j] != '/' {
				continue
			}
			if taken[f.Path[:j]] {
				return fault("another file is on its way")
			}
			taken[f.Path[:j]] = false
		}
	}
	return nil
}

// CollectSpec says which files of a run to read.
type CollectSpec struct {
	// Patterns name the files (see CompilePatterns). A bad one is an error of kind Refused.
	Patterns []string
	// MaxFiles bounds the matches, refused ones included; at least 1.
	MaxFiles int
	// MaxFileBytes bounds one file, MaxBytes all together. A file that exceeds
	// either is refused by name.
	MaxFileBytes, MaxBytes int64
}

// Collected is one file that matches.
type Collected struct {
	// Path is relative to the workspace, byte for byte as the job made it: it need
	// not be UTF-8, and may hold any character but NUL.
	Path string
	Size int64
	// Refused says why the file is not handed over, for a person; empty when it is.
	Refused string
	// Content is exactly Size bytes, valid during the call; nil when refused.
	Content io.Reader
}

// Bounds of a collection that hold for every provider.
const (
	// MaxCollectDepth is the deepest directory that Collect looks into.
	MaxCollectDepth = 64
	// MaxCollectVisits bounds the names that Collect looks at, so that its time is
	// bounded however many files a job has made.
	MaxCollectVisits = 1 << 17
	// MaxCollectPath is the longest path that is collected, in bytes.
	MaxCollectPath = 1024
)

// The reasons for which every provider refuses a file.
const (
	RefusedSymlink   = "is a symbolic link"
	RefusedDirectory = "is a directory: name the files in it"
	RefusedSpecial   = "is no regular file"
	RefusedHardLink  = "has more than one link"
	RefusedDeep      = "lies too deep"
	RefusedLong      = "has too long a path"
)

// RefusedSize is the reason for a file over a bound.
func RefusedSize(size, limit int64) string {
	return fmt.Sprintf("has %d bytes, more than the %d that are left for it", size, limit)
}

// Patterns are the compiled patterns of a CollectSpec.
type Patterns [][]string

// everything is the segment that stands for any number of directories.
const everything = "**"

// CompilePatterns checks patterns. Between slashes they are those of path.Match,
// and ** stands for any number of directories, none included: out/** is every file
// below out.
func CompilePatterns(patterns []string) (Patterns, error) {
	compiled := make(Patterns, 0, len(patterns))
	for _, p := range patterns {
		clean := path.Clean(p)
		if p == "" || path.IsAbs(p) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") || strings.Contains(p, "\x00") {
			return nil, fmt.Errorf("pattern %q: must be relative to the workspace and not lead out of it", p)
		}
		segments := strings.Split(clean, "/")
		for _, s := range segments {
			if _, err := path.Match(s, ""); err != nil {
				return nil, fmt.Errorf("pattern %q: %w", p, err)
			}
		}
		compiled = append(compiled, segments)
	}
	return compiled, nil
}

// Match is what the patterns say about a path. Its time is bounded by the product of
// the lengths.
func (p Patterns) Match(name string) Match {
	segments := strings.Split(name, "/")
	var m Match
	for _, pattern := range p {
		m.match(pattern, segments)
	}
	return m
}

// Match says what a path is to patterns.
type Match struct {
	// File and Dir say that a pattern names it, if it is a file or a directory. A **
	// at a pattern's end names files alone.
	File, Dir bool
	// Below says that, if it is a directory, a pattern may name something in it.
	Below bool
}

// Any says that it matters what the path is.
func (m Match) Any() bool { return m.File || m.Dir || m.Below }

// match follows one pattern: at is the set of positions in it that the segments so
// far can have led to.
func (m *Match) match(pattern, segments []string) {
	at := make([]bool, len(pattern)+1)
	at[0] = true
	for _, s := range segments {
		next := make([]bool, len(pattern)+1)
		for i, reached := range at[:len(pattern)] {
			if !reached {
				continue
			}
			if pattern[i] == everything {
				// It takes this segment, or ended before it.
				next[i] = true
				at[i+1] = true
				continue
			}
			if ok, err := path.Match(pattern[i], s); ok && err == nil {
				next[i+1] = true
			}
		}
		at = next
	}
	for i, reached := range at[:len(pattern)] {
		m.Below = m.Below || reached
		// What a last ** has taken is named, as it may stand for no directory.
		m.File = m.File || reached && i == len(pattern)-1 && pattern[i] == everything
	}
	m.File = m.File || at[len(pattern)]
	m.Dir = m.Dir || at[len(pattern)]
}
