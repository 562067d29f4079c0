package executor

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// namesBudget is what the paths and reasons of a result may take; the rest of the
// bound is for what a record that is too small writes in place of a content.
const namesBudget = wire.MaxCollectedNames - 32*wire.MaxCollected

// maxWhy bounds the reason of one file.
const maxWhy = 256

// collect reads the files that the request asks for, once nobody is left who could
// change them. What it stores is acknowledged when it returns.
func (at *attempt) collect(ctx context.Context, process sandbox.Run) {
	if len(at.Request.Collect) == 0 || at.end.StartError != nil {
		return
	}
	c := &collector{at: at, inline: wire.InlineFilesBytes(at.Mode), names: namesBudget}
	defer func() { at.files, at.omitted = c.files, c.omitted }()
	if why := at.uncollectable(); why != "" {
		c.refuseAll(why)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), at.x.cfg.FilesTimeout)
	var hurrying sync.WaitGroup
	defer hurrying.Wait()
	defer cancel()
	hurrying.Go(func() {
		select {
		case <-at.Hurry:
			cancel()
		case <-ctx.Done():
		}
	})
	c.ctx = ctx
	spec := sandbox.CollectSpec{
		Patterns: at.Request.Collect, MaxFiles: wire.MaxCollected, MaxFileBytes: wire.MaxObjectBytes, MaxBytes: wire.MaxCollectedBytes,
	}
	more, err := process.Collect(ctx, spec, c.take)
	c.omitted += more
	if err != nil {
		at.log.Warn().Err(err).Msg("files not collected")
		at.verdict.Fresh = true // a workspace that cannot be read is not used again
		c.refuseAll(fmt.Sprintf("not all was collected: %v", err))
	}
}

// uncollectable says why nothing can be read, or nothing.
func (at *attempt) uncollectable() string {
	switch {
	case !at.end.Proof.Proven:
		return "not read: the end of the run is not proven"
	case at.lost != nil:
		return "not read: the sandbox is gone"
	case at.decision != nil && at.decision.outcome == wire.Lost:
		return "not read: the worker ended the run (" + string(at.decision.reason) + ")"
	}
	return ""
}

// collector makes the result's files.
type collector struct {
	ctx     context.Context //nolint:containedctx // of the collection that it is
	at      *attempt
	inline  int64 // bytes that still fit the result
	names   int   // bytes of paths and reasons, too
	stored  int
	files   []wire.CollectedFile
	omitted int
}

// take decides where one file goes. Only the end of the time is an error: any other
// is that file's alone.
func (c *collector) take(f sandbox.Collected) error {
	name, plain := wire.FileName(f.Path)
	out := wire.CollectedFile{Path: name, Size: f.Size, Refuse: f.Refused}
	switch {
	case f.Refused != "":
	case !plain:
		out.Refuse = "its name has control characters or is not UTF-8; it stands here escaped"
	case f.Size <= c.inline:
		data, err := io.ReadAll(f.Content)
		if err != nil {
			out.Refuse = "cannot be read: " + err.Error()
			break
		}
		out.Base64 = base64.StdEncoding.EncodeToString(data)
		c.inline -= f.Size
	case c.at.x.cfg.Objects == nil:
		out.Refuse = "does not fit the result, and this worker has no object store"
	default:
		c.store(&out, f.Content)
	}
	c.add(out)
	return c.ctx.Err()
}

// store puts a file into the object store.
func (c *collector) store(out *wire.CollectedFile, content io.Reader) {
	c.stored++
	name := wire.CollectedObject(c.at.Job.ID, c.at.Number, c.stored)
	if err := c.at.x.cfg.Objects.Put(c.ctx, c.at.Job.Tenant, name, content); err != nil {
		c.at.log.Warn().Err(err).Msg("collected file not stored")
		out.Refuse = "could not be stored: " + err.Error()
		return
	}
	out.Object = name
}

// add appends within the bounds.
func (c *collector) add(f wire.CollectedFile) {
	f.Refuse, _ = wire.FileName(f.Refuse) // an error may quote what a job has named
	f.Refuse = strings.ToValidUTF8(f.Refuse[:min(len(f.Refuse), maxWhy)], "")
	size := len(f.Path) + len(f.Refuse)
	if len(c.files) == wire.MaxCollected || size > c.names {
		c.omitted++
		return
	}
	c.names -= size
	c.files = append(c.files, f)
}

// refuseAll refuses what was asked for, pattern by pattern.
func (c *collector) refuseAll(why string) {
	for _, pattern := range c.at.Request.Collect {
		name, _ := wire.FileName(pattern)
		c.add(wire.CollectedFile{Path: name, Refuse: why})
	}
}
