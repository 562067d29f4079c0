package integration

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

// objects is the object store as the tools of NATS see it.
func (s *stack) objects() jetstream.ObjectStore {
	s.t.Helper()
	store, err := s.js.ObjectStore(s.soon(), "EXEC_FILES")
	require.NoError(s.t, err)
	return store
}

// soon is a context with the test's patience.
func (s *stack) soon() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	s.t.Cleanup(cancel)
	return ctx
}

// Files go in and come out byte for byte, small ones in the messages, big ones
// through the object store, and whatever is no plain file is refused by name.
func TestFiles(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--slots", "4")

	t.Run("in and out", func(t *testing.T) {
		s := s.on(t)
		_, err := s.objects().PutBytes(s.soon(), "default/models/m1", []byte("from the store"))
		require.NoError(t, err)
		f := s.submit("inout", wire.Request{
			Argv: []string{"./job.sh"},
			Files: []wire.File{
				{Path: "job.sh", Text: new("#!/bin/sh\nset -e\ncat data/in.bin model\nmkdir out\ncp data/in.bin out/copy\necho text >out/text\nstat -c '%a %U' job.sh model\n"), Mode: "0755"},
				{Path: "data/in.bin", Base64: new("/wABCg==")},
				{Path: "model", Object: "models/m1"},
			},
			Collect: []string{"out/*", "absent"},
		}).wait().exited(0)
		require.Equal(t, "\xff\x00\x01\nfrom the store755 job\n644 job\n", string(f.stdout))
		require.Equal(t, []wire.CollectedFile{{Path: "out/copy", Size: 4, Base64: "/wABCg=="}, {Path: "out/text", Size: 5, Base64: "dGV4dAo="}}, f.result.Files)
		require.Equal(t, wire.Reusable, f.result.Lease.Disposition)
		next := s.run("after", "sh", "-c", "ls -A").exited(0)
		require.Empty(t, next.stdout)
		require.Empty(t, next.result.Files)
	})
	t.Run("a big one through the object store and into the next job", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("makes", wire.Request{Argv: []string{"sh", "-c", "head -c 5000000 /dev/urandom >big; md5sum <big"}, Collect: []string{"big"}}).wait().exited(0)
		require.Len(t, f.result.Files, 1)
		require.EqualValues(t, 5000000, f.result.Files[0].Size)
		require.NotEmpty(t, f.result.Files[0].Object, "%s", f.raw)
		data, err := s.objects().GetBytes(s.soon(), "default/"+f.result.Files[0].Object)
		require.NoError(t, err)
		require.Len(t, data, 5000000)
		next := s.submit("takes", wire.Request{Argv: []string{"sh", "-c", "md5sum <in"}, Files: []wire.File{{Path: "in", Object: f.result.Files[0].Object}}}).wait().exited(0)
		require.Equal(t, string(f.stdout), string(next.stdout))
	})
	t.Run("tricks are refused by name", func(t *testing.T) {
		s := s.on(t)
		f := s.submit("tricks", wire.Request{
			Argv: []string{"sh", "-c", `ln -sf /etc/shadow out.txt; ln -s /proc/self/environ env; mkfifo fifo; ln -s . loop; echo x >a; ln a b; truncate -s 70M sparse
printf x >"$(printf 'new\nline')"; printf x >"$(printf 'bad\377')"; ln -s /proc/1/root root; echo good >good`},
			Collect: []string{"*", "loop/*", "root/etc/*"},
			Limits:  wire.Limits{DiskBytes: new(int64(100 << 20))},
		}).wait().exited(0)
		got := map[string]string{}
		for _, file := range f.result.Files {
			require.Empty(t, file.Object)
			got[file.Path] = file.Refuse
			if file.Refuse != "" {
				require.Empty(t, file.Base64, "%+v", file)
			}
		}
		const link, odd = "is a symbolic link", "its name has control characters or is not UTF-8; it stands here escaped"
		require.Equal(t, map[string]string{
			"out.txt": link, "env": link, "loop": link, "root": link, "fifo": "is no regular file", "a": "has more than one link", "b": "has more than one link",
			"sparse": "has 73400320 bytes, more than the 67108864 that are left for it", `new\nline`: odd, `bad\xff`: odd, "good": "",
		}, got)
		require.NotContains(t, string(f.raw), "root:")
	})
	t.Run("what cannot be placed does not start", func(t *testing.T) {
		s := s.on(t)
		_, err := s.objects().PutBytes(s.soon(), "other/secret", []byte("another tenant's"))
		require.NoError(t, err)
		info, err := s.objects().GetInfo(s.soon(), "other/secret")
		require.NoError(t, err)
		_, err = s.objects().AddLink(s.soon(), "default/link", info)
		require.NoError(t, err)
		disk := wire.Limits{DiskBytes: new(int64(1 << 20))}
		for name, c := range map[string]struct {
			file wire.File
			says string
		}{
			"missing": {wire.File{Path: "a", Object: "no/such"}, "no such object"},
			"foreign": {wire.File{Path: "a", Object: "secret"}, "no such object"},
			"link":    {wire.File{Path: "a", Object: "link"}, "it is a link"},
			"disk":    {wire.File{Path: "a", Text: new(strings.Repeat("x", 2<<20))}, "disk_bytes"},
		} {
			f := s.submit("unplaced-"+name, wire.Request{Argv: []string{"true"}, Files: []wire.File{c.file}, Limits: disk}).wait()
			require.Equal(t, wire.NotStarted, f.result.Outcome, "%s", f.raw)
			require.Equal(t, wire.ReasonFiles, f.result.Reason, "%s", f.raw)
			require.Contains(t, f.result.Message, c.says)
			require.Equal(t, wire.Reusable, f.result.Lease.Disposition, "%s", f.raw)
		}
		f := s.submit("unplaced-out", wire.Request{Argv: []string{"true"}, Files: []wire.File{{Path: "../a", Text: new("")}}}).wait()
		require.Equal(t, wire.InvalidJob, f.result.Outcome, "%s", f.raw)
	})
	s.queueEmpty()
}

// The command line takes files along and brings files back.
func TestFilesOnTheCommandLine(t *testing.T) {
	t.Parallel()
	s := newStack(t).apply()
	s.worker("w1", "--gateway")
	dir := t.TempDir()
	script, big := filepath.Join(dir, "job.sh"), filepath.Join(dir, "big")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nmkdir -p o/p\ncp big o/p/big\necho small >o/small\nln -s /etc/passwd o/link\nexit 3\n"), 0o755))
	content := make([]byte, 3<<20)
	_, err := rand.Read(content)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(big, content, 0o600))
	out := filepath.Join(dir, "out")
	said, code := s.command("run", "--server", s.url, "--file", script, "--file", big+":big:0600", "--collect", "o/**", "--collect-dir", out, "--", "./job.sh")
	require.Equal(t, 3, code, said)
	require.Contains(t, said, "not collected: o/link: is a symbolic link")
	data, err := os.ReadFile(filepath.Join(out, "o/p/big"))
	require.NoError(t, err)
	require.True(t, string(content) == string(data))
	data, err = os.ReadFile(filepath.Join(out, "o/small"))
	require.NoError(t, err)
	require.Equal(t, "small\n", string(data))
	_, err = os.Lstat(filepath.Join(out, "o/link"))
	require.ErrorIs(t, err, os.ErrNotExist)

	said, code = s.command("run", "--server", s.url, "--json", "--file", script+":x.sh", "--collect", "x*", "--", "true")
	require.Equal(t, 0, code, said)
	require.Contains(t, said, base64.StdEncoding.EncodeToString([]byte("#!/bin/sh\n"))[:12])
}
