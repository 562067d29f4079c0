package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/wire"
)

// CollectedFile is an output file in a Result.
type CollectedFile = wire.CollectedFile

// transferTimeout bounds one object's way, whose own default would be 5 s.
const transferTimeout = 5 * time.Minute

// ErrNoObject means that the tenant has no such object in the object store.
var ErrNoObject = errors.New("no such object")

// PutObject stores an object of the tenant, which a request's files can name, in
// place of one that has the name. It needs rights to the object store, which cannot
// be cut by tenant: it is for trusted publishers.
func (c *Client) PutObject(ctx context.Context, name string, content io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	store, err := c.objects(ctx, name)
	if err != nil {
		return err
	}
	meta := jetstream.ObjectMeta{Name: wire.ObjectKey(c.cfg.Tenant, name)}
	if _, err := store.Put(ctx, meta, content); err != nil {
		return fmt.Errorf("store object %q: %w", name, err)
	}
	return nil
}

// GetObject copies an object of the tenant to w and checks it; after an error, w has
// some of it. Errors: ErrNoObject.
func (c *Client) GetObject(ctx context.Context, name string, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, transferTimeout)
	defer cancel()
	store, err := c.objects(ctx, name)
	if err != nil {
		return err
	}
	object, err := store.Get(ctx, wire.ObjectKey(c.cfg.Tenant, name))
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("object %q: %w", name, ErrNoObject)
	}
	if err != nil {
		return fmt.Errorf("read object %q: %w", name, err)
	}
	_, err = io.Copy(w, object)
	if err := errors.Join(err, object.Close()); err != nil {
		return fmt.Errorf("read object %q: %w", name, err)
	}
	return nil
}

// Fetch copies a collected file to w, wherever it stands.
func (c *Client) Fetch(ctx context.Context, f *CollectedFile, w io.Writer) error {
	switch {
	case f.Refuse != "":
		return fmt.Errorf("%s was not collected: it %s", f.Path, f.Refuse)
	case f.Object != "":
		return c.GetObject(ctx, f.Object, w)
	}
	data, err := f.Bytes()
	if err == nil {
		_, err = io.Copy(w, bytes.NewReader(data))
	}
	return err
}

func (c *Client) objects(ctx context.Context, name string) (jetstream.ObjectStore, error) {
	if !wire.ValidObject(name) {
		return nil, fmt.Errorf("object %q: must be 1 to %d bytes without control characters, with slashes between segments", name, wire.MaxObjectName)
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	bucket := c.cfg.StreamPrefix + "_FILES"
	store, err := js.ObjectStore(ctx, bucket)
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w", bucket, err)
	}
	return store, nil
}
