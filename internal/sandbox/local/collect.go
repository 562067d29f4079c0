package local

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// Collect reads files out of the workspace. Everything of the run is proven gone,
// so that nothing that is looked at can change any more.
func (r *run) Collect(ctx context.Context, spec sandbox.CollectSpec, take func(sandbox.Collected) error) (int, error) {
	const op = "collect"
	patterns, err := sandbox.CompilePatterns(spec.Patterns)
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	if !r.proven() {
		return 0, sandbox.Errorf(sandbox.Refused, op, "the end of the run is not proven")
	}
	r.box.mu.Lock()
	current := r.box.run == r && r.box.broken == nil
	r.box.mu.Unlock()
	if !current {
		return 0, sandbox.Errorf(sandbox.Refused, op, "the sandbox was reset, or is gone")
	}
	c := &collection{Collection: sandbox.NewCollection(spec, take), ctx: ctx, box: r.box, patterns: patterns}
	err = c.walk("", 0)
	return c.More(), err
}

// statBatch is how many names are looked at at once.
const statBatch = 256

// collection is one call of Collect.
type collection struct {
	*sandbox.Collection
	ctx      context.Context //nolint:containedctx // of the call that it is
	box      *box
	patterns sandbox.Patterns
	visits   int
}

// entry is a name in the workspace that a pattern may mean.
type entry struct {
	path  string
	match sandbox.Match
	st    unix.Stat_t
	err   error
}

// walk goes through a directory; dir is its path, empty for the workspace.
func (c *collection) walk(dir string, depth int) error {
	names, err := c.list(dir)
	if err != nil {
		return c.Give(sandbox.Collected{Path: cmp.Or(dir, "."), Refused: "cannot be read: " + err.Error()})
	}
	if room := sandbox.MaxCollectVisits - c.visits; len(names) > room {
		c.Missed(len(names) - room)
		names = names[:room]
	}
	c.visits += len(names)
	for batch := range slices.Chunk(names, statBatch) {
		entries := c.look(dir, batch)
		if c.ctx.Err() != nil {
			return sandbox.Errorf(sandbox.Unavailable, "collect", "%w", context.Cause(c.ctx))
		}
		for i := range entries {
			if err := c.visit(&entries[i], depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// list is what stands in a directory, sorted.
func (c *collection) list(dir string) (names []string, err error) {
	err = c.box.inWorkspace(func(w *workspaceDir) error {
		fd, err := open(w.fd, cmp.Or(dir, "."), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), dir)
		names, err = file.Readdirnames(sandbox.MaxCollectVisits + 1)
		return errors.Join(ignoreEOF(err), file.Close())
	})
	slices.Sort(names)
	return names, err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// look looks at those of the names that a pattern may mean, without opening
// anything that could do something.
func (c *collection) look(dir string, names []string) []entry {
	var entries []entry
	for _, name := range names {
		if dir != "" {
			name = dir + "/" + name
		}
		if c.ctx.Err() != nil {
			return nil // walk says so
		}
		if m := c.patterns.Match(name); m.Any() {
			entries = append(entries, entry{path: name, match: m})
		}
	}
	err := c.box.inWorkspace(func(w *workspaceDir) error {
		for i := range entries {
			e := &entries[i]
			e.err = w.inDir(e.path, func(dir int, base string) error {
				return unix.Fstatat(dir, base, &e.st, unix.AT_SYMLINK_NOFOLLOW)
			})
		}
		return nil
	})
	for i := range entries {
		entries[i].err = errors.Join(entries[i].err, err)
	}
	return entries
}

// visit decides about one name.
func (c *collection) visit(e *entry, depth int) error {
	if e.err != nil {
		return c.Give(sandbox.Collected{Path: e.path, Refused: "cannot be looked at: " + e.err.Error()})
	}
	named, below := e.match.File, false
	if e.st.Mode&unix.S_IFMT == unix.S_IFDIR {
		named, below = e.match.Dir, e.match.Below
	}
	if named {
		if err := c.file(e); err != nil {
			return err
		}
	}
	switch {
	case !below:
		return nil
	case depth+1 >= sandbox.MaxCollectDepth:
		return c.Give(sandbox.Collected{Path: e.path, Refused: sandbox.RefusedDeep})
	case len(e.path) > sandbox.MaxCollectPath:
		return c.Give(sandbox.Collected{Path: e.path, Refused: sandbox.RefusedLong})
	}
	return c.walk(e.path, depth+1)
}

// file hands a match over, or says why not.
func (c *collection) file(e *entry) error {
	found := sandbox.Collected{Path: e.path, Size: e.st.Size, Refused: c.Refuse(e.path, kindOf(&e.st), int64(e.st.Nlink), e.st.Size)}
	if found.Refused != "" || c.Full() {
		return c.Give(found)
	}
	content := &content{collection: c, entry: e}
	if _, err := content.readAt(nil, 0); err != nil {
		found.Refused = "cannot be opened: " + err.Error()
		return c.Give(found)
	}
	// Each piece costs an opening of its own.
	found.Content = bufio.NewReaderSize(io.NewSectionReader(content, 0, e.st.Size), int(min(e.st.Size, placeBytes)))
	return c.Give(found)
}

// kindOf is what st is of.
func kindOf(st *unix.Stat_t) sandbox.FileKind {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return sandbox.KindRegular
	case unix.S_IFDIR:
		return sandbox.KindDirectory
	case unix.S_IFLNK:
		return sandbox.KindSymlink
	}
	return sandbox.KindSpecial
}

// content is a file that is opened anew for each piece (see inWorkspace).
type content struct {
	*collection
	*entry
}

// ReadAt implements io.ReaderAt. A file that ends too early is an error.
func (f *content) ReadAt(p []byte, off int64) (int, error) {
	if f.ctx.Err() != nil {
		return 0, context.Cause(f.ctx)
	}
	done := 0
	for done < len(p) && off < f.st.Size {
		n, err := f.readAt(p[done:min(len(p), done+placeBytes)], off)
		done, off = done+n, off+int64(n)
		if err != nil {
			return done, err
		}
		if n == 0 {
			return done, fmt.Errorf("%d bytes are missing: %w", f.st.Size-off, io.ErrUnexpectedEOF)
		}
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// readAt opens what was looked at, makes sure that it is that, and reads.
func (f *content) readAt(p []byte, off int64) (n int, err error) {
	err = f.box.inWorkspace(func(w *workspaceDir) error {
		fd, err := open(w.fd, f.path, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var is unix.Stat_t
		if err := unix.Fstat(fd, &is); err != nil {
			return err
		}
		if is.Dev != w.dev || is.Ino != f.st.Ino || is.Mode != f.st.Mode || is.Nlink != 1 || is.Size != f.st.Size {
			return errors.New("it changed while it was looked at")
		}
		n, err = unix.Pread(fd, p, off)
		return err
	})
	return max(n, 0), err
}
