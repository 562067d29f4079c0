package bus

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

const (
	// objectChunk is the size of the messages of an object, that of the nats tools.
	objectChunk = 128 << 10
	// maxObjectChunks bounds those of others' objects: 4 KiB at least, on average.
	maxObjectChunks = wire.MaxObjectBytes / (4 << 10)
	headerRollup    = "Nats-Rollup"
)

// Files is the object store in the format of the nats tools (ADR-20 of the NATS
// architecture): `nats object put EXEC_FILES` writes what a job takes in, and reads
// what it gave. It reads from the leader, so that an object is there for a job that
// was submitted after it, makes no consumers, holds one chunk in memory, and does its
// transfers on the output connection. It is safe for concurrent use.
//
// What stands in the bucket is not trusted: a link would lend the worker's rights to
// whoever made it, so it is refused, and an object is what its digest says.
type Files struct {
	b      *Bus
	bucket string
}

var _ run.Objects = (*Files)(nil)

// Files is the object store.
func (b *Bus) Files() *Files {
	transfer := &Bus{log: b.log, control: b.output, subjects: b.subjects, streams: b.streams, api: b.api, timeout: b.timeout}
	return &Files{b: transfer, bucket: b.streams.Files}
}

func (f *Files) stream() string { return "OBJ_" + f.bucket }

func (f *Files) chunks(id string) string { return "$O." + f.bucket + ".C." + id }

func (f *Files) meta(key string) string {
	return "$O." + f.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(key))
}

// Get opens an object of a tenant.
func (f *Files) Get(ctx context.Context, tenant, name string) (io.ReadCloser, error) {
	if !wire.ValidToken(tenant) || !wire.ValidObject(name) {
		return nil, fmt.Errorf("%w: not a name of an object", run.ErrBadObject)
	}
	key := wire.ObjectKey(tenant, name)
	m, err := f.b.leaderGet(ctx, f.stream(), getQuery{Last: f.meta(key)})
	if errors.Is(err, ErrNoRecord) {
		return nil, run.ErrNoObject
	}
	if err != nil {
		return nil, hintPermission(err, f.b.api+".STREAM.MSG.GET."+f.stream())
	}
	info, err := readObject(m.Data, key)
	if err != nil {
		return nil, err
	}
	return &objectReader{ctx: ctx, f: f, chunks: f.chunks(info.NUID), size: info.Size, left: info.Size, want: info.Digest, digest: sha256.New(), next: 1}, nil
}

// readObject reads what stands about an object, and refuses what is not one.
func readObject(data []byte, key string) (*jetstream.ObjectInfo, error) {
	info := &jetstream.ObjectInfo{}
	if err := json.Unmarshal(data, info); err != nil {
		return nil, fmt.Errorf("%w: %w", run.ErrBadObject, err)
	}
	switch {
	case info.Deleted:
		return nil, run.ErrNoObject
	case info.Name != key:
		return nil, fmt.Errorf("%w: it stands under another name", run.ErrBadObject)
	case info.Opts != nil && info.Opts.Link != nil:
		return nil, fmt.Errorf("%w: it is a link", run.ErrBadObject)
	case info.Size > wire.MaxObjectBytes:
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", run.ErrBadObject, info.Size, wire.MaxObjectBytes)
	case !wire.ValidToken(info.NUID):
		return nil, fmt.Errorf("%w: it does not say where its content stands", run.ErrBadObject)
	}
	return info, nil
}

// objectReader reads the chunks of an object, one by one.
type objectReader struct {
	ctx    context.Context //nolint:containedctx // io.Reader has none
	f      *Files
	chunks string
	size   uint64
	left   uint64
	want   string
	digest hash.Hash
	next   uint64 // stream sequence to look from
	count  int
	piece  []byte
	err    error
}

// Read implements io.Reader; io.EOF says that the digest was right.
func (r *objectReader) Read(p []byte) (int, error) {
	for len(r.piece) == 0 && r.err == nil {
		r.err = r.fetch()
	}
	if len(r.piece) == 0 {
		return 0, r.err
	}
	n := copy(p, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// fetch gets the next chunk, or decides that all was there.
func (r *objectReader) fetch() error {
	if r.left == 0 {
		if jetstream.GetObjectDigestValue(r.digest) != r.want {
			return fmt.Errorf("%w: its digest is wrong", run.ErrBadObject)
		}
		return io.EOF
	}
	if r.count++; r.count > maxObjectChunks {
		return fmt.Errorf("%w: it has more than %d chunks", run.ErrBadObject, maxObjectChunks)
	}
	m, err := r.f.b.leaderGet(r.ctx, r.f.stream(), getQuery{Seq: r.next, Next: r.chunks})
	if errors.Is(err, ErrNoRecord) {
		return fmt.Errorf("%w: %d of its %d bytes are gone", run.ErrNoObject, r.left, r.size)
	}
	if err != nil {
		return err
	}
	if uint64(len(m.Data)) > r.left {
		return fmt.Errorf("%w: it is longer than it says", run.ErrBadObject)
	}
	r.left -= uint64(len(m.Data))
	r.next = m.Seq + 1
	if _, err := r.digest.Write(m.Data); err != nil {
		return err
	}
	r.piece = m.Data
	return nil
}

// Close implements io.Closer. Nothing is open between two chunks.
func (r *objectReader) Close() error {
	r.piece, r.err = nil, io.ErrClosedPipe
	return nil
}

// Put stores an object: its chunks, each acknowledged, then what makes them one.
// What was stored of one that fails is removed again, or else in time with the rest.
func (f *Files) Put(ctx context.Context, tenant, name string, content io.Reader) error {
	if !wire.ValidToken(tenant) || !wire.ValidObject(name) {
		return fmt.Errorf("%w: not a name of an object", run.ErrBadObject)
	}
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: wire.ObjectKey(tenant, name), Opts: &jetstream.ObjectMetaOptions{ChunkSize: f.chunkSize()}},
		Bucket:     f.bucket, NUID: rand.Text(),
	}
	err := f.putChunks(ctx, &info, content)
	if err == nil {
		err = f.putMeta(ctx, &info)
	}
	if err != nil {
		f.purge(ctx, f.chunks(info.NUID))
		return fmt.Errorf("object %q: %w", name, err)
	}
	return nil
}

func (f *Files) chunkSize() uint32 {
	return uint32(max(1, min(objectChunk, f.b.control.MaxPayload()-headerRoom)))
}

func (f *Files) putChunks(ctx context.Context, info *jetstream.ObjectInfo, content io.Reader) error {
	digest, chunk, last := sha256.New(), make([]byte, info.Opts.ChunkSize), uint64(0)
	for over := false; !over; {
		n, err := io.ReadFull(content, chunk)
		over = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !over {
			return fmt.Errorf("read it: %w", err)
		}
		if n > 0 {
			if info.Size += uint64(n); info.Size > wire.MaxObjectBytes {
				return fmt.Errorf("%w: it has more than %d bytes", run.ErrBadObject, wire.MaxObjectBytes)
			}
			data := chunk[:n]
			// An answer that is lost is found again by the sequence: no chunk twice.
			w := write{subject: f.chunks(info.NUID), stream: f.stream(), data: data, expect: &last}
			seq, err := f.b.cas(ctx, w, func(m *message) bool { return bytes.Equal(m.Data, data) })
			if err != nil {
				return err
			}
			last = seq
			info.Chunks++
			if _, err := digest.Write(data); err != nil {
				return err
			}
		}
	}
	info.Digest = jetstream.GetObjectDigestValue(digest)
	return nil
}

// putMeta writes what is said about the object in place of what stood there. It may
// be written any number of times.
func (f *Files) putMeta(ctx context.Context, info *jetstream.ObjectInfo) error {
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	w := write{subject: f.meta(info.Name), stream: f.stream(), data: data, header: nats.Header{headerRollup: []string{"sub"}}}
	for {
		_, err := f.b.publish(ctx, w)
		if !errors.Is(err, ErrUnknown) && !errors.Is(err, errNotSent) {
			return err
		}
		if pause(ctx, retryPause) != nil {
			return err
		}
	}
}

// purge removes what cannot be used.
func (f *Files) purge(ctx context.Context, subject string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.b.timeout)
	defer cancel()
	var answer struct {
		Success bool `json:"success"`
	}
	query := struct {
		Filter string `json:"filter"`
	}{subject}
	if err := f.b.request(ctx, "STREAM.PURGE."+f.stream(), query, &answer); err != nil {
		f.b.log.Warn().Err(err).Msg("parts of an object are left behind until they expire")
	}
}
