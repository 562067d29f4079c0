package executor

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox"
	"github.com/sallyport/sallyport/internal/wire"
)

// noFiles refuses files where the profile's provider, or this worker, has none.
func (x *Executor) noFiles(r *wire.Request, p Profile) *wire.Invalid {
	refuse := func(field, why string) *wire.Invalid {
		return &wire.Invalid{Reason: wire.ReasonUnsupported, Field: field, Message: why}
	}
	if !p.Capabilities.Files {
		const why = "the sandboxes of this profile take no files in or out; leave it out"
		switch {
		case len(r.Files) > 0:
			return refuse("files", why)
		case len(r.Collect) > 0:
			return refuse("collect", why)
		}
	}
	for i := range r.Files {
		if r.Files[i].Object != "" && x.cfg.Objects == nil {
			return refuse(fmt.Sprintf("files[%d].object", i), "this worker has no object store; use text or base64")
		}
	}
	return nil
}

// filesTime is what the request's objects add to the time of its set-up.
func (at *attempt) filesTime() time.Duration {
	for i := range at.Request.Files {
		if at.Request.Files[i].Object != "" {
			return at.x.cfg.FilesTimeout
		}
	}
	return 0
}

// inputs are the request's files with where their contents come from.
type inputs struct {
	files   []sandbox.File
	objects []*object
	// unavailable says that an object could not be read for a reason that may pass.
	unavailable bool
}

// newInputs reads nothing yet. The request is valid.
func newInputs(ctx context.Context, at *attempt) *inputs {
	in := &inputs{}
	for i := range at.Request.Files {
		f := &at.Request.Files[i]
		file := sandbox.File{Path: path.Clean(f.Path)}
		if f.Mode != "" {
			bits, err := strconv.ParseUint(f.Mode, 8, 12)
			if err != nil {
				bits = 0
			}
			file.Mode = fs.FileMode(bits)
		}
		switch {
		case f.Text != nil:
			file.Content = strings.NewReader(*f.Text)
		case f.Base64 != nil:
			file.Content = base64.NewDecoder(base64.StdEncoding, strings.NewReader(*f.Base64))
		default:
			o := &object{ctx: ctx, in: in, from: at.x.cfg.Objects, tenant: at.Job.Tenant, name: f.Object}
			in.objects = append(in.objects, o)
			file.Content = o
		}
		in.files = append(in.files, file)
	}
	return in
}

// close ends what was not read to its end.
func (in *inputs) close() {
	for _, o := range in.objects {
		o.close()
	}
}

// object is the content of an object, which is opened when it is read.
type object struct {
	ctx          context.Context //nolint:containedctx // of the Prepare that reads it
	in           *inputs
	from         run.Objects
	tenant, name string

	content io.ReadCloser
	err     error
}

// Read implements io.Reader.
func (o *object) Read(p []byte) (int, error) {
	if o.content == nil && o.err == nil {
		o.content, o.err = o.from.Get(o.ctx, o.tenant, o.name)
	}
	if o.err != nil {
		return 0, o.failed(o.err)
	}
	n, err := o.content.Read(p)
	if err != nil {
		o.close()
		o.err = err
		return n, o.failed(err)
	}
	return n, nil
}

// failed notes whether err is the request's fault.
func (o *object) failed(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if !errors.Is(err, run.ErrNoObject) && !errors.Is(err, run.ErrBadObject) {
		o.in.unavailable = true
	}
	return fmt.Errorf("object %q: %w", o.name, err)
}

func (o *object) close() {
	if o.content == nil {
		return
	}
	if err := o.content.Close(); err != nil && o.err == nil {
		o.err = err
	}
	o.content = nil
	if o.err == nil {
		o.err = io.ErrClosedPipe
	}
}
