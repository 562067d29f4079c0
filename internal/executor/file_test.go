package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/run"
	"github.com/sallyport/sallyport/internal/sandbox/fake"
	"github.com/sallyport/sallyport/internal/wire"
)

// store is an object store in memory.
type store struct {
	mu      sync.Mutex
	objects map[string]string
	get     error // instead of every content
	put     error
	hang    bool // Put waits for its context
	open    int
}

func (s *store) Get(_ context.Context, tenant, name string) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.objects[wire.ObjectKey(tenant, name)]
	if !ok {
		return nil, run.ErrNoObject
	}
	s.open++
	var from io.Reader = strings.NewReader(content)
	if s.get != nil {
		from = io.MultiReader(strings.NewReader(content[:len(content)/2]), iotest.ErrReader(s.get))
	}
	return &opened{Reader: from, s: s}, nil
}

type opened struct {
	io.Reader
	s *store
}

func (o *opened) Close() error {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.open--
	return nil
}

func (s *store) Put(ctx context.Context, tenant, name string, content io.Reader) error {
	if s.hang {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	data, err := io.ReadAll(content)
	if err != nil || s.put != nil {
		return errors.Join(err, s.put)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[wire.ObjectKey(tenant, name)] = string(data)
	return nil
}

func TestFilesInAndOut(t *testing.T) {
	objects := &store{objects: map[string]string{"t/model": "from the store", "other/model": "another tenant's"}}
	inBubbleWith(t, fake.Config{}, objects, func(t *testing.T, b *bench) {
		a := script("show:a", "show:d/b", "show:c", "ls", "put:out/x:made", "put:out/big:0123456789", "make:symlink:out/link", "put:bad\nname:x", "make:fifo:out/fifo")
		a.request.Files = []wire.File{
			{Path: "./a", Text: new("text ")}, {Path: "d//b", Base64: new("AAEC")}, {Path: "c", Object: "model", Mode: "0755"},
		}
		a.request.Collect = []string{"out/*", "bad*", "absent"}
		h := b.handle(a)
		require.Equal(t, wire.Exited, h.Result.Outcome, "%+v", h.Result)
		require.Equal(t, "text \x00\x01\x02from the storea\nc\nd\n", h.data(wire.EventStdout))
		require.Equal(t, []wire.CollectedFile{
			{Path: `bad\nname`, Size: 1, Refuse: "its name has control characters or is not UTF-8; it stands here escaped"},
			{Path: "out/big", Size: 10, Base64: "MDEyMzQ1Njc4OQ=="},
			{Path: "out/fifo", Refuse: "is no regular file"},
			{Path: "out/link", Refuse: "is a symbolic link"},
			{Path: "out/x", Size: 4, Base64: "bWFkZQ=="},
		}, h.Result.Files)
		require.Zero(t, objects.open)
		_, err := wire.EncodeResult(&h.Result)
		require.NoError(t, err)
		// The next job in the same sandbox sees nothing of it.
		next := b.handle(script("ls"))
		require.Equal(t, 2, next.Result.Lease.Use)
		require.Empty(t, next.data(wire.EventStdout))
		require.Empty(t, next.Result.Files)
	})
}

// What does not fit the result goes to the tenant's objects, in order.
func TestBigFilesAreStored(t *testing.T) {
	objects := &store{objects: map[string]string{}}
	big := strings.Repeat("x", 60<<10)
	steps := make([]string, 0, 12)
	for i := range 12 {
		steps = append(steps, fmt.Sprintf("put:f%02d:%s", i, big))
	}
	inBubbleWith(t, fake.Config{}, objects, func(t *testing.T, b *bench) {
		for mode, inline := range map[wire.OutputMode]int{wire.OutputReply: 8, wire.OutputInline: 1} {
			a := script(steps...)
			a.request.Collect, a.request.Output = []string{"f*"}, mode
			h := b.handle(a)
			require.Len(t, h.Result.Files, 12)
			for i, f := range h.Result.Files {
				require.Equal(t, fmt.Sprintf("f%02d", i), f.Path)
				require.Empty(t, f.Refuse)
				require.Equal(t, i < inline, f.Base64 != "", "%s %d", mode, i)
				if f.Object != "" {
					require.Equal(t, big, objects.objects[wire.ObjectKey("t", f.Object)])
				}
			}
			data, err := wire.EncodeResult(&h.Result)
			require.NoError(t, err)
			require.Less(t, len(data), wire.MaxRecordBytes-64<<10)
		}
		objects.put = errors.New("bucket full")
		a := script(steps...)
		a.request.Collect = []string{"f*"}
		h := b.handle(a)
		require.Equal(t, wire.Exited, h.Result.Outcome)
		require.Equal(t, "could not be stored: bucket full", h.Result.Files[11].Refuse)
		require.NotEmpty(t, h.Result.Files[0].Base64)
	})
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		a := script(steps...)
		a.request.Collect = []string{"f*"}
		h := b.handle(a)
		require.Contains(t, h.Result.Files[11].Refuse, "no object store")
	})
}

// The result of a job that makes as many files, with as long names, as it can fits
// its record and says how many are not in it.
func TestCollectedFilesFitTheRecord(t *testing.T) {
	inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
		var steps []string
		for i := range 700 {
			steps = append(steps, fmt.Sprintf("put:%03d%s:x", i, strings.Repeat("\"", 240)))
		}
		steps = append(steps, "write:256KiB", "write-err:256KiB")
		a := script(steps...)
		a.request.Collect, a.request.Output = []string{"*"}, wire.OutputInline
		h := b.handle(a)
		require.Positive(t, len(h.Result.Files))
		require.Equal(t, 700, len(h.Result.Files)+h.Result.FilesOmitted)
		data, err := wire.EncodeResult(&h.Result)
		require.NoError(t, err)
		require.Less(t, len(data), wire.MaxRecordBytes)
		_, err = wire.EncodeResult(h.Result.WithoutInline())
		require.NoError(t, err)
	})
}

func TestFilesThatCannotBePlaced(t *testing.T) {
	for name, c := range map[string]struct {
		files     []wire.File
		get       error
		message   string
		abandoned bool
	}{
		"no such object":   {[]wire.File{{Path: "a", Object: "absent"}}, nil, `object "absent": no such object`, false},
		"another tenant's": {[]wire.File{{Path: "a", Object: "secret"}}, nil, "no such object", false},
		"damaged object":   {[]wire.File{{Path: "a", Object: "model"}}, run.ErrBadObject, "cannot be used", false},
		"store away":       {[]wire.File{{Path: "a", Object: "model"}}, errors.New("no connection"), "no connection", true},
		"over the disk":    {[]wire.File{{Path: "a", Text: new(strings.Repeat("x", 2000))}}, nil, "disk_bytes", false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := &store{objects: map[string]string{"t/model": "xxxx", "other/secret": "y"}, get: c.get}
			inBubbleWith(t, fake.Config{}, objects, func(t *testing.T, b *bench) {
				a := script("print:never")
				a.request.Files, a.request.Limits.DiskBytes = c.files, new(int64(1000))
				h := b.handle(a)
				require.Equal(t, c.abandoned, h.Abandoned)
				require.Zero(t, objects.open, "an object was left open")
				require.Empty(t, h.data(wire.EventStdout))
				require.False(t, h.gate.started)
				if c.abandoned {
					require.ErrorContains(t, h.Err, c.message)
				} else {
					require.Equal(t, wire.NotStarted, h.Result.Outcome)
					require.Equal(t, wire.ReasonFiles, h.Result.Reason)
					require.Equal(t, wire.StartNo, h.Result.StartState)
					require.Contains(t, h.Result.Message, c.message)
					_, err := wire.EncodeResult(&h.Result)
					require.NoError(t, err)
				}
				next := b.handle(script("ls"))
				require.Empty(t, next.data(wire.EventStdout))
				require.Equal(t, wire.Reusable, next.Result.Lease.Disposition)
				require.NoError(t, b.x.Ready(), "a request's fault is no failure of sandboxes")
			})
		})
	}
}

// Files are read after every end that is proven, and after no other.
func TestCollectionAfterOtherEnds(t *testing.T) {
	limits := wire.Limits{WallMS: new(int64(1000)), GraceMS: new(int64(500))}
	for name, c := range map[string]struct {
		steps []string
		files []wire.CollectedFile
		cause error
	}{
		"timed out":   {[]string{"put:a:x", "forever"}, []wire.CollectedFile{{Path: "a", Size: 1, Base64: "eA=="}}, nil},
		"failed":      {[]string{"put:a:x", "exit:3"}, []wire.CollectedFile{{Path: "a", Size: 1, Base64: "eA=="}}, nil},
		"cancelled":   {[]string{"put:a:x", "forever"}, []wire.CollectedFile{{Path: "a", Size: 1, Base64: "eA=="}}, run.ErrCancelled},
		"shut down":   {[]string{"put:a:x", "forever"}, []wire.CollectedFile{{Path: "*", Refuse: "not read: the worker ended the run (shutdown)"}}, run.ErrShutdown},
		"unproven":    {[]string{"put:a:x", "wait:never"}, []wire.CollectedFile{{Path: "*", Refuse: "not read: the end of the run is not proven"}}, nil},
		"unreadable":  {[]string{"put:a:x", "collect:fail"}, []wire.CollectedFile{{Path: "*", Refuse: "not all was collected: collect: unavailable: told to fail"}}, nil},
		"not started": {[]string{"start:not_found"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, fake.Config{}, func(t *testing.T, b *bench) {
				a := script(c.steps...)
				a.request.Collect, a.request.Limits = []string{"*"}, limits
				if c.cause != nil {
					ctx, cancel := context.WithCancelCause(t.Context())
					time.AfterFunc(300*time.Millisecond, func() { cancel(c.cause) })
					a.ctx = ctx
				}
				h := b.handle(a)
				require.Equal(t, c.files, h.Result.Files)
				_, err := wire.EncodeResult(&h.Result)
				require.NoError(t, err)
				if name == "unreadable" {
					require.Equal(t, wire.Destroyed, h.Result.Lease.Disposition)
				}
			})
		})
	}
}

// A store that takes nothing holds a result up for a bounded time only.
func TestCollectionIsBounded(t *testing.T) {
	objects := &store{objects: map[string]string{}, hang: true}
	inBubbleWith(t, fake.Config{}, objects, func(t *testing.T, b *bench) {
		a := script("put:a:"+strings.Repeat("x", 600<<10), "put:b:y")
		a.request.Collect = []string{"*"}
		began := time.Now()
		h := b.handle(a)
		require.Less(t, time.Since(began), 90*time.Second)
		require.Equal(t, wire.Exited, h.Result.Outcome)
		require.Equal(t, "a", h.Result.Files[0].Path)
		require.Contains(t, h.Result.Files[0].Refuse, "could not be stored")
		last := h.Result.Files[len(h.Result.Files)-1]
		require.Contains(t, last.Refuse, "not all was collected")
		require.True(t, slices.ContainsFunc(h.Result.Files, func(f wire.CollectedFile) bool { return f.Path == "*" }))
	})
}
