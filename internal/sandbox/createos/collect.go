package createos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// maxListBytes bounds the listing of a workspace: more names than are looked at do not fit.
const maxListBytes = 32 << 20

// Collect implements sandbox.Run. The listing is made by a command inside, which follows
// no link; each file is read through the API. Nobody is left inside who could change what
// was listed.
func (r *run) Collect(ctx context.Context, spec sandbox.CollectSpec, take func(sandbox.Collected) error) (int, error) {
	const op = "collect"
	patterns, err := sandbox.CompilePatterns(spec.Patterns)
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	r.box.mu.Lock()
	current := r.box.run == r
	r.box.mu.Unlock()
	switch {
	case !current || !r.finished():
		return 0, sandbox.Errorf(sandbox.Refused, op, "the end of the run is not proven, or the sandbox was reset")
	case len(patterns) == 0:
		return 0, nil
	}
	if err := r.box.usable(op); err != nil {
		return 0, err
	}
	c := &collection{Collection: sandbox.NewCollection(spec, take), box: r.box, patterns: patterns}
	if err := c.list(ctx); err != nil {
		return c.More(), fail(op, err)
	}
	for i := range c.entries {
		if ctx.Err() != nil {
			return c.More(), sandbox.Errorf(sandbox.Unavailable, op, "%w", context.Cause(ctx))
		}
		if err := c.visit(ctx, &c.entries[i]); err != nil {
			return c.More(), err
		}
	}
	return c.More(), nil
}

// collection is one call of Collect.
type collection struct {
	*sandbox.Collection
	box      *box
	patterns sandbox.Patterns
	entries  []entry
	// closedDir is the prefix of what lies in a directory that is not looked into.
	closedDir string
}

// entry is a name in the workspace.
type entry struct {
	path  string
	kind  byte // as find(1) names it: f, d, l, …
	links int64
	size  int64
}

// list has the workspace listed to a file, which it reads.
func (c *collection) list(ctx context.Context) error {
	b, name := c.box, c.box.own+"/list"
	args := scripted(listScript, b.p.cfg.Workspace, name, strconv.Itoa(maxListBytes), strconv.Itoa(sandbox.MaxCollectDepth))
	code, err := b.p.api.exec(ctx, b.id, args[0], args[1:]...)
	if err != nil {
		return err
	}
	if code != 0 && code != partial {
		return sandbox.Errorf(sandbox.Unavailable, "list", "the workspace could not be listed: the image must provide GNU find and coreutils")
	}
	if code == partial {
		c.Missed(1)
	}
	data, err := b.fetch(ctx, name, maxListBytes)
	if err != nil {
		return err
	}
	return c.parse(data)
}

// partial is the listing script's exit code when something could not be listed.
const partial = 3

// parse reads the listing. It comes from a sandbox in which a job was: what makes no sense
// is refused.
func (c *collection) parse(data []byte) error {
	whole := len(data) < maxListBytes
	for len(data) > 0 {
		record, rest, ended := bytes.Cut(data, []byte{0})
		if !ended && whole {
			return errListing
		}
		if !ended || len(c.entries) == sandbox.MaxCollectVisits {
			c.Missed(1)
			break
		}
		e, err := parseEntry(string(record))
		if err != nil {
			return err
		}
		c.entries = append(c.entries, e)
		data = rest
	}
	slices.SortFunc(c.entries, func(a, b entry) int { return walkOrder(a.path, b.path) })
	return nil
}

var errListing = errors.New("the listing of the workspace is invalid")

func parseEntry(record string) (entry, error) {
	fields := strings.SplitN(record, " ", 4)
	if len(fields) != 4 || len(fields[0]) != 1 {
		return entry{}, errListing
	}
	links, linksErr := strconv.ParseInt(fields[1], 10, 64)
	size, sizeErr := strconv.ParseInt(fields[2], 10, 64)
	if linksErr != nil || sizeErr != nil || size < 0 {
		return entry{}, errListing
	}
	e := entry{path: fields[3], kind: fields[0][0], links: links, size: size}
	for segment := range strings.SplitSeq(e.path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return entry{}, errListing
		}
	}
	return e, nil
}

// walkOrder is the order of a walk that sorts the names in each directory: a slash is
// before every other byte of a name.
func walkOrder(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n == len(a) || n == len(b) {
		return cmp.Compare(len(a), len(b))
	}
	switch {
	case a[n] == '/':
		return -1
	case b[n] == '/':
		return 1
	}
	return cmp.Compare(a[n], b[n])
}

// visit decides about one name.
func (c *collection) visit(ctx context.Context, e *entry) error {
	if c.closedDir != "" && strings.HasPrefix(e.path, c.closedDir) {
		return nil
	}
	match := c.patterns.Match(e.path)
	named, below := match.File, false
	if e.kind == 'd' {
		named, below = match.Dir, match.Below
	}
	if named {
		if err := c.file(ctx, e); err != nil {
			return err
		}
	}
	why := ""
	switch {
	case !below:
	case strings.Count(e.path, "/")+1 >= sandbox.MaxCollectDepth:
		why = sandbox.RefusedDeep
	case len(e.path) > sandbox.MaxCollectPath:
		why = sandbox.RefusedLong
	}
	if why == "" {
		return nil
	}
	c.closedDir = e.path + "/"
	return c.Give(sandbox.Collected{Path: e.path, Refused: why})
}

// file hands a match over, or says why not.
func (c *collection) file(ctx context.Context, e *entry) error {
	found := sandbox.Collected{Path: e.path, Size: e.size, Refused: c.Refuse(e.path, fileKind(e.kind), e.links, e.size)}
	if found.Refused != "" || c.Full() {
		return c.Give(found)
	}
	source, err := c.box.p.api.download(ctx, c.box.id, c.box.p.cfg.Workspace+"/"+e.path)
	if err != nil {
		if ctx.Err() != nil || kindOf(err) == sandbox.Unavailable {
			return fail("collect", err)
		}
		found.Refused = "cannot be read: " + err.Error()
		return c.Give(found)
	}
	found.Content = &exactly{source: source, left: e.size}
	// A body that was not read to its end may say so, which is its reader's choice: what
	// was read is held to its length by exactly.
	defer source.Close() //nolint:errcheck // see above
	return c.Give(found)
}

// fileKind is what find(1)'s letter stands for.
func fileKind(letter byte) sandbox.FileKind {
	switch letter {
	case 'f':
		return sandbox.KindRegular
	case 'd':
		return sandbox.KindDirectory
	case 'l':
		return sandbox.KindSymlink
	}
	return sandbox.KindSpecial
}

// exactly reads so many bytes: a source that has fewer, or more, is an error.
type exactly struct {
	source io.Reader
	left   int64
}

// Read implements io.Reader.
func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		var one [1]byte
		if n, err := readFull(e.source, one[:]); err != nil {
			return 0, fmt.Errorf("the end of the file: %w", transportless(err))
		} else if n > 0 {
			return 0, errors.New("the file is larger than it was")
		}
		return 0, io.EOF
	}
	n, err := e.source.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF) && e.left > 0:
		return n, fmt.Errorf("%d bytes are missing: %w", e.left, io.ErrUnexpectedEOF)
	case errors.Is(err, io.EOF), err == nil:
		return n, nil
	}
	return n, transportless(err)
}

// transportless hides the transport's words, which may hold the URL.
func transportless(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return errors.New("the connection failed")
}
