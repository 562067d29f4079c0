package run

import (
	"context"
	"errors"
	"io"
)

// What a caller of Objects branches on. Everything else may pass.
var (
	// ErrNoObject means that the tenant has no such object, or not all of it any
	// more.
	ErrNoObject = errors.New("no such object")
	// ErrBadObject means that the object cannot be used: it is too big, damaged, or
	// refers to something else.
	ErrBadObject = errors.New("object cannot be used")
)

// Objects is where files stand that are too big for a message. A tenant reaches its
// own alone. It is safe for concurrent use.
type Objects interface {
	// Get opens an object, whose reader must be closed. That what was read is the
	// whole object, unchanged, is certain only with io.EOF. Errors, also of the
	// reader: ErrNoObject, ErrBadObject.
	Get(ctx context.Context, tenant, name string) (io.ReadCloser, error)
	// Put stores an object, in place of one that has the name. Nil means that all of
	// it is acknowledged.
	Put(ctx context.Context, tenant, name string, content io.Reader) error
}
