package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/client"
	"github.com/sallyport/sallyport/internal/wire"
)

func TestFileFlag(t *testing.T) {
	for word, want := range map[string][3]string{
		"a": {"a", "a", ""}, "/x/y": {"/x/y", "y", ""}, "a:b/c": {"a", "b/c", ""}, "a:b:755": {"a", "b", "0755"},
		"a::0600": {"a", "a", "0600"}, "d/a:": {"d/a", "a", ""},
	} {
		local, place, mode, err := parseFile(word)
		require.NoError(t, err, word)
		require.Equal(t, want, [3]string{local, place, mode}, word)
	}
	for _, word := range []string{"", ":b", "a:b:c:d"} {
		_, _, _, err := parseFile(word)
		require.Error(t, err, word)
	}
}

func FuzzFileFlag(f *testing.F) {
	f.Add("a:b:755")
	f.Fuzz(func(t *testing.T, word string) {
		local, place, _, err := parseFile(word)
		if err == nil {
			require.NotEmpty(t, local)
			require.NotEmpty(t, place)
		}
	})
}

func TestFilesBecomeARequest(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	script, text := write("job.sh", "#!/bin/sh\n", 0o755), write("data", "über", 0o644)
	binary, big := write("bin", "\xff\x00", 0o644), write("big", strings.Repeat("x", inlineFiles), 0o644)
	f := fileFlags{File: []string{script, text + ":in/d", binary + ":b:600", big}, Collect: []string{"out/*"}}
	r := &client.Request{V: 1, Argv: []string{"x"}}
	require.NoError(t, f.read(r))
	require.Nil(t, r.Validate())
	require.Equal(t, []string{"out/*"}, r.Collect)
	require.Equal(t, wire.File{Path: "job.sh", Text: new("#!/bin/sh\n"), Mode: "0755"}, r.Files[0])
	require.Equal(t, wire.File{Path: "in/d", Text: new("über")}, r.Files[1])
	require.Equal(t, wire.File{Path: "b", Base64: new("/wA="), Mode: "0600"}, r.Files[2])
	require.Regexp(t, "^uploaded/[0-9a-f]{64}$", r.Files[3].Object)
	require.Equal(t, []upload{{big, r.Files[3].Object}}, f.uploads)

	for _, bad := range []string{filepath.Join(dir, "absent"), dir, "a:b:c:d"} {
		f := fileFlags{File: []string{bad}}
		require.Error(t, f.read(&client.Request{}), bad)
	}
}

// Whatever a result calls its files, they are written below the directory, and over
// no link.
func TestCollectedFilesStayInTheirDirectory(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "out")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	victim := filepath.Join(base, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("old"), 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(base, filepath.Join(dir, "linkdir")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "there"), []byte("old"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	cl, err := client.New(nil, client.Config{})
	require.NoError(t, err)
	for _, c := range []struct {
		path string
		good bool
	}{
		{"a", true},
		{"new/dir/b", true},
		{"there", true},
		{"link", true},
		{"../victim", false},
		{"/etc/x", false},
		{"a/../../victim", false},
		{"linkdir/victim", false},
		{".", false},
		{"sub", false},
		{"", false},
	} {
		err := saveFile(t.Context(), cl, root, &client.CollectedFile{Path: c.path, Size: 3, Base64: base64.StdEncoding.EncodeToString([]byte("new"))})
		if !c.good {
			require.Error(t, err, c.path)
			continue
		}
		require.NoError(t, err, c.path)
		data, err := os.ReadFile(filepath.Join(dir, c.path))
		require.NoError(t, err)
		require.Equal(t, "new", string(data))
	}
	data, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "old", string(data), "a link was followed")
	require.Error(t, saveFile(t.Context(), cl, root, &client.CollectedFile{Path: "refused", Refuse: "is a symbolic link"}))
	left, err := filepath.Glob(filepath.Join(dir, ".sallyport-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestCollectNeedsADirectory(t *testing.T) {
	p := sallyport(t, "run", "--collect", "x", "--", "true")
	require.Equal(t, exitUsage, p.code)
	require.Contains(t, p.stderr, "--collect-dir")
}
