package wire_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/sallyport/sallyport/internal/wire"
)

func TestFileNames(t *testing.T) {
	for raw, want := range map[string]string{
		"out/a b.txt": "", "über/☃": "", "-rf": "", `a\nb`: "", "👩‍🚀": "",
		"a\nb": `a\nb`, "\x1b[2J": `\x1b[2J`, "bad\xff": `bad\xff`, "evil\u202etxt": `evil\u202etxt`, "nul\x00": `nul\x00`, "line\u2028": `line\u2028`, "\x7f": `\x7f`,
	} {
		name, ok := wire.FileName(raw)
		if want == "" {
			require.True(t, ok, "%q", raw)
			require.Equal(t, raw, name)
			continue
		}
		require.False(t, ok, "%q", raw)
		require.Equal(t, want, name)
	}
}

func TestObjectNames(t *testing.T) {
	for _, good := range []string{"a", "a/b/c", "data set.bin", "über", "..a", strings.Repeat("x", wire.MaxObjectName), wire.CollectedObject("job-1", 2, 3)} {
		require.True(t, wire.ValidObject(good), "%q", good)
	}
	for _, bad := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../other/a", "a/../b", "a/./b", "a\nb", "a\x00", "a\xff", strings.Repeat("x", wire.MaxObjectName+1)} {
		require.False(t, wire.ValidObject(bad), "%q", bad)
	}
	require.Equal(t, "acme/x", wire.ObjectKey("acme", "x"))
	longest := wire.CollectedObject(strings.Repeat("i", wire.MaxTokenBytes), wire.MaxAttemptsCeiling, wire.MaxCollected)
	require.True(t, wire.ValidObject(longest))
}

func TestResultFiles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*wire.Result)
		field  string
	}{
		"fine": {func(r *wire.Result) {
			r.Files = []wire.CollectedFile{{Path: "a"}, {Path: "b", Size: 1, Base64: "eA=="}}
		}, ""},
		"too many": {func(r *wire.Result) { r.Files = make([]wire.CollectedFile, wire.MaxCollected+1) }, "files"},
		"nameless": {func(r *wire.Result) { r.Files = []wire.CollectedFile{{}} }, "files[0].path"},
		"control":  {func(r *wire.Result) { r.Files = []wire.CollectedFile{{Path: "a\n", Refuse: "x"}} }, "files[0].path"},
		"two contents": {func(r *wire.Result) {
			r.Files = []wire.CollectedFile{{Path: "a", Size: 1, Base64: "eA==", Object: "a"}}
		}, "files[0]"},
		"size":       {func(r *wire.Result) { r.Files = []wire.CollectedFile{{Path: "a", Size: 2, Base64: "eA=="}} }, "files[0].size"},
		"no content": {func(r *wire.Result) { r.Files = []wire.CollectedFile{{Path: "a", Size: 2}} }, "files[0].size"},
		"bad base64": {func(r *wire.Result) { r.Files = []wire.CollectedFile{{Path: "a", Size: 2, Base64: "e"}} }, "files[0].base64"},
		"bad object": {func(r *wire.Result) { r.Files = []wire.CollectedFile{{Path: "a", Size: 2, Object: "../x"}} }, "files[0].object"},
		"long names": {func(r *wire.Result) {
			r.Files = []wire.CollectedFile{{Path: strings.Repeat("a", wire.MaxCollectedNames+1), Refuse: "x"}}
		}, "files"},
		"negative omitted": {func(r *wire.Result) { r.FilesOmitted = -1 }, "files_omitted"},
	} {
		r := ranResult(wire.Exited)
		r.ExitCode = new(0)
		c.change(r)
		bad := r.Validate()
		if c.field == "" {
			require.Nil(t, bad, name)
			continue
		}
		require.NotNil(t, bad, name)
		require.Equal(t, c.field, bad.Field, name)
	}
	// A result that lost its inline files still is one.
	r := ranResult(wire.Exited)
	r.ExitCode = new(0)
	r.Files = []wire.CollectedFile{{Path: "b", Size: 1, Base64: "eA=="}}
	require.Nil(t, r.WithoutInline().Validate())
	require.NotEmpty(t, r.WithoutInline().Files[0].Refuse)
}

// Whatever a job calls its files, a result can say it.
func FuzzFileName(f *testing.F) {
	for _, s := range []string{"a", "a\nb", "\xff", "\u202e", "\x1b[31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		name, ok := wire.FileName(raw)
		require.True(t, utf8.ValidString(name))
		require.Equal(t, ok, name == raw)
		if raw == "" || len(name) > wire.MaxCollectedNames/2 {
			return
		}
		r := ranResult(wire.Exited)
		r.ExitCode = new(0)
		r.Files = []wire.CollectedFile{{Path: name, Refuse: "x"}}
		data, err := wire.EncodeResult(r)
		require.NoError(t, err)
		back, err := wire.DecodeResult(data)
		require.NoError(t, err)
		require.Equal(t, name, back.Files[0].Path)
	})
}
