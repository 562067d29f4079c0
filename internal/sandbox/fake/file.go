package fake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sallyport/sallyport/internal/sandbox"
)

// item is a file in a workspace.
type item struct {
	// kind is empty for a regular file, else what a make step made.
	kind    string
	content string
}

// The kinds of make steps.
const (
	kindSymlink  = "symlink"
	kindFifo     = "fifo"
	kindHardLink = "hardlink"
	kindDir      = "dir"
)

// read reads the process's files, and refuses what exceeds its limits.
func read(ctx context.Context, process sandbox.Process) (map[string]item, error) {
	if err := sandbox.CheckFiles(process.Files); err != nil {
		return nil, err
	}
	files, left := map[string]item{}, process.Limits.DiskBytes
	for _, f := range process.Files {
		from := f.Content
		if process.Limits.DiskBytes > 0 {
			from = io.LimitReader(from, left+1)
		}
		data, err := io.ReadAll(reader{ctx, from})
		if err != nil {
			return nil, &sandbox.FileError{Path: f.Path, Err: fmt.Errorf("read its source: %w", err)}
		}
		left -= int64(len(data))
		if process.Limits.DiskBytes > 0 && left < 0 || process.Limits.Inodes > 0 && int64(len(files)) >= process.Limits.Inodes {
			return nil, &sandbox.FileError{Path: f.Path, Err: errors.New("no space left (the files exceed the workspace's disk_bytes or inodes)")}
		}
		files[f.Path] = item{content: string(data)}
	}
	return files, nil
}

// reader ends with a context.
type reader struct {
	ctx  context.Context //nolint:containedctx // of the call that it is read in
	from io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.from.Read(p)
}

// Collect implements sandbox.Run.
func (r *run) Collect(ctx context.Context, spec sandbox.CollectSpec, take func(sandbox.Collected) error) (more int, err error) {
	const op = "collect"
	patterns, err := sandbox.CompilePatterns(spec.Patterns)
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Refused, op, "%w", err)
	}
	if err := r.box.usable(op); err != nil {
		return 0, err
	}
	r.box.mu.Lock()
	current := r.box.run == r
	r.box.mu.Unlock()
	if !current || !r.proven() {
		return 0, sandbox.Errorf(sandbox.Refused, op, "the end of the run is not proven, or it was reset")
	}
	if err := pause(ctx, r.script.delay[op]); err != nil {
		return 0, sandbox.Errorf(sandbox.Unavailable, op, "%w", err)
	}
	switch r.script.collect {
	case "refuse":
		return 0, sandbox.Errorf(sandbox.Refused, op, "told to refuse")
	case "fail":
		return 0, sandbox.Errorf(sandbox.Unavailable, op, "told to fail")
	case "hang":
		<-ctx.Done()
		return 0, sandbox.Errorf(sandbox.Unavailable, op, "no answer: %w", context.Cause(ctx))
	}
	c := sandbox.NewCollection(spec, take)
	for _, found := range r.box.p.world.list(r.box.resident) {
		m := patterns.Match(found.path)
		if dir := found.kind == kindDir; dir && !m.Dir || !dir && !m.File {
			continue
		}
		match := sandbox.Collected{Path: found.path, Size: int64(len(found.content))}
		if match.Refused = refuse(c, found); match.Refused == "" {
			match.Content = strings.NewReader(found.content)
		}
		if err := c.Give(match); err != nil {
			return c.More(), err
		}
	}
	return c.More(), nil
}

func refuse(c *sandbox.Collection, f found) string {
	kind, links := sandbox.KindRegular, int64(1)
	switch f.kind {
	case kindSymlink:
		kind = sandbox.KindSymlink
	case kindFifo:
		kind = sandbox.KindSpecial
	case kindHardLink:
		links = 2
	case kindDir:
		kind = sandbox.KindDirectory
	}
	if kind == sandbox.KindRegular && strings.Count(f.path, "/") > sandbox.MaxCollectDepth {
		return sandbox.RefusedDeep
	}
	return c.Refuse(f.path, kind, links, int64(len(f.content)))
}

// found is an item with its path.
type found struct {
	item
	path string
}

// list is the workspace, directories included, in the order of a walk.
func (w *World) list(r *resident) []found {
	w.mu.Lock()
	all := maps.Clone(r.files)
	w.mu.Unlock()
	for name := range maps.Clone(all) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			all[dir] = item{kind: kindDir}
		}
	}
	list := make([]found, 0, len(all))
	for name, it := range all {
		list = append(list, found{it, name})
	}
	slices.SortFunc(list, func(a, b found) int {
		return slices.Compare(strings.Split(a.path, "/"), strings.Split(b.path, "/"))
	})
	return list
}

// put makes a file, or adds to one that is there.
func (w *World) put(r *resident, name string, it item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	it.content = r.files[name].content + it.content
	r.files[name] = it
}

// place puts the files of a process in.
func (w *World) place(r *resident, files map[string]item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(r.files, files)
}

// files is the workspace's listing, a line each.
func (b *box) files() []byte {
	var out bytes.Buffer
	for _, f := range b.p.world.list(b.resident) {
		if !strings.Contains(f.path, "/") {
			out.WriteString(f.path + "\n")
		}
	}
	return out.Bytes()
}

// show is a file's content.
func (b *box) show(name string) []byte {
	b.p.world.mu.Lock()
	defer b.p.world.mu.Unlock()
	return []byte(b.resident.files[name].content)
}

// make does a make step.
func (b *box) make(arg string) {
	kind, name, _ := strings.Cut(arg, ":")
	b.p.world.put(b.resident, name, item{kind: kind})
}
