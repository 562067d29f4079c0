package hostile

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sources are the programs. Each says in its first lines what is expected.
//
//go:embed programs
var sources embed.FS

const (
	// inside is where jobs find the compiled programs, and scripts the scripts.
	inside  = "/hostile/all"
	scripts = "/hostile/"
)

// names are the programs that end in suffix, without it.
func names(t testing.TB, suffix string) []string {
	t.Helper()
	entries, err := sources.ReadDir("programs")
	require.NoError(t, err)
	var found []string
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), suffix); is {
			found = append(found, name)
		}
	}
	return found
}

// image makes the root that the jobs see: the programs, and of the host as much as
// the scripts need. It says whether there was a C compiler.
func image(t testing.TB) (dir string, compiled bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sallyport-hostile-") //nolint:usetesting // TempDir stands in a directory that is closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	for _, sub := range []string{"hostile", "etc", "usr/bin"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("job:x:1000:1000::/workspace:/bin/sh\n"), 0o644))
	for _, name := range names(t, ".sh") {
		data, err := sources.ReadFile("programs/" + name + ".sh")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "hostile", name+".sh"), data, 0o755))
	}
	for _, name := range []string{"cat", "sh", "head", "nohup", "setsid", "sleep", "true", "yes"} {
		install(t, dir, name)
	}
	// A program that would give root's rights to whoever executes it.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "usr/bin/su"), []byte("#!/bin/sh\n"), 0o755))
	require.NoError(t, os.Chmod(filepath.Join(dir, "usr/bin/su"), 0o755|os.ModeSetuid))
	return dir, compile(t, filepath.Join(dir, inside))
}

// install copies a program of the host and the libraries that it names.
func install(t testing.TB, dir, name string) {
	t.Helper()
	path, err := exec.LookPath(name)
	require.NoError(t, err)
	copyTo(t, path, filepath.Join(dir, "bin", name))
	out, err := exec.CommandContext(t.Context(), "ldd", path).CombinedOutput()
	if err != nil {
		return // a static one
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			copyTo(t, word, filepath.Join(dir, word))
		}
	}
}

func copyTo(t testing.TB, from, to string) {
	t.Helper()
	if _, err := os.Stat(to); err == nil {
		return
	}
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	require.NoError(t, os.WriteFile(to, data, 0o755))
}

// compile makes one static program of all: its first argument says which it is.
func compile(t testing.TB, to string) bool {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		return false
	}
	dir := t.TempDir()
	static := func(source, to string) ([]byte, error) {
		return exec.CommandContext(t.Context(), cc, "-static", "-O1", "-w", "-pthread", "-o", to, source, "-lrt").CombinedOutput()
	}
	nothing := filepath.Join(dir, "nothing.c")
	require.NoError(t, os.WriteFile(nothing, []byte("int main(void) { return 0; }\n"), 0o600))
	if out, err := static(nothing, filepath.Join(dir, "nothing")); err != nil {
		t.Logf("the C compiler makes no static programs: %v: %s", err, out)
		return false
	}
	var all, choose bytes.Buffer
	for _, name := range append(names(t, ".c"), "h") {
		file := name + ".c"
		if name == "h" {
			file = "h.h"
		} else {
			fmt.Fprintf(&all, "#define main main_%s\n#include %q\n#undef main\n", name, file)
			fmt.Fprintf(&choose, "\tif (!strcmp(v[1], %q)) return ((int (*)(int, char **))main_%s)(c - 1, v + 1);\n", name, name)
		}
		data, err := sources.ReadFile("programs/" + file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
	}
	fmt.Fprintf(&all, "int main(int c, char **v) {\n%s\treturn 99;\n}\n", choose.String())
	source := filepath.Join(dir, "all.c")
	require.NoError(t, os.WriteFile(source, all.Bytes(), 0o600))
	out, err := static(source, to)
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Chmod(to, 0o755))
	return true
}
