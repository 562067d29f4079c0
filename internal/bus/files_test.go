package bus_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/bus"
	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/wire"
)

func get(t *testing.T, f *bus.Files, tenant, name string) (string, error) {
	t.Helper()
	r, err := f.Get(deadline(t), tenant, name)
	if err != nil {
		return "", err
	}
	defer func() { require.NoError(t, r.Close()) }()
	data, err := io.ReadAll(r)
	return string(data), err
}

// The tools of NATS read what we write, and we what they write.
func TestFilesAreThoseOfTheNATSTools(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	f := b.Files()
	store, err := b.JS().ObjectStore(deadline(t), "EXEC_FILES")
	require.NoError(t, err)
	for name, content := range map[string]string{"empty": "", "small": "hello", "one chunk": strings.Repeat("x", 128<<10), "big/and odd": strings.Repeat("0123456789", 100_007)} {
		require.NoError(t, f.Put(deadline(t), "t", name, iotest.HalfReader(strings.NewReader(content))))
		data, err := store.GetBytes(deadline(t), "t/"+name)
		require.NoError(t, err)
		require.True(t, content == string(data), name)
		info, err := store.GetInfo(deadline(t), "t/"+name)
		require.NoError(t, err)
		require.EqualValues(t, len(content), info.Size)

		_, err = store.PutBytes(deadline(t), "t/theirs", []byte(content))
		require.NoError(t, err)
		for _, object := range []string{name, "theirs"} {
			got, err := get(t, f, "t", object)
			require.NoError(t, err)
			require.True(t, content == got, name)
		}
	}
	require.NoError(t, f.Put(deadline(t), "t", "small", strings.NewReader("other")))
	got, err := get(t, f, "t", "small")
	require.NoError(t, err)
	require.Equal(t, "other", got, "a later object has taken the name")
	require.NoError(t, store.Delete(deadline(t), "t/small"))
	_, err = get(t, f, "t", "small")
	require.ErrorIs(t, err, run.ErrNoObject)
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	f, js := b.Files(), b.JS()
	store, err := js.ObjectStore(deadline(t), "EXEC_FILES")
	require.NoError(t, err)
	other, err := js.CreateObjectStore(deadline(t), jetstream.ObjectStoreConfig{Bucket: "SECRET"})
	require.NoError(t, err)
	secret, err := other.PutBytes(deadline(t), "s", []byte("secret"))
	require.NoError(t, err)
	theirs, err := store.PutBytes(deadline(t), "other/s", []byte("another tenant's"))
	require.NoError(t, err)

	_, err = store.AddLink(deadline(t), "t/link", theirs)
	require.NoError(t, err)
	_, err = store.AddLink(deadline(t), "t/away", secret)
	require.NoError(t, err)
	_, err = store.AddBucketLink(deadline(t), "t/bucket", other)
	require.NoError(t, err)
	for _, name := range []string{"link", "away", "bucket"} {
		_, err := get(t, f, "t", name)
		require.ErrorIs(t, err, run.ErrBadObject, name)
		require.ErrorContains(t, err, "link")
	}

	good, err := store.PutBytes(deadline(t), "t/good", []byte(strings.Repeat("x", 300<<10)))
	require.NoError(t, err)
	for name, change := range map[string]func(*jetstream.ObjectInfo){
		"digest": func(i *jetstream.ObjectInfo) {
			i.Digest = "SHA-256=" + base64.URLEncoding.EncodeToString(make([]byte, 32))
		},
		"none":  func(i *jetstream.ObjectInfo) { i.Digest = "" },
		"short": func(i *jetstream.ObjectInfo) { i.Size-- },
		"huge":  func(i *jetstream.ObjectInfo) { i.Size = 1 << 40 },
		"place": func(i *jetstream.ObjectInfo) { i.NUID = "*" },
		"where": func(i *jetstream.ObjectInfo) { i.NUID = "" },
		"name":  func(i *jetstream.ObjectInfo) { i.Name = "t/good" },
	} {
		info := *good
		info.Name = "t/" + name
		change(&info)
		writeMeta(t, js, "t/"+name, info)
		_, err := get(t, f, "t", name)
		require.ErrorIs(t, err, run.ErrBadObject, name)
	}
	long := *good
	long.Name, long.Size = "t/long", long.Size+1
	writeMeta(t, js, "t/long", long)
	_, err = get(t, f, "t", "long")
	require.ErrorIs(t, err, run.ErrNoObject, "a part is missing")
	_, err = js.Publish(deadline(t), "$O.EXEC_FILES.M."+base64.URLEncoding.EncodeToString([]byte("t/rubbish")), []byte("{"))
	require.NoError(t, err)
	_, err = get(t, f, "t", "rubbish")
	require.ErrorIs(t, err, run.ErrBadObject)

	for _, c := range [][2]string{{"t", "absent"}, {"u", "good"}} {
		_, err := get(t, f, c[0], c[1])
		require.ErrorIs(t, err, run.ErrNoObject)
	}
	for _, c := range [][2]string{{"t", "../other/s"}, {"t", "/x"}, {"t", ""}, {"t/x", "good"}, {"", "good"}} {
		_, err := get(t, f, c[0], c[1])
		require.ErrorIs(t, err, run.ErrBadObject)
		require.ErrorIs(t, f.Put(deadline(t), c[0], c[1], strings.NewReader("x")), run.ErrBadObject)
	}
	got, err := get(t, f, "other", "s")
	require.NoError(t, err)
	require.Equal(t, "another tenant's", got, "nothing of the above has changed it")
}

func writeMeta(t *testing.T, js jetstream.JetStream, key string, info jetstream.ObjectInfo) {
	t.Helper()
	data, err := json.Marshal(info)
	require.NoError(t, err)
	msg := nats.NewMsg("$O.EXEC_FILES.M." + base64.URLEncoding.EncodeToString([]byte(key)))
	msg.Data = data
	msg.Header.Set("Nats-Rollup", "sub")
	_, err = js.PublishMsg(deadline(t), msg)
	require.NoError(t, err)
}

// A Put that fails leaves nothing behind: no object, and no chunks.
func TestFilesThatAreNotStored(t *testing.T) {
	t.Parallel()
	_, b := setup(t)
	f := b.Files()
	stream, err := b.JS().Stream(deadline(t), "OBJ_EXEC_FILES")
	require.NoError(t, err)
	left := func() uint64 {
		info, err := stream.Info(deadline(t))
		require.NoError(t, err)
		return info.State.Msgs
	}
	broken := errors.New("source broke")
	err = f.Put(deadline(t), "t", "a", io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.Zero(t, left())
	err = f.Put(deadline(t), "t", "a", io.LimitReader(zeros{}, wire.MaxObjectBytes+1))
	require.ErrorIs(t, err, run.ErrBadObject)
	require.Zero(t, left())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, f.Put(ctx, "t", "a", zeros{}))
	require.Zero(t, left())
	_, err = get(t, f, "t", "a")
	require.ErrorIs(t, err, run.ErrNoObject)

	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = 1 << 20
	_, err = b.JS().UpdateStream(deadline(t), cfg)
	require.NoError(t, err)
	err = f.Put(deadline(t), "t", "a", bytes.NewReader(make([]byte, 2<<20)))
	require.ErrorIs(t, err, bus.ErrStreamFull)
	require.Zero(t, left())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A server that goes away in the middle is waited for, and no chunk is there twice.
func TestFilesOutliveARestart(t *testing.T) {
	t.Parallel()
	s, b := setup(t)
	again := restartable(t, s)
	f := b.Files()
	content := strings.Repeat("0123456789abcdef", 128<<10)
	half := len(content) / 2
	source := io.MultiReader(strings.NewReader(content[:half]), readFunc(func([]byte) (int, error) {
		stopServer(s)
		s = again()
		return 0, io.EOF
	}), strings.NewReader(content[half:]))
	require.NoError(t, f.Put(deadline(t), "t", "a", source))
	got, err := get(t, f, "t", "a")
	require.NoError(t, err)
	require.True(t, content == got)
	require.Eventually(t, b.Connected, patience, time.Millisecond, "all connections, not the objects' alone")
	info, err := b.JS().Stream(deadline(t), "OBJ_EXEC_FILES")
	require.NoError(t, err)
	require.EqualValues(t, len(content)/(128<<10)+1, info.CachedInfo().State.Msgs)
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// The rights that docs/operating.md gives are enough, for the worker and for who uses
// the tools of NATS.
func TestFilesNeedNoMoreRights(t *testing.T) {
	t.Parallel()
	may := func(subjects ...string) *server.Permissions {
		return &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: append(subjects, "$JS.API.INFO")},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}
	}
	s := startServer(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "x"},
			{Username: "worker", Password: "x", Permissions: may("$JS.API.STREAM.MSG.GET.OBJ_EXEC_FILES", "$JS.API.STREAM.PURGE.OBJ_EXEC_FILES", "$O.EXEC_FILES.>")},
			{Username: "publisher", Password: "x", Permissions: may("$JS.API.STREAM.INFO.OBJ_EXEC_FILES", "$JS.API.STREAM.PURGE.OBJ_EXEC_FILES",
				"$JS.API.DIRECT.GET.OBJ_EXEC_FILES.>", "$JS.API.CONSUMER.CREATE.OBJ_EXEC_FILES.>", "$JS.API.CONSUMER.DELETE.OBJ_EXEC_FILES.>", "$JS.FC.OBJ_EXEC_FILES.>", "$O.EXEC_FILES.>")},
		}
	})
	as := func(user string) *bus.Bus {
		return connect(t, s.ClientURL(), func(o *bus.Options) { o.NATS = []nats.Option{nats.UserInfo(user, "x")} })
	}
	apply(t, as("admin"), small())
	worker, publisher := as("worker"), as("publisher")
	store, err := publisher.JS().ObjectStore(deadline(t), "EXEC_FILES")
	require.NoError(t, err)
	content := bytes.Repeat([]byte("x"), 1<<20)
	_, err = store.PutBytes(deadline(t), "t/in", content)
	require.NoError(t, err)
	got, err := get(t, worker.Files(), "t", "in")
	require.NoError(t, err)
	require.Len(t, got, len(content))
	require.NoError(t, worker.Files().Put(deadline(t), "t", "out", strings.NewReader(got)))
	data, err := store.GetBytes(deadline(t), "t/out")
	require.NoError(t, err)
	require.Equal(t, content, data)
	_, err = store.PutBytes(deadline(t), "t/in", []byte("again"))
	require.NoError(t, err)
	require.Error(t, worker.Files().Put(deadline(t), "t", "out", io.MultiReader(bytes.NewReader(content), iotest.ErrReader(io.ErrNoProgress))))
	require.Zero(t, worker.PermissionErrors())
	require.Zero(t, publisher.PermissionErrors())
}

// What others write about an object is refused or within bounds.
func FuzzReadObject(f *testing.F) {
	f.Add([]byte(`{"name":"t/a","bucket":"EXEC_FILES","nuid":"x","size":3,"mtime":"0001-01-01T00:00:00Z","chunks":1,"digest":"SHA-256=AA=="}`))
	f.Add([]byte(`{"name":"t/a","options":{"link":{"bucket":"b"}}}`))
	f.Add([]byte(`{"name":"t/a","size":-1,"nuid":"*"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := bus.ReadObject(data, "t/a")
		if err != nil {
			require.Nil(t, info)
			require.True(t, errors.Is(err, run.ErrBadObject) || errors.Is(err, run.ErrNoObject))
			return
		}
		require.Equal(t, "t/a", info.Name)
		require.True(t, wire.ValidToken(info.NUID))
		require.LessOrEqual(t, info.Size, uint64(wire.MaxObjectBytes))
		require.False(t, info.Deleted)
		require.True(t, info.Opts == nil || info.Opts.Link == nil)
	})
}
